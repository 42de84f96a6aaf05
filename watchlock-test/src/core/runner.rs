//! Runs what has been admitted: plain commands, scripts and transactions.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::call::Caller;
use super::commands::{Action, Command, Scripting};
use super::dispatch::{self, Admission, Lookup};
use super::failure::{Failure, Outcome};
use super::lua::{Declared, Script, Scripts};
use super::number::integer;
use super::reply::Reply;
use super::script_call::ScriptRun;
use super::session::SessionId;
use super::state::State;
use super::store::Ran;
use super::{Bytes, call};

/// In hexadecimal digits.
const DIGEST_LEN: usize = 40;

/// The owner has no connection.
const OWNER: SessionId = SessionId(0);

/// The state, shared with the functions that scripts call, and the scripts.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) scripts: Scripts,
}

/// What came of a command.
struct Finished {
    outcome: Outcome,
    db: usize,
    calls: usize,
    blocks: Duration,
}

impl Finished {
    fn plain(outcome: Outcome, db: usize) -> Self {
        Self {
            outcome,
            db,
            calls: 0,
            blocks: Duration::ZERO,
        }
    }
}

impl Runner {
    /// Runs the next command of a session, or refuses it with this error.
    pub(super) fn run_next(&mut self, id: SessionId, error: Option<&str>) -> Option<Ran> {
        let mut state = self.state.lock();
        if !dispatch::is_ready(&mut state, id) {
            return None;
        }
        let now = state.now;
        let session = state.sessions.get_mut(&id)?;
        let arguments = session.inbox.take();
        session.last_at = now;
        let db = session.db;
        let mut ran = Ran {
            command: named(&arguments),
            calls: 0,
            blocks: Duration::ZERO,
        };
        let admission = match error {
            Some(error) => Admission::Refuse(Failure::new(error)),
            None => dispatch::admit(&mut state, id, &arguments),
        };
        let reply = match admission {
            Admission::Refuse(failure) => failure.into(),
            Admission::Queue => queue(&mut state, id, arguments),
            Admission::Run(command) => {
                if let Some(session) = state.sessions.get_mut(&id) {
                    session.last_command = command.name;
                }
                drop(state);
                let caller = Caller {
                    session: id,
                    db,
                    is_in_transaction: false,
                    is_owner: false,
                };
                let done = self.run(command, caller, &arguments);
                state = self.state.lock();
                if let Some(session) = state.sessions.get_mut(&id) {
                    session.db = done.db;
                }
                (ran.calls, ran.blocks) = (done.calls, done.blocks);
                done.outcome.unwrap_or_else(Reply::from)
            }
        };
        answer(&mut state, id, &reply);
        Some(ran)
    }

    /// Runs a command for the server's owner.
    pub(super) fn run_for_owner(&mut self, arguments: &[Bytes]) -> Reply {
        let command = match dispatch::look_up(arguments) {
            Lookup::Found(command) => command,
            Lookup::WrongArity(command) => return Failure::wrong_arity(command.name).into(),
            Lookup::Unknown(failure) => return failure.into(),
        };
        let caller = Caller {
            session: OWNER,
            db: 0,
            is_in_transaction: false,
            is_owner: true,
        };
        self.run(command, caller, arguments)
            .outcome
            .unwrap_or_else(Reply::from)
    }

    fn run(&mut self, command: &'static Command, caller: Caller, arguments: &[Bytes]) -> Finished {
        match command.action {
            Action::Plain(action) | Action::Either(action) => {
                let mut state = self.state.lock();
                let done = dispatch::perform(&mut state, command, action, caller, arguments);
                Finished {
                    outcome: done.outcome,
                    db: done.db,
                    calls: 0,
                    blocks: done.blocks,
                }
            }
            Action::Script(scripting) => {
                let (outcome, calls) = self.script(scripting, caller, arguments);
                self.count(command, caller, &outcome);
                Finished {
                    calls,
                    ..Finished::plain(outcome, caller.db)
                }
            }
            Action::Exec => {
                let done = self.exec(caller);
                self.count(command, caller, &done.outcome);
                done
            }
            Action::Container => Finished::plain(Err(Failure::SYNTAX), caller.db),
        }
    }

