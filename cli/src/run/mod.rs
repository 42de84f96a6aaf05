//! `run`: takes the lock, or a permit of a semaphore (`taken`), runs the command, releases the lock.
//!
//! 1. The command ends before anybody else can take the lock (`deadline`).
//! 2. It does not outlive `run` (`child`).
//! 3. Signals end the wait, and are passed on to the command (`signals`).
//! 4. Nothing here waits for stderr (`messages`).
//!
//! While the command runs, one loop looks at all that may happen: it ends, a signal arrives, the lock is lost, time passes.

mod child;
mod deadline;
mod signals;
mod taken;

use std::io;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use watchlock::{Error, Lease, LockGuard};

use crate::connect::{Holding, Locks};
use crate::messages::Messages;
use crate::options::RunOptions;
use crate::show::look;
use crate::status::{Failure, Status, with_causes};
use crate::text::shown;
pub(crate) use child::shim;
use child::{Child, End};
use deadline::Deadline;
use signals::Signals;
use taken::{Taken, Wanted};

/// The names that the processes above hold by `run`, as a list in JSON.
const HELD: &str = "WATCHLOCK_HELD";
/// The longest grace that is not asked for.
const GRACE: Duration = Duration::from_secs(5);
/// How often to look for children of a command that has ended.
const CHILDREN: Duration = Duration::from_millis(20);
/// How long to look for whom it waits.
const LOOK: Duration = Duration::from_secs(1);
/// How long the end may take, if Redis does not answer.
const SHUTDOWN: Duration = Duration::from_secs(3);

pub(crate) async fn run(options: &RunOptions) -> Status {
    let messages = Messages::new(options.json, options.verbose);
    let status = begin(options, &messages).await.unwrap_or_else(|failure| {
        messages.failure(&failure);
        failure.status
    });
    messages.finish();
    status
}

async fn begin(options: &RunOptions, messages: &Messages) -> Result<Status, Failure> {
    Run::new(options, messages)?.execute().await
}

struct Run<'a> {
    options: &'a RunOptions,
    messages: &'a Messages,
    wait: Option<Duration>,
    grace: Duration,
    /// The names that are held already.
    held: Vec<String>,
    signals: Signals,
    started: Instant,
}

impl<'a> Run<'a> {
    fn new(options: &'a RunOptions, messages: &'a Messages) -> Result<Self, Failure> {
        options.server.check(options.kind)?;
        let held = names_held(std::env::var(HELD).ok().as_deref())?;
        let wait = options.wait.or(options.nonblock.then_some(Duration::ZERO));
        if held.contains(&options.key()) {
            let name = &options.name;
            let text = format!("{name:?} is held by a `run` that this one is under");
            match (options.permits, wait) {
                (None, _) => return Err(Failure::usage(text)),
                // Commands that all wait for a second permit of a semaphore without a free one would never end.
                (Some(_), None) => {
                    let text =
                        format!("{text}; it takes a second permit only with --wait or --nonblock");
                    return Err(Failure::usage(text));
                }
                (Some(_), Some(_)) => {}
            }
        }
        Ok(Self {
            options,
            messages,
            wait,
            grace: options.grace()?,
            held,
            signals: Signals::catch().map_err(internal)?,
            started: Instant::now(),
        })
    }

    async fn execute(mut self) -> Result<Status, Failure> {
        let options = self.options;
        let holder = Holding {
            lease: options.watchdog,
            label: label(options),
        };
        let connecting = options.server.connect(Some(&holder), self.wait);
        let locks = tokio::select! {
            biased;
            signal = self.signals.next_end() => return Ok(Status::of_signal(signal.as_raw())),
            locks = connecting => locks?,
        };
        let result = self.with(&locks).await;
        // What could not be released is tried again, for as long as Redis answers.
        let _ = timeout(SHUTDOWN, locks.shutdown(Duration::ZERO)).await;
        result
    }

