//! Commands that a script calls.

use super::acl::Denied;
use super::call::Caller;
use super::commands::{Action, Command};
use super::dispatch::{self, Lookup};
use super::failure::{Failure, Outcome};
use super::session::SessionId;
use super::state::State;
use super::{Bytes, acl};

/// A script that runs.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each has its own meaning and its own time
pub(super) struct ScriptRun {
    /// Who runs it.
    pub(super) session: SessionId,
    pub(super) db: usize,
    /// Of the protocol in which it gets replies.
    pub(super) resp: u8,
    pub(super) is_read_only: bool,
    /// It may need memory when there is none.
    pub(super) ignores_memory: bool,
    /// It has written. From then on nothing that a server's condition forbids is refused any more, as half of a script
    /// would be worse.
    pub(super) has_written: bool,
    pub(super) calls: usize,
    /// The owner's scripts are not checked.
    pub(super) is_owner: bool,
}

/// Runs a command for the script that runs now.
pub(super) fn call(state: &mut State, arguments: &[Bytes]) -> Outcome {
    let command = match dispatch::look_up(arguments) {
        Lookup::Found(command) => command,
        Lookup::WrongArity(_) => {
            let text = "ERR Wrong number of args calling Redis command from script";
            return rejected(state, Failure::fixed(text));
        }
        Lookup::Unknown(_) => {
            let text = "ERR Unknown Redis command called from script";
            return rejected(state, Failure::fixed(text));
        }
    };
    if let Err(failure) = admit(state, command, arguments) {
        return rejected(state, failure);
    }
    let Some(run) = &mut state.script else {
        return Err(Failure::fixed("ERR No script runs"));
    };
    run.calls += 1;
    let caller = Caller {
        session: run.session,
        db: run.db,
        is_in_transaction: false,
        is_owner: run.is_owner,
    };
    let (Action::Plain(action) | Action::Either(action)) = command.action else {
        let text = "ERR This Redis command is not allowed from script";
        return rejected(state, Failure::fixed(text));
    };
    let done = dispatch::perform(state, command, action, caller, arguments);
    if let Some(run) = &mut state.script {
        run.db = done.db;
    }
    done.outcome
}

fn rejected(state: &mut State, failure: Failure) -> Outcome {
    state.statistics.rejected(None, &failure);
    Err(failure)
}

/// Whether the script may call this command now.
fn admit(state: &mut State, command: &Command, arguments: &[Bytes]) -> Result<(), Failure> {
    if !command.flags.is_for_scripts() {
        let text = "ERR This Redis command is not allowed from script";
        return Err(Failure::fixed(text));
    }
    let Some(run) = &state.script else {
        return Ok(());
    };
    if run.is_owner {
        return Ok(());
    }
    check_rights(state, run.session, command, arguments)?;
    let writes = command.flags.writes();
    if run.is_read_only && command.flags.is_replicated() {
        let text = "ERR Write commands are not allowed from read-only scripts.";
        return Err(Failure::fixed(text));
    }
    if !run.has_written {
        if writes && state.condition.is_read_only {
            return Err(dispatch::READ_ONLY);
        }
        if writes && state.lacks_replicas() {
            return Err(dispatch::NO_REPLICAS);
        }
        if command.flags.needs_memory() && state.is_out_of_memory() && !run.ignores_memory {
            return Err(dispatch::OUT_OF_MEMORY);
        }
    }
    if let Some(run) = &mut state.script {
        run.has_written |= writes;
    }
    Ok(())
}

fn check_rights(
    state: &State,
    session: SessionId,
    command: &Command,
    arguments: &[Bytes],
) -> Result<(), Failure> {
    let session = state.sessions.get(&session);
    let name = session.and_then(|session| session.user.as_deref());
    let user = state.users.get(name.unwrap_or(acl::DEFAULT));
    let denied = match user.map(|user| user.check(command, arguments)) {
        Some(Ok(())) => return Ok(()),
        Some(Err(denied)) => denied,
        None => Denied::Command,
    };
    Err(Failure::fixed(match denied {
        Denied::Command => "ERR The user executing the script can't run this command or subcommand",
        Denied::Key => {
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments"
        }
        Denied::Channel => {
            "ERR The user executing the script can't publish to the channel mentioned in the command"
        }
    }))
}