    fn count(&self, command: &Command, caller: Caller, outcome: &Outcome) {
        if !caller.is_owner {
            let failure = outcome.as_ref().err();
            self.state.lock().statistics.ran(command.name, failure);
        }
    }

    /// Runs what `MULTI` queued, unless something is against it.
    fn exec(&mut self, mut caller: Caller) -> Finished {
        let (transaction, is_stale) = {
            let mut state = self.state.lock();
            let session = state.sessions.get_mut(&caller.session);
            let taken = session.and_then(|session| {
                let transaction = session.transaction.take()?;
                Some((transaction, std::mem::take(&mut session.watched)))
            });
            let (transaction, watched) = taken.unzip();
            let watched = watched.unwrap_or_default();
            let is_stale = watched.iter().any(|watched| {
                let db = state.databases.get(watched.db);
                db.is_none_or(|db| db.revision(&watched.key) != watched.revision)
            });
            (transaction, is_stale)
        };
        let Some(transaction) = transaction else {
            return Finished::plain(Err(Failure::fixed("ERR EXEC without MULTI")), caller.db);
        };
        if transaction.is_broken {
            let text = "EXECABORT Transaction discarded because of previous errors.";
            return Finished::plain(Err(Failure::fixed(text)), caller.db);
        }
        if is_stale {
            return Finished::plain(Ok(Reply::NullArray), caller.db);
        }
        let mut calls = transaction.commands.len();
        let mut replies = Vec::new();
        caller.is_in_transaction = true;
        for arguments in &transaction.commands {
            let Lookup::Found(command) = dispatch::look_up(arguments) else {
                continue;
            };
            let done = self.run(command, caller, arguments);
            caller.db = done.db;
            calls += done.calls;
            replies.push(done.outcome.unwrap_or_else(Reply::from));
        }
        Finished {
            calls,
            ..Finished::plain(Ok(Reply::Array(replies)), caller.db)
        }
    }

    /// Returns the outcome, and how many commands a script called.
    fn script(
        &mut self,
        scripting: Scripting,
        caller: Caller,
        arguments: &[Bytes],
    ) -> (Outcome, usize) {
        let outcome = match scripting {
            Scripting::Run {
                by_digest,
                is_read_only,
            } => return self.evaluate(by_digest, is_read_only, caller, arguments),
            Scripting::Load => {
                let loaded = self.scripts.load(&arguments[2], &self.state);
                loaded.map(|(digest, _)| Reply::bulk(digest))
            }
            Scripting::Exists => Ok(Reply::Array(
                arguments[2..]
                    .iter()
                    .map(|digest| Reply::flag(self.known(digest).is_some()))
                    .collect(),
            )),
            Scripting::Flush => match &arguments[2..] {
                [word] if !call::is(word, "SYNC") && !call::is(word, "ASYNC") => {
                    let text = "ERR SCRIPT FLUSH only support SYNC|ASYNC option";
                    Err(Failure::fixed(text))
                }
                [] | [_] => self.scripts.flush().map(|()| Reply::ok()),
                _ => {
                    let text = "ERR SCRIPT FLUSH only support SYNC|ASYNC option";
                    Err(Failure::fixed(text))
                }
            },
        };
        (outcome, 0)
    }

    fn known(&self, digest: &[u8]) -> Option<(String, Script)> {
        let digest = String::from_utf8_lossy(digest).to_ascii_lowercase();
        let script = self.scripts.find(&digest)?;
        Some((digest, script))
    }

