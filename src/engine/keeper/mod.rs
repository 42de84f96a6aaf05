//! The keeper: the client's own background thread.
//!
//! It has its own runtime and its own connection, because user code blocks runtimes and stops polling
//! futures. It runs a job for every name that somebody waits for ([`waiting`]), renews holds in time
//! ([`renewals`]), listens to wake-ups ([`hub`]) and sees releases through that nobody waits for
//! ([`reaper`]). It holds nothing that keeps the client alive, and ends with it.

mod hub;
mod policy;
mod reaper;
mod renewals;
mod turns;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use self::hub::Hub;
use super::{Core, Mail};
use crate::clock::Moment;
use crate::error::LostReason;
use crate::script::Call;

/// While anything is held the clock is looked at this often: timers stop during a suspend.
const LOOK: Duration = Duration::from_millis(250);

/// While anything is held, a connection that was quiet for so long is asked whether it is still there:
/// renewals are far apart, and that Redis restarted is to be known before the next one.
const QUIET: Duration = Duration::from_secs(1);

/// How long the end of a client waits for releases that are under way.
const FLUSH: Duration = Duration::from_millis(400);

/// What the keeper's tasks share.
pub(crate) struct Keeper {
    pub(crate) core: Arc<Core>,
    hub: Hub,
    /// Whether renewals fail at the moment; told once per outage.
    trouble: AtomicBool,
    /// Whether a question for a quiet connection is on its way.
    asking: AtomicBool,
    closing: AtomicBool,
    closed: Notify,
}

impl Keeper {
    /// Finds a connection that was cut, or is half open, before a renewal needs it.
    async fn ask_the_quiet(self: Arc<Self>) {
        let limit = self.core.config.command_timeout;
        // Any answer will do; a broken connection is replaced, and then every hold verified.
        let _ = self.core.ask(Call::ping(), limit).await;
        self.asking.store(false, Ordering::Release);
    }

    fn is_quiet(&self, now: Moment) -> bool {
        let quiet = now >= self.core.keeper_lane.heard_at() + QUIET;
        quiet && !self.asking.swap(true, Ordering::AcqRel)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    async fn closing(&self) {
        let mut closed = std::pin::pin!(self.closed.notified());
        closed.as_mut().enable();
        if !self.is_closing() {
            closed.await;
        }
    }
}

/// The thread, as the engine sees it.
pub(crate) struct Thread {
    pub(crate) runtime: Handle,
    ended: Arc<Ended>,
}

#[derive(Default)]
struct Ended {
    done: Mutex<bool>,
    for_threads: Condvar,
    for_tasks: Notify,
}

/// A thread with a runtime, waiting for its client.
pub(crate) struct Starting {
    pub(crate) runtime: Handle,
    begin: std::sync::mpsc::Sender<(Arc<Core>, mpsc::UnboundedReceiver<Mail>)>,
    ended: Arc<Ended>,
}

impl Starting {
    /// Starts the thread; it ends at once if it is never given a client.
    pub(crate) fn spawn() -> std::io::Result<Self> {
        let ended = Arc::<Ended>::default();
        let ends = Arc::clone(&ended);
        let (begin, begun) = std::sync::mpsc::channel();
        let (made, runtime) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("watchlock-keeper".into())
            .spawn(move || {
                let runtime = match Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(made.send(Err(error))),
                };
                let _ = made.send(Ok(runtime.handle().clone()));
                if let Ok((core, mailbox)) = begun.recv() {
                    keep(&runtime, core, mailbox, ends);
                }
            })?;
        let runtime = runtime
            .recv()
            .unwrap_or_else(|_| Err(std::io::Error::other("the keeper did not start")))?;
        Ok(Self {
            runtime,
            begin,
            ended,
        })
    }

    /// Gives the keeper its client.
    pub(crate) fn begin(self, core: Arc<Core>, mailbox: mpsc::UnboundedReceiver<Mail>) -> Thread {
        let _ = self.begin.send((core, mailbox));
        Thread {
            runtime: self.runtime,
            ended: self.ended,
        }
    }
}

fn keep(
    runtime: &Runtime,
    core: Arc<Core>,
    mailbox: mpsc::UnboundedReceiver<Mail>,
    ended: Arc<Ended>,
) {
    let mut last_will = LastWill {
        core: Arc::clone(&core),
        ended,
        in_order: false,
    };
    runtime.block_on(run(core, mailbox));
    last_will.in_order = true;
}

