//! A connection's own commands.

use crate::core::call::{Call, is};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::{integer, parse_integer};
use crate::core::{Bytes, Reply};

const WRONG_PASSWORD: Failure =
    Failure::fixed("WRONGPASS invalid username-password pair or user is disabled.");

pub(super) fn ping(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if arguments.len() > 2 {
        return Err(Failure::wrong_arity("ping"));
    }
    let said = arguments.get(1).cloned();
    let listens = call
        .session()
        .is_some_and(|session| session.resp == 2 && session.listens());
    Ok(if listens {
        Reply::Array(vec![
            Reply::bulk("pong"),
            Reply::Bulk(said.unwrap_or_default()),
        ])
    } else {
        said.map_or_else(|| Reply::status("PONG"), Reply::Bulk)
    })
}

pub(super) fn echo(_call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(Reply::bulk(&*arguments[1]))
}

pub(super) fn hello(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let resp = arguments.get(1).map(|text| version(text)).transpose()?;
    let (mut name, mut rest) = (None, arguments.get(2..).unwrap_or_default());
    while let [word, after @ ..] = rest {
        rest = match after {
            [user, password, after @ ..] if is(word, "AUTH") => {
                authenticate(call, user, password)?;
                after
            }
            [given, after @ ..] if is(word, "SETNAME") => {
                check_name(given)?;
                name = Some(given.clone());
                after
            }
            _ => {
                let word = String::from_utf8_lossy(word);
                return Err(Failure::new(format!(
                    "ERR Syntax error in HELLO option '{word}'"
                )));
            }
        };
    }
    if call.session().is_some_and(|session| session.user.is_none()) {
        return Err(Failure::fixed(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    let resp = call.session().map_or(2, |session| {
        session.resp = resp.unwrap_or(session.resp);
        session.name = name.unwrap_or_else(|| session.name.clone());
        session.resp
    });
    Ok(greeting(call, resp))
}

fn version(text: &[u8]) -> Result<u8, Failure> {
    let wrong = "ERR Protocol version is not an integer or out of range";
    match integer(text) {
        Some(2) => Ok(2),
        Some(3) => Ok(3),
        Some(_) => Err(Failure::fixed("NOPROTO unsupported protocol version")),
        None => Err(Failure::fixed(wrong)),
    }
}

fn greeting(call: &Call<'_>, resp: u8) -> Reply {
    let id = i64::try_from(call.caller.session.0).unwrap_or(i64::MAX);
    let is_replica = call.state.condition.is_read_only;
    let fields = [
        ("server", Reply::bulk("redis")),
        ("version", Reply::bulk(&*call.state.options.version)),
        ("proto", Reply::Integer(i64::from(resp))),
        ("id", Reply::Integer(id)),
        ("mode", Reply::bulk("standalone")),
        (
            "role",
            Reply::bulk(if is_replica { "replica" } else { "master" }),
        ),
        ("modules", Reply::Array(Vec::new())),
    ];
    let fields = fields.map(|(name, value)| (Reply::bulk(name), value));
    Reply::Map(fields.into())
}

fn authenticate(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Result<(), Failure> {
    let user = String::from_utf8_lossy(user).into_owned();
    if !call.state.users.accepts(&user, password) {
        return Err(WRONG_PASSWORD);
    }
    if let Some(session) = call.session() {
        session.user = Some(user);
    }
    Ok(())
}

pub(super) fn auth(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    match &arguments[1..] {
        [password] => {
            if call.state.users.is_open() {
                return Err(Failure::fixed(
                    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
                ));
            }
            authenticate(call, b"default", password)?;
        }
        [user, password] => authenticate(call, user, password)?,
        _ => return Err(Failure::SYNTAX),
    }
    Ok(Reply::ok())
}

pub(super) fn select(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let number = parse_integer(&arguments[1])?;
    call.caller.db = call.state.database(number)?;
    Ok(Reply::ok())
}

/// The connection is closed behind the reply.
pub(super) fn quit(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    if let Some(session) = call.session() {
        session.is_leaving = true;
    }
    Ok(Reply::ok())
}

/// As if the connection were new.
pub(super) fn reset(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    let user = call.state.users.at_connect();
    let (id, now) = (call.caller.session, call.state.now);
    if let Some(old) = call.state.forget(id) {
        let mut session = crate::core::session::Session::new(old.address, user, now);
        session.inbox = old.inbox;
        session.output = old.output;
        session.since = old.since;
        call.state.sessions.insert(id, session);
    }
    call.caller.db = 0;
    Ok(Reply::status("RESET"))
}

/// A name of a connection: visible characters only.
pub(super) fn check_name(name: &[u8]) -> Result<(), Failure> {
    if name.iter().all(u8::is_ascii_graphic) {
        return Ok(());
    }
    let text = "ERR Client names cannot contain spaces, newlines or special characters.";
    Err(Failure::fixed(text))
}