    async fn with(&mut self, locks: &Locks) -> Result<Status, Failure> {
        let options = self.options;
        let acquiring = acquire(options, self.messages, locks, self.wait, self.started);
        let taken = tokio::select! {
            biased;
            signal = self.signals.next_end() => return Ok(Status::of_signal(signal.as_raw())),
            taken = acquiring => taken?,
        };
        let acquired = Instant::now();
        let waited = acquired - self.started;
        let fields = [
            ("name", json!(options.name)),
            (
                "waited_ms",
                json!(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX)),
            ),
        ];
        let Some(taken) = taken else {
            let text = format!("{:?} stayed busy for {waited:.1?}", options.name);
            self.messages.tell("busy", &text, fields);
            return Ok(Status(options.conflict_exit_code));
        };
        let text = format!("{:?} was acquired after {waited:.1?}", options.name);
        self.messages.tell("acquired", &text, fields);
        let (end, ended_by_us) = self.hold(&taken).await?;
        self.give_back(taken, end, ended_by_us, acquired).await
    }

    /// Runs the command, and ends it in time if the lock cannot be kept. Returns whether it had to.
    async fn hold(&mut self, taken: &Taken) -> Result<(End, bool), Failure> {
        taken.check()?;
        // Before the start, so that no end is missed, and the end is not ignored.
        let mut ends = signal(SignalKind::child()).map_err(internal)?;
        let environment = self.environment(taken);
        let child = match Child::start(&self.options.command, &environment) {
            Ok(child) => child,
            Err(error) => return Ok((End::NotStarted(error.raw_os_error().unwrap_or(0)), false)),
        };
        let (mut deadline, mut killed) = (Deadline::new(self.grace), false);
        loop {
            let ended = child.has_ended();
            // At a loss its children have the grace as well.
            if ended && (killed || !deadline.has_come() || !child.leaves_others()) {
                break;
            }
            let (now, left) = (Instant::now(), taken.valid_for());
            // Asked after the validity: if Redis reported the loss, the command has its grace, and if the validity ended, it
            // has none.
            let lost = taken.lost_reason();
            let first = !deadline.has_come();
            if let Some(signal) = deadline.due(now, left, lost) {
                child.signal(signal);
                killed |= signal == Signal::KILL;
                if first {
                    self.messages.warn("lost", &self.why(lost));
                }
            }
            // Nothing says when the last child ends.
            let pause = deadline.pause(now, left);
            let pause = if ended { pause.min(CHILDREN) } else { pause };
            tokio::select! {
                _ = taken.lost(), if lost.is_none() => {}
                _ = ends.recv() => {}
                signal = self.signals.next() => child.pass(signal),
                () = sleep(pause) => {}
            }
        }
        let ended_by_us = deadline.has_come();
        let end = child.end(ended_by_us).map_err(internal)?;
        Ok((end, ended_by_us))
    }

    fn why(&self, lost: Option<watchlock::LostReason>) -> String {
        let name = &self.options.name;
        match lost {
            Some(reason) => {
                format!("the lock {name:?} was lost, so the command is ended: {reason}")
            }
            None => format!("the lock {name:?} cannot be renewed, so the command is ended"),
        }
    }

    fn environment(&self, taken: &Taken) -> [(&'static str, Option<String>); 4] {
        let mut held = self.held.clone();
        held.push(self.options.key());
        [
            ("WATCHLOCK_NAME", Some(self.options.name.clone())),
            ("WATCHLOCK_HOLD", taken.id()),
            ("WATCHLOCK_TOKEN", taken.token()),
            (HELD, Some(Value::from(held).to_string())),
        ]
    }

    /// Releases the lock, or keeps it for the time that was asked for.
    async fn give_back(
        &mut self,
        taken: Taken,
        end: End,
        ended_by_us: bool,
        acquired: Instant,
    ) -> Result<Status, Failure> {
        let status = match end {
            End::Exited(code) => Status(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
            End::Killed(signal) => Status::of_signal(signal),
            End::NotStarted(number) => {
                let failure = not_started(self.options, number);
                self.release(taken).await;
                return Err(failure);
            }
        };
        let lost = taken.check().err();
        if ended_by_us || lost.is_some() {
            if let Some(error) = lost.filter(|_| !ended_by_us) {
                self.messages.warn("lost", &with_causes(&error));
            }
            self.release(taken).await;
            return Ok(Status::LOST);
        }
        let rest = self.options.at_least.unwrap_or_default();
        let rest = rest.saturating_sub(acquired.elapsed());
        let released = match taken {
            Taken::Lock(guard) if !rest.is_zero() => {
                self.keep(guard, rest).await;
                true
            }
            taken => self.release(taken).await,
        };
        Ok(if released { status } else { Status::LOST })
    }

    /// Releases the lock; false if it turns out to have been lost before.
    async fn release(&self, taken: Taken) -> bool {
        let expected = taken.check().is_err();
        match taken.give_back().await {
            Ok(()) => true,
            Err(error) => {
                if !(expected && error.is_lost()) {
                    let text = with_causes(&error);
                    self.messages.warn("release_failed", &text);
                }
                !error.is_lost()
            }
        }
    }

    /// Keeps the lock for `rest`. Redis does that alone if it can: its key has the lease of the watchdog, which cannot be
    /// shortened, so a shorter rest is waited for here.
    async fn keep(&mut self, mut guard: LockGuard, rest: Duration) {
        let until = Instant::now() + rest;
        let left = || until.saturating_duration_since(Instant::now());
        let mut may_leave = true;
        loop {
            if may_leave && left() >= self.options.watchdog {
                match leave(guard, left()).await {
                    Ok(()) => return,
                    Err((back, error)) => {
                        guard = back;
                        // A quorum refuses for good: its leases are short.
                        may_leave = error.is_transient();
                    }
                }
            }
            let is_again = may_leave && left() >= self.options.watchdog;
            let pause = if is_again { AGAIN.min(left()) } else { left() };
            tokio::select! {
                () = sleep(pause) => {
                    if left().is_zero() {
                        self.release(Taken::Lock(guard)).await;
                        return;
                    }
                }
                _ = self.signals.next_end() => {
                    if let Err((_, error)) = leave(guard, left().max(SHORTEST)).await {
                        self.messages.warn("not_kept", &with_causes(&error));
                    }
                    return;
                }
                reason = guard.lost() => {
                    let text = format!("the lock {:?} was lost after the command: {reason}", self.options.name);
                    self.messages.warn("not_kept", &text);
                    return;
                }
            }
        }
    }
}

/// How long to wait before it is tried again to leave the lock to its lease.
const AGAIN: Duration = Duration::from_secs(1);

/// The shortest lease.
const SHORTEST: Duration = Duration::from_millis(10);

/// Leaves the lock to a lease of this length; else returns the guard.
async fn leave(guard: LockGuard, lease: Duration) -> Result<(), (LockGuard, Error)> {
    let fixed = match guard.reenter(Lease::Fixed(lease)).await {
        Ok(fixed) => fixed,
        Err(error) => return Err((guard, error)),
    };
    if let Err(error) = guard.unlock().await {
        return Err((fixed, error));
    }
    fixed
        .let_expire()
        .map_err(watchlock::GuardError::into_parts)
}

/// The lock or the permit; None if it stayed busy.
async fn acquire(
    options: &RunOptions,
    messages: &Messages,
    locks: &Locks,
    wait: Option<Duration>,
    started: Instant,
) -> Result<Option<Taken>, Error> {
    let wanted = Wanted::of(options, locks);
    let left = || wait.map(|wait| wait.saturating_sub(started.elapsed()));
    if messages.verbose() {
        let first = wanted.take(Some(Duration::ZERO)).await;
        let is_last = left() == Some(Duration::ZERO);
        let telling = tell_holders(options, messages, locks);
        match first {
            Ok(None) if is_last => telling.await,
            Ok(None) => {
                // It waits while it asks for the holders, so nobody who comes meanwhile is ahead of it.
                let mut waiting = pin!(wanted.take(left()));
                tokio::select! {
                    biased;
                    taken = &mut waiting => return taken,
                    () = telling => return waiting.await,
                }
            }
            _ => {}
        }
        // Whatever else it says is found again below.
        if is_last || matches!(first, Ok(Some(_))) {
            return first;
        }
    }
    wanted.take(left()).await
}

/// Says for whom it waits; nobody if this user may not see them, or not soon.
async fn tell_holders(options: &RunOptions, messages: &Messages, locks: &Locks) {
    let name = &options.name;
    let looking = async {
        match options.permits {
            None => holders_of_lock(options, locks).await,
            Some(_) => holders_of_permits(options).await,
        }
    };
    let (who, json) = timeout(LOOK, looking).await.unwrap_or_default();
    let text = if who.is_empty() {
        format!("{name:?} is busy")
    } else {
        format!("{name:?} is held by {}", who.join(", "))
    };
    let fields = [("name", json!(name)), ("holders", json!(json))];
    messages.tell("waiting", &text, fields);
}

/// Who holds the lock, for people and as JSON.
async fn holders_of_lock(options: &RunOptions, locks: &Locks) -> (Vec<String>, Vec<Value>) {
    let holders = locks.holders(options.kind, &options.name).await.into_iter();
    let holders = holders.map(|holder| {
        let client = holder.client.map(|client| client.to_string());
        let json = json!({
            "hold_id": shown(holder.hold_id.as_bytes()),
            "client": client,
            "label": holder.label.as_ref().map(|label| shown(label.as_bytes())),
            "hold_count": holder.hold_count,
        });
        let who = holder.label.unwrap_or(holder.hold_id);
        (shown(who.as_bytes()), json)
    });
    holders.unzip()
}

/// The same of the permits that are taken.
async fn holders_of_permits(options: &RunOptions) -> (Vec<String>, Vec<Value>) {
    let looking = async {
        let masters = options.server.masters().await?;
        look(&options.server, masters, &options.name, None).await
    };
    let found = looking.await.unwrap_or_default();
    let holders = found.iter().flat_map(|(semaphore, _)| &semaphore.holders);
    holders
        .map(|holder| (holder.shown(), holder.json()))
        .unzip()
}

/// What `holders` shows of this process: `user@host pid command`, without the command's arguments.
fn label(options: &RunOptions) -> String {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = variable("USER").or_else(|| variable("LOGNAME"));
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let command = options.command.first().map(Path::new);
    let command = command.and_then(Path::file_name).unwrap_or_default();
    let label = format!("{user}@{host} {} {}", std::process::id(), command.display());
    let label = label.replace(char::is_control, "?");
    let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= LONGEST_LABEL;
    label
        .char_indices()
        .take_while(fits)
        .map(|(_, c)| c)
        .collect()
}

/// In bytes.
const LONGEST_LABEL: usize = 256;

impl RunOptions {
    /// The lock's key, which names it in [`HELD`].
    fn key(&self) -> String {
        format!("{}{}", self.server.prefix, self.name)
    }

    fn grace(&self) -> Result<Duration, Failure> {
        let most = self.watchdog / 2;
        match self.grace {
            Some(grace) if grace > most => {
                let text = format!("--grace must be at most half the lease, {most:?}");
                Err(Failure::usage(text))
            }
            Some(grace) => Ok(grace),
            None => Ok((self.watchdog / 3).min(GRACE)),
        }
    }
}

/// The list of names in a variable.
fn names_held(list: Option<&str>) -> Result<Vec<String>, Failure> {
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    let names = serde_json::from_str(list).ok();
    let wrong = || Failure::usage(format!("{HELD} is not a list of names in JSON"));
    names.ok_or_else(wrong)
}

/// The command did not run at all.
fn not_started(options: &RunOptions, number: i32) -> Failure {
    let error = io::Error::from_raw_os_error(number);
    let status = match error.kind() {
        io::ErrorKind::NotFound => Status::NOT_FOUND,
        _ => Status::CANNOT_EXECUTE,
    };
    let command = options.command.first().map(|word| word.display());
    let command = command.map_or(String::new(), |word| word.to_string());
    Failure::new(status, format!("cannot execute {command:?}: {error}"))
}

fn internal(error: impl Into<io::Error>) -> Failure {
    Failure::new(Status::INTERNAL, error.into().to_string())
}
