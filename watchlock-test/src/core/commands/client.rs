//! `CLIENT`.

use std::fmt::Write;
use std::time::Duration;

use super::connection::check_name;
use crate::core::call::{Call, is, text};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::{integer, parse_integer};
use crate::core::session::{Session, SessionId};
use crate::core::state::{Pause, State};
use crate::core::{Bytes, Reply};

pub(super) fn id(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    let id = i64::try_from(call.caller.session.0);
    Ok(Reply::Integer(id.unwrap_or(i64::MAX)))
}

pub(super) fn setname(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    check_name(&arguments[2])?;
    if let Some(session) = call.session() {
        session.name.clone_from(&arguments[2]);
    }
    Ok(Reply::ok())
}

pub(super) fn getname(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    let name = call.session().map(|session| session.name.clone());
    Ok(Reply::bulk_or_null(name.filter(|name| !name.is_empty())))
}

pub(super) fn setinfo(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (option, value) = (&arguments[2], &arguments[3]);
    let is_name = is(option, "LIB-NAME");
    if !is_name && !is(option, "LIB-VER") {
        let option = text(option);
        return Err(Failure::new(format!("ERR Unrecognized option '{option}'")));
    }
    if !value.iter().all(u8::is_ascii_graphic) {
        let option = if is_name { "lib-name" } else { "lib-ver" };
        let text = format!("ERR {option} cannot contain spaces, newlines or special characters.");
        return Err(Failure::new(text));
    }
    if let Some(session) = call.session() {
        let target = if is_name {
            &mut session.library
        } else {
            &mut session.library_version
        };
        target.clone_from(value);
    }
    Ok(Reply::ok())
}

/// What changes nothing here: nothing is evicted, and there is no order of use.
pub(super) fn no_evict(_call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if is(&arguments[2], "ON") || is(&arguments[2], "OFF") {
        return Ok(Reply::ok());
    }
    Err(Failure::SYNTAX)
}

/// Accepts the command. This server sends no invalidation messages.
pub(super) fn tracking(_call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if is(&arguments[2], "OFF") {
        return Ok(Reply::ok());
    }
    let text = "ERR CLIENT TRACKING is not supported by this Redis in memory";
    Err(Failure::fixed(text))
}

pub(super) fn pause(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let only_writes = match &arguments[3..] {
        [] => false,
        [word] if is(word, "ALL") => false,
        [word] if is(word, "WRITE") => true,
        _ => {
            let text = "ERR CLIENT PAUSE mode must be WRITE or ALL";
            return Err(Failure::fixed(text));
        }
    };
    let wrong = Failure::fixed("ERR timeout is not an integer or out of range");
    let ms = integer(&arguments[2]).ok_or(wrong)?;
    let negative = Failure::fixed("ERR timeout is negative");
    let ms = u64::try_from(ms).map_err(|_| negative)?;
    let until = call.state.now.saturating_add(Duration::from_millis(ms));
    call.state.pause = Some(Pause { until, only_writes });
    Ok(Reply::ok())
}

pub(super) fn unpause(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    call.state.pause = None;
    Ok(Reply::ok())
}

/// One line of `CLIENT LIST`.
fn line(state: &State, id: SessionId, session: &Session) -> String {
    let name = String::from_utf8_lossy(&session.name);
    let flags = if session.listens() {
        "P"
    } else if session.transaction.is_some() {
        "x"
    } else {
        "N"
    };
    let queued = session
        .transaction
        .as_ref()
        .map(|queue| queue.commands.len());
    let queued = queued.map_or("-1".to_owned(), |queued| queued.to_string());
    let age = |since: Duration| state.now.saturating_sub(since).as_secs();
    let user = session.user.as_deref().unwrap_or("(superuser)");
    let mut line = format!(
        "id={id} addr={} laddr=127.0.0.1:{}",
        session.address, state.options.port
    );
    // Writing to a string cannot fail.
    let _ = write!(
        line,
        " fd={} name={name} age={} idle={} flags={flags} db={}",
        7 + id.0,
        age(session.since),
        age(session.last_at),
        session.db
    );
    let _ = write!(
        line,
        " sub={} psub={} ssub={} multi={queued} qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=16384 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r",
        session.channels.len(),
        session.patterns.len(),
        session.shard_channels.len(),
    );
    let _ = writeln!(
        line,
        " cmd={} user={user} redir=-1 resp={} lib-name={} lib-ver={}",
        session.last_command,
        session.resp,
        String::from_utf8_lossy(&session.library),
        String::from_utf8_lossy(&session.library_version),
    );
    line
}

pub(super) fn info(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    let id = call.caller.session;
    let session = call.state.sessions.get(&id);
    let line = session.map(|session| line(call.state, id, session));
    Ok(Reply::Verbatim(line.unwrap_or_default().into()))
}

/// Which connections are meant.
type Choice = Box<dyn Fn(SessionId, &Session) -> bool>;

