//! From the bytes of a connection to a command that may run.

use std::time::Duration;

use super::Bytes;
use super::acl::Denied;
use super::call::{Call, Caller};
use super::commands::{self, Action, Command, Flags};
use super::failure::{Failure, Outcome};
use super::reply::Reply;
use super::session::SessionId;
use super::state::State;

pub(super) const OUT_OF_MEMORY: Failure =
    Failure::fixed("OOM command not allowed when used memory > 'maxmemory'.");
pub(super) const READ_ONLY: Failure =
    Failure::fixed("READONLY You can't write against a read only replica.");
pub(super) const NO_REPLICAS: Failure =
    Failure::fixed("NOREPLICAS Not enough good replicas to write.");

/// Whether the next command of a session has arrived and may run now.
pub(super) fn is_ready(state: &mut State, id: SessionId) -> bool {
    let Some(session) = state.sessions.get_mut(&id) else {
        return false;
    };
    match session.inbox.peek(session.user.is_some()) {
        Ok(None) => false,
        Ok(Some(arguments)) => {
            let is_paused = state.pause.is_some_and(|pause| {
                state.now < pause.until && (!pause.only_writes || may_write(arguments))
            });
            !is_paused
        }
        Err(wrong) => {
            let error = format!("ERR Protocol error: {wrong}");
            session.reply(&Reply::Error(error.into()));
            state.leave(id);
            false
        }
    }
}

/// What `CLIENT PAUSE WRITE` holds back.
fn may_write(arguments: &[Bytes]) -> bool {
    let Lookup::Found(command) = look_up(arguments) else {
        return false;
    };
    command.flags.is_replicated() || matches!(command.action, Action::Script(_) | Action::Exec)
}