impl Thread {
    /// Blocks until the keeper ended, for at most `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let mut done = self.ended.done.lock();
        if !*done {
            self.ended.for_threads.wait_for(&mut done, limit);
        }
    }

    /// Resolves when the keeper ended.
    pub(crate) async fn ended(&self) {
        let mut told = std::pin::pin!(self.ended.for_tasks.notified());
        told.as_mut().enable();
        if !*self.ended.done.lock() {
            told.await;
        }
    }
}

/// What happens when the thread ends, in order or by a panic.
struct LastWill {
    core: Arc<Core>,
    ended: Arc<Ended>,
    in_order: bool,
}

impl Drop for LastWill {
    fn drop(&mut self) {
        if self.in_order {
            self.core.keeper_ended(LostReason::Shutdown);
        } else {
            tracing::error!(
                "the keeper ended unexpectedly: all holds are lost, the client is closed"
            );
            self.core.keeper_ended(LostReason::KeeperEnded);
        }
        *self.ended.done.lock() = true;
        self.ended.for_threads.notify_all();
        self.ended.for_tasks.notify_waiters();
    }
}

/// The tasks that run, and those of them that a closing client waits for.
#[derive(Default)]
struct Chores {
    all: JoinSet<()>,
    releases: JoinSet<()>,
}

async fn run(core: Arc<Core>, mut mailbox: mpsc::UnboundedReceiver<Mail>) {
    let broken = Arc::clone(&core.backend.config().broken);
    let keeper = Arc::new(Keeper {
        hub: Hub::new(core.backend.config()),
        core,
        trouble: AtomicBool::new(false),
        asking: AtomicBool::new(false),
        closing: AtomicBool::new(false),
        closed: Notify::new(),
    });
    let core = &keeper.core;
    let mut chores = Chores::default();
    let mut busy_until = core.now();
    loop {
        let now = core.now();
        renewals::look(&keeper, &mut chores.all);
        if !core.schedule.is_empty() {
            busy_until = now + core.plan.period();
            if keeper.is_quiet(now) {
                chores.all.spawn(Arc::clone(&keeper).ask_the_quiet());
            }
        }
        // A client that holds nothing for a while is not looked after, and costs nothing.
        let idle = now >= busy_until;
        let latest = if idle { Moment::NEVER } else { now + LOOK };
        let next = core.schedule.plan(latest);
        tokio::select! {
            mail = mailbox.recv() => match mail {
                None | Some(Mail::Close) => break,
                Some(mail) => chores.start(&keeper, mail),
            },
            () = core.look.notified() => {}
            () = tokio::time::sleep(now.until(next)) => {}
            () = broken.notified() => renewals::verify_all(&keeper, &mut chores.all),
            Some(done) = chores.all.join_next() => done.unwrap_or_else(fatal),
            Some(done) = chores.releases.join_next() => done.unwrap_or_else(fatal),
        }
    }
    flush(&keeper, chores, mailbox).await;
}

/// A task that panicked: nothing is certain any more.
fn fatal(error: tokio::task::JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}

impl Chores {
    fn start(&mut self, keeper: &Arc<Keeper>, mail: Mail) {
        let keeper = Arc::clone(keeper);
        match mail {
            Mail::Serve(names) => {
                self.all.spawn(waiting::serve(keeper, names));
            }
            Mail::Reap(hold) => {
                self.releases.spawn(reaper::reap(keeper, hold));
            }
            Mail::Write(hold, count) => {
                let write = async move {
                    let call = hold.kind.release(&hold.id, count);
                    let limit = keeper.core.config.command_timeout;
                    let answer = keeper.core.ask(call, limit).await;
                    // Only a count for readers; who holds learns of a loss by the renewals.
                    drop(answer.map(|answer| hold.kind.released(&answer.reply)));
                };
                self.all.spawn(write);
            }
            Mail::Close => {}
        }
    }
}

/// Sees the releases through that are under way, for a moment.
async fn flush(
    keeper: &Arc<Keeper>,
    mut chores: Chores,
    mut mailbox: mpsc::UnboundedReceiver<Mail>,
) {
    mailbox.close();
    while let Some(Some(mail)) = mailbox.recv().now_or_never() {
        if matches!(mail, Mail::Reap(_)) {
            chores.start(keeper, mail);
        }
    }
    keeper.closing.store(true, Ordering::Release);
    keeper.closed.notify_waiters();
    let releases = async { while chores.releases.join_next().await.is_some() {} };
    // What cannot be released in time ends with its lease.
    let _ = tokio::time::timeout(FLUSH, releases).await;
    keeper.hub.close();
}
