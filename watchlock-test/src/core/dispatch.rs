//! From the bytes of a connection to a command that runs.

use std::time::Duration;

use super::call::Call;
use super::commands;
use super::failure::{Failure, Outcome};
use super::session::SessionId;
use super::state::State;
use super::store::Ran;
use super::{Bytes, Reply};

/// The session of the server's owner, which no connection has.
const OWNER: SessionId = SessionId(0);

/// The next command of a session.
pub(super) fn peek(state: &mut State, id: SessionId) -> Option<Vec<Bytes>> {
    let session = state.sessions.get_mut(&id)?;
    match session.inbox.peek(session.user.is_some()) {
        Ok(arguments) => arguments.map(<[_]>::to_vec),
        Err(wrong) => {
            let error = format!("ERR Protocol error: {wrong}");
            session.reply(&Reply::Error(error.into()));
            state.leave(id);
            None
        }
    }
}

/// Takes the next command of a session.
pub(super) fn take(state: &mut State, id: SessionId) -> Option<Vec<Bytes>> {
    peek(state, id)?;
    Some(state.sessions.get_mut(&id)?.inbox.take())
}

pub(super) fn run(state: &mut State, id: SessionId, arguments: &[Bytes]) -> Ran {
    let db = state.sessions.get(&id).map_or(0, |session| session.db);
    let reply = perform(state, id, db, arguments).unwrap_or_else(Reply::from);
    answer(state, id, &reply);
    ran(arguments)
}

pub(super) fn refuse(state: &mut State, id: SessionId, arguments: &[Bytes], error: &str) -> Ran {
    answer(state, id, &Reply::Error(error.into()));
    ran(arguments)
}

pub(super) fn run_for_owner(state: &mut State, arguments: &[Bytes]) -> Reply {
    perform(state, OWNER, 0, arguments).unwrap_or_else(Reply::from)
}

fn ran(arguments: &[Bytes]) -> Ran {
    let name = arguments.first().map(Vec::as_slice).unwrap_or_default();
    Ran {
        command: String::from_utf8_lossy(name).to_lowercase(),
        calls: 0,
        blocks: Duration::ZERO,
    }
}

fn answer(state: &mut State, id: SessionId, reply: &Reply) {
    if let Some(session) = state.sessions.get_mut(&id) {
        session.reply(reply);
        state.ready.insert(id);
    }
}

fn perform(state: &mut State, id: SessionId, db: usize, arguments: &[Bytes]) -> Outcome {
    let name = arguments.first().map(Vec::as_slice).unwrap_or_default();
    let command = commands::find(name).ok_or_else(|| {
        let name = String::from_utf8_lossy(name);
        Failure::new(format!("ERR unknown command '{name}', with args beginning with: "))
    })?;
    if !command.takes(arguments.len()) {
        return Err(Failure::wrong_arity(command.name));
    }
    let mut call = Call {
        state,
        command,
        session: id,
        db,
        is_in_script: false,
    };
    (command.run)(&mut call, arguments)
}