/// What the first words of a command mean.
pub(super) enum Lookup {
    Found(&'static Command),
    WrongArity(&'static Command),
    Unknown(Failure),
}

pub(super) fn look_up(arguments: &[Bytes]) -> Lookup {
    let Some(command) = arguments.first().and_then(|name| commands::find(name)) else {
        return Lookup::Unknown(unknown(arguments));
    };
    let name = match (&command.action, arguments.get(1)) {
        (Action::Container | Action::Either(_), Some(name)) => name,
        (Action::Container, None) => return Lookup::WrongArity(command),
        _ => return checked(command, arguments),
    };
    if let Some(command) = commands::find_in(command, name) {
        return checked(command, arguments);
    }
    let (name, container) = (String::from_utf8_lossy(name), command.name.to_uppercase());
    let text = format!("ERR unknown subcommand '{name}'. Try {container} HELP.");
    Lookup::Unknown(Failure::new(text))
}

fn checked(command: &'static Command, arguments: &[Bytes]) -> Lookup {
    if command.takes(arguments.len()) {
        Lookup::Found(command)
    } else {
        Lookup::WrongArity(command)
    }
}

/// In Redis' words, with the beginning of the arguments.
fn unknown(arguments: &[Bytes]) -> Failure {
    const SHOWN: usize = 128;
    let name = arguments.first().map(Vec::as_slice).unwrap_or_default();
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(&name[..name.len().min(SHOWN)]);
    text.extend_from_slice(b"', with args beginning with: ");
    let mut shown = Bytes::new();
    for argument in arguments.iter().skip(1) {
        let left = SHOWN.saturating_sub(shown.len());
        if left == 0 {
            break;
        }
        shown.push(b'\'');
        shown.extend_from_slice(&argument[..argument.len().min(left)]);
        shown.extend_from_slice(b"' ");
    }
    text.extend_from_slice(&shown);
    Failure::new(text)
}

/// What is to be done with a command.
pub(super) enum Admission {
    Run(&'static Command),
    /// A transaction is being put together.
    Queue,
    Refuse(Failure),
}

/// Checks in the order in which Redis does, and counts what is refused.
pub(super) fn admit(state: &mut State, id: SessionId, arguments: &[Bytes]) -> Admission {
    let (command, failure) = match look_up(arguments) {
        Lookup::Found(command) => (Some(command), check(state, id, command, arguments).err()),
        Lookup::WrongArity(command) => (Some(command), Some(Failure::wrong_arity(command.name))),
        Lookup::Unknown(failure) => (None, Some(failure)),
    };
    let transaction = state
        .sessions
        .get_mut(&id)
        .and_then(|session| session.transaction.as_mut());
    match (command, failure) {
        (Some(command), None) => {
            let ends = ["exec", "discard", "multi", "watch", "quit", "reset"];
            let is_queued = transaction.is_some() && !ends.contains(&command.name);
            if is_queued {
                Admission::Queue
            } else {
                Admission::Run(command)
            }
        }
        (command, failure) => {
            if let Some(transaction) = transaction {
                transaction.is_broken = true;
            }
            let failure = failure.unwrap_or(Failure::SYNTAX);
            let failure = match command {
                Some(command) if command.name == "exec" => abort(state, id, &failure),
                _ => failure,
            };
            state
                .statistics
                .rejected(command.map(|command| command.name), &failure);
            Admission::Refuse(failure)
        }
    }
}

/// A transaction ends with its refused `EXEC`.
fn abort(state: &mut State, id: SessionId, failure: &Failure) -> Failure {
    if let Some(session) = state.sessions.get_mut(&id) {
        session.transaction = None;
        session.watched.clear();
    }
    let start = b"EXECABORT Transaction discarded because of: ";
    Failure::new([start, failure.without_code()].concat())
}

fn check(
    state: &State,
    id: SessionId,
    command: &'static Command,
    arguments: &[Bytes],
) -> Result<(), Failure> {
    let Some(session) = state.sessions.get(&id) else {
        return Ok(());
    };
    let flags = command.flags;
    match &session.user {
        None if flags.needs_password() => {
            return Err(Failure::fixed("NOAUTH Authentication required."));
        }
        None => {}
        Some(user) => check_rights(state, user, command, arguments)?,
    }
    let transaction = session.transaction.as_ref();
    // What is put together may take any amount of memory.
    let adds_to_transaction =
        transaction.is_some() && !["exec", "discard", "quit", "reset"].contains(&command.name);
    let runs = |does: fn(Flags) -> bool| {
        let mut queued = transaction
            .filter(|_| command.name == "exec")
            .into_iter()
            .flat_map(|queue| &queue.commands);
        does(flags)
            || queued.any(
                |arguments| matches!(look_up(arguments), Lookup::Found(command) if does(command.flags)),
            )
    };
    let writes = runs(Flags::writes);
    let needs_memory = adds_to_transaction || runs(Flags::needs_memory);
    if needs_memory && state.is_out_of_memory() {
        return Err(OUT_OF_MEMORY);
    }
    if writes && state.lacks_replicas() {
        return Err(NO_REPLICAS);
    }
    if writes && state.condition.is_read_only {
        return Err(READ_ONLY);
    }
    if session.resp == 2 && session.listens() && !is_for_listeners(command.name) {
        let name = command.name;
        let text = "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";
        return Err(Failure::new(format!("ERR Can't execute '{name}': {text}")));
    }
    if state.condition.is_loading && !flags.runs_while_loading() {
        let text = "LOADING Redis is loading the dataset in memory";
        return Err(Failure::fixed(text));
    }
    if state.condition.is_busy && !flags.runs_while_busy() {
        let text = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
        return Err(Failure::fixed(text));
    }
    Ok(())
}

fn is_for_listeners(name: &str) -> bool {
    name.ends_with("subscribe") || matches!(name, "ping" | "quit" | "reset")
}

fn check_rights(
    state: &State,
    user: &str,
    command: &Command,
    arguments: &[Bytes],
) -> Result<(), Failure> {
    let denied = match state
        .users
        .get(user)
        .map(|user| user.check(command, arguments))
    {
        Some(Ok(())) => return Ok(()),
        Some(Err(denied)) => denied,
        None => Denied::Command,
    };
    let start = "NOPERM this user has no permissions to";
    Err(Failure::new(match denied {
        Denied::Command => format!("{start} run the '{}' command", command.name),
        Denied::Key => format!("{start} access one of the keys used as arguments"),
        Denied::Channel => format!("{start} access one of the channels used as arguments"),
    }))
}

/// What came of a command.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// The database that is selected now.
    pub(super) db: usize,
    pub(super) blocks: Duration,
}

/// Runs a command that has been admitted, and counts it.
pub(super) fn perform(
    state: &mut State,
    command: &'static Command,
    action: fn(&mut Call<'_>, &[Bytes]) -> Outcome,
    caller: Caller,
    arguments: &[Bytes],
) -> Done {
    let mut call = Call {
        state,
        command,
        caller,
        blocks: Duration::ZERO,
    };
    let outcome = action(&mut call, arguments);
    let (db, blocks) = (call.caller.db, call.blocks);
    if !caller.is_owner {
        state.statistics.ran(command.name, outcome.as_ref().err());
    }
    Done {
        outcome,
        db,
        blocks,
    }
}