pub(super) fn list(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let chosen: Choice = match &arguments[2..] {
        [] => Box::new(|_, _| true),
        [word, kind] if is(word, "TYPE") => {
            let kind = ConnectionType::parse(kind)?;
            Box::new(move |_, session| kind.is(session))
        }
        [word, ids @ ..] if is(word, "ID") && !ids.is_empty() => {
            let wrong = Failure::fixed("ERR Invalid client ID");
            let ids = ids.iter().map(|id| integer(id).ok_or(wrong.clone()));
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            Box::new(move |id, _| ids.iter().any(|wanted| u64::try_from(*wanted) == Ok(id.0)))
        }
        _ => return Err(Failure::SYNTAX),
    };
    let sessions = call
        .state
        .sessions
        .iter()
        .filter(|(id, session)| chosen(**id, session));
    let lines = sessions.map(|(id, session)| line(call.state, *id, session));
    Ok(Reply::Verbatim(lines.collect::<String>().into()))
}

/// A type of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionType {
    Normal,
    Listener,
    /// There are none of these.
    Server,
}

impl ConnectionType {
    fn parse(word: &[u8]) -> Result<Self, Failure> {
        Ok(match word.to_ascii_lowercase().as_slice() {
            b"normal" => Self::Normal,
            b"pubsub" => Self::Listener,
            b"master" | b"replica" | b"slave" => Self::Server,
            _ => {
                let word = text(word);
                return Err(Failure::new(format!("ERR Unknown client type '{word}'")));
            }
        })
    }

    fn is(self, session: &Session) -> bool {
        let listens = session.listens();
        self == if listens {
            Self::Listener
        } else {
            Self::Normal
        }
    }
}

/// Which connections `CLIENT KILL` means.
struct Victims {
    id: Option<i64>,
    kind: Option<ConnectionType>,
    user: Option<String>,
    address: Option<String>,
    local_address: Option<String>,
    spares_caller: bool,
}

impl Victims {
    fn parse(filters: &[Bytes], state: &State) -> Result<Self, Failure> {
        let mut victims = Self {
            id: None,
            kind: None,
            user: None,
            address: None,
            local_address: None,
            spares_caller: true,
        };
        for pair in filters.chunks(2) {
            let [word, value] = pair else {
                return Err(Failure::SYNTAX);
            };
            if is(word, "ID") {
                let id = integer(value).filter(|id| *id > 0);
                let wrong = Failure::fixed("ERR client-id should be greater than 0");
                victims.id = Some(id.ok_or(wrong)?);
            } else if is(word, "TYPE") {
                victims.kind = Some(ConnectionType::parse(value)?);
            } else if is(word, "USER") {
                let user = text(value);
                if !state.users.contains(&user) {
                    return Err(Failure::new(format!("ERR No such user '{user}'")));
                }
                victims.user = Some(user);
            } else if is(word, "ADDR") {
                victims.address = Some(text(value));
            } else if is(word, "LADDR") {
                victims.local_address = Some(text(value));
            } else if is(word, "SKIPME") && (is(value, "YES") || is(value, "NO")) {
                victims.spares_caller = is(value, "YES");
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Ok(victims)
    }

    fn include(&self, id: SessionId, session: &Session, local: &str) -> bool {
        let is_id = self
            .id
            .is_none_or(|wanted| u64::try_from(wanted) == Ok(id.0));
        let is_kind = self.kind.is_none_or(|kind| kind.is(session));
        let is_user = self.user.is_none() || self.user == session.user;
        let is_address = self
            .address
            .as_ref()
            .is_none_or(|address| *address == session.address);
        let is_local = self
            .local_address
            .as_ref()
            .is_none_or(|address| address == local);
        is_id && is_kind && is_user && is_address && is_local
    }
}

pub(super) fn kill(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let is_old = arguments.len() == 3;
    let victims = if is_old {
        Victims {
            id: None,
            kind: None,
            user: None,
            address: Some(text(&arguments[2])),
            local_address: None,
            spares_caller: false,
        }
    } else {
        Victims::parse(&arguments[2..], call.state)?
    };
    let caller = call.caller.session;
    let local = format!("127.0.0.1:{}", call.state.options.port);
    let sessions = call.state.sessions.iter().filter(|(id, session)| {
        victims.include(**id, session, &local) && !(victims.spares_caller && **id == caller)
    });
    let ids: Vec<_> = sessions.map(|(id, _)| *id).collect();
    for id in &ids {
        call.state.kill(*id, caller);
    }
    if !is_old {
        return Ok(Reply::count(ids.len()));
    }
    if ids.is_empty() {
        return Err(Failure::fixed("ERR No such client"));
    }
    Ok(Reply::ok())
}

/// Nothing blocks here, so nobody is woken.
pub(super) fn unblock(_call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    parse_integer(&arguments[2])?;
    Ok(Reply::Integer(0))
}