    fn evaluate(
        &mut self,
        by_digest: bool,
        is_read_only: bool,
        caller: Caller,
        arguments: &[Bytes],
    ) -> (Outcome, usize) {
        let prepared = self.prepare(by_digest, is_read_only, caller, arguments);
        let (digest, script, run, keys) = match prepared {
            Ok(prepared) => prepared,
            Err(failure) => return (Err(failure), 0),
        };
        self.state.lock().script = Some(run);
        let given = arguments[3..].split_at(keys);
        let outcome = self.scripts.run(&digest, script, given, &self.state);
        let run = self.state.lock().script.take();
        // An error that a script returns is the error of the command.
        let outcome = outcome.and_then(|reply| match reply {
            Reply::Error(text) => Err(Failure::new(text)),
            reply => Ok(reply),
        });
        (outcome, run.map_or(0, |run| run.calls))
    }

    /// Finds the script, and checks whether it may run now; also returns how many arguments are keys.
    fn prepare(
        &mut self,
        by_digest: bool,
        is_read_only: bool,
        caller: Caller,
        arguments: &[Bytes],
    ) -> Result<(String, Script, ScriptRun, usize), Failure> {
        let missing = Failure::fixed("NOSCRIPT No matching script. Please use EVAL.");
        if by_digest && arguments[1].len() != DIGEST_LEN {
            return Err(missing);
        }
        let declared = if by_digest {
            self.known(&arguments[1]).map(|(_, script)| script.declared)
        } else {
            Declared::of(&arguments[1])
        };
        if let Some(declared) = declared.filter(|_| !caller.is_owner) {
            check_declared(&self.state.lock(), declared)?;
        }
        let keys = integer(&arguments[2]).ok_or(Failure::NOT_AN_INTEGER)?;
        let negative = Failure::fixed("ERR Number of keys can't be negative");
        let keys = usize::try_from(keys).map_err(|_| negative)?;
        if keys > arguments.len() - 3 {
            let text = "ERR Number of keys can't be greater than number of args";
            return Err(Failure::fixed(text));
        }
        let (digest, script) = if by_digest {
            self.known(&arguments[1]).ok_or(missing)?
        } else {
            self.scripts.load(&arguments[1], &self.state)?
        };
        let declared = script.declared;
        if declared.is_there && is_read_only && !declared.writes_nothing {
            let text = "ERR Can not execute a script with write flag using *_ro command.";
            return Err(Failure::fixed(text));
        }
        let run = ScriptRun {
            session: caller.session,
            db: caller.db,
            resp: 2,
            is_read_only: is_read_only || declared.writes_nothing,
            ignores_memory: declared.allows_oom,
            has_written: false,
            calls: 0,
            is_owner: caller.is_owner,
        };
        Ok((digest, script, run, keys))
    }
}

/// Whether a script that declares this may run now. One that declares nothing may run up to its first write.
fn check_declared(state: &State, declared: Declared) -> Result<(), Failure> {
    if !declared.is_there || declared.writes_nothing {
        return Ok(());
    }
    if state.is_out_of_memory() && !declared.allows_oom {
        return Err(dispatch::OUT_OF_MEMORY);
    }
    if state.lacks_replicas() {
        return Err(dispatch::NO_REPLICAS);
    }
    if state.condition.is_read_only {
        return Err(dispatch::READ_ONLY);
    }
    Ok(())
}

fn named(arguments: &[Bytes]) -> String {
    match dispatch::look_up(arguments) {
        Lookup::Found(command) | Lookup::WrongArity(command) => command.name.to_owned(),
        Lookup::Unknown(_) => {
            let name = arguments.first().map(Vec::as_slice).unwrap_or_default();
            String::from_utf8_lossy(name).to_lowercase()
        }
    }
}

fn queue(state: &mut State, id: SessionId, arguments: Vec<Bytes>) -> Reply {
    let session = state.sessions.get_mut(&id);
    if let Some(transaction) = session.and_then(|session| session.transaction.as_mut()) {
        transaction.commands.push(arguments);
    }
    Reply::status("QUEUED")
}

fn answer(state: &mut State, id: SessionId, reply: &Reply) {
    let Some(session) = state.sessions.get_mut(&id) else {
        return;
    };
    session.reply(reply);
    state.ready.insert(id);
    if session.is_leaving {
        state.leave(id);
    }
}
