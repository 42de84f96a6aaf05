//! A connection's own commands.

use crate::core::call::Call;
use crate::core::failure::{Failure, Outcome};
use crate::core::{Bytes, Reply, number};

pub(super) fn ping(_call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let said = arguments.get(1).cloned();
    Ok(said.map_or_else(|| Reply::status("PONG"), Reply::Bulk))
}

pub(super) fn hello(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let wanted = arguments.get(1).map(|text| number::integer(text));
    let resp = match wanted {
        None => None,
        Some(Some(2)) => Some(2),
        Some(Some(3)) => Some(3),
        Some(_) => return Err(Failure::fixed("NOPROTO unsupported protocol version")),
    };
    let version = call.state.options.version.clone();
    let session = call.state.sessions.get_mut(&call.session);
    let resp = session.map_or(2, |session| {
        session.resp = resp.unwrap_or(session.resp);
        session.resp
    });
    let id = i64::try_from(call.session.0).unwrap_or(i64::MAX);
    let fields = [
        ("server", Reply::bulk("redis")),
        ("version", Reply::bulk(version)),
        ("proto", Reply::Integer(i64::from(resp))),
        ("id", Reply::Integer(id)),
        ("mode", Reply::bulk("standalone")),
        ("role", Reply::bulk("master")),
        ("modules", Reply::Array(Vec::new())),
    ];
    let fields = fields.map(|(name, value)| (Reply::bulk(name), value));
    Ok(Reply::Map(fields.into()))
}
