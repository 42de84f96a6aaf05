//! The keeper's thread: how it starts, how others wait for its end, and what happens if it panics. And its loop, which
//! starts a task for each message in the mailbox, looks at the schedule in time, and at the end completes what must not be
//! left behind.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use parking_lot::{Condvar, Mutex};
use scopeguard::guard;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{SetOnce, mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::Instant;

use super::Keeper;
use super::{cluster, job, label, masters, reaper};
use crate::backend::Pending;
use crate::clock::Moment;
use crate::engine::core::{Core, Mail};
use crate::error::LostReason;
use crate::host::{background, is_simulated, own};
use crate::log::{forward, log, logged};

/// Keeps a client alive: clients, handles and guards hold it. Its drop ends the keeper.
pub(crate) struct Engine {
    pub(crate) core: Arc<Core>,
    ended: Arc<EndSignal>,
}

impl Engine {
    /// Waits for `future`, for at most `limit` or until the keeper has ended. It uses the keeper's timers, so it works
    /// outside of a runtime.
    pub(crate) async fn within(&self, limit: Duration, future: impl Future) -> Option<()> {
        let over = select(Box::pin(future), Box::pin(self.joined()));
        let timers = self.core.backend.timers();
        timers.within(limit, over).await.map(drop)
    }

    /// Waits for the keeper's end.
    pub(crate) async fn joined(&self) {
        self.ended.over.wait().await;
    }

    /// Blocks until the keeper has ended, for at most `limit`. Returns whether it has.
    fn wait(&self, limit: Duration) -> bool {
        let ended = &*self.ended;
        let mut change = ended.change.lock();
        if !ended.over.initialized() && !is_simulated() {
            ended.for_threads.wait_for(&mut change, limit);
        }
        ended.over.initialized()
    }
}

/// A drop outside any runtime waits while the keeper completes what is under way: for a command time-out and this much
/// longer after the last answer.
const WAIT_FOR_KEEPER: Duration = Duration::from_millis(500);

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.post(Mail::Close);
        if Handle::try_current().is_err() {
            let limit = self.core.config.command_timeout + WAIT_FOR_KEEPER;
            while !self.wait(limit) && !self.core.backend.keepers.is_silent_for(limit) {}
        }
    }
}

#[derive(Default)]
struct EndSignal {
    over: SetOnce<()>,
    /// Held while that is set, so that no thread misses it.
    change: Mutex<()>,
    for_threads: Condvar,
}

/// A thread with a runtime that waits for its client. It ends if this is dropped before [`begin`](Self::begin).
pub(crate) struct Starting {
    pub(crate) runtime: Handle,
    begin: oneshot::Sender<(Arc<Core>, mpsc::UnboundedReceiver<Mail>)>,
    ended: Arc<EndSignal>,
}

impl Starting {
    pub(crate) fn spawn() -> std::io::Result<Self> {
        let ended = Arc::<EndSignal>::default();
        let ends = Arc::clone(&ended);
        let (begin, begun) = oneshot::channel();
        let keeping = async move {
            if let Ok((core, mailbox)) = begun.await {
                keep(core, mailbox, ends).await;
            }
        };
        Ok(Self {
            runtime: start_thread("watchlock-keeper", keeping)?,
            begin,
            ended,
        })
    }

    /// Gives the thread its client.
    pub(crate) fn begin(self, core: Arc<Core>, mailbox: mpsc::UnboundedReceiver<Mail>) -> Engine {
        let _ = self.begin.send((Arc::clone(&core), mailbox));
        Engine {
            core,
            ended: self.ended,
        }
    }
}

/// Starts a thread that runs `work` on a runtime of its own, and returns that runtime. In a simulation it is a task.
pub(crate) fn start_thread(
    name: &str,
    work: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<Handle> {
    if is_simulated() {
        let runtime = Handle::current();
        runtime.spawn(background(work));
        return Ok(runtime);
    }
    let (made, runtime) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(move || {
        forward();
        match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let _ = made.send(Ok(runtime.handle().clone()));
                runtime.block_on(work);
            }
            Err(error) => drop(made.send(Err(error))),
        }
    })?;
    let silent = || Err(std::io::Error::other("a background thread did not start"));
    runtime.recv().unwrap_or_else(|_| silent())
}

async fn keep(core: Arc<Core>, mailbox: mpsc::UnboundedReceiver<Mail>, ended: Arc<EndSignal>) {
    // Marks the end of the thread, in order or by a panic.
    let mut in_order = guard(false, |in_order| {
        if in_order {
            core.keeper_ended(LostReason::Shutdown);
        } else {
            log(|| {
                tracing::error!(
                    "the background thread ended unexpectedly: all holds are lost, the client is closed"
                );
            });
            core.keeper_ended(LostReason::BackgroundEnded);
        }
        let _change = ended.change.lock();
        let _ = ended.over.set(());
        ended.for_threads.notify_all();
    });
    run(Arc::clone(&core), mailbox).await;
    *in_order = true;
}

/// How often the keeper looks at the clock while anything is held. Timers stop while the machine is suspended.
const LOOK: Duration = Duration::from_millis(250);

/// After how much silence a connection is probed while anything is held. Renewals are far apart, and the keeper should
/// notice a restart of Redis before the next one.
const QUIET: Duration = Duration::from_secs(1);

/// How long the end of a client waits at least while no release is answered, and how often it checks that.
const FLUSH: Duration = Duration::from_millis(400);
const FLUSH_LOOK: Duration = Duration::from_millis(2);

/// How many messages are taken from the mailbox at a time.
const MAILS: usize = 100;

/// After so many losses other tasks have a turn, as there are holds to renew. Each loss starts a task, and the runtime polls
/// 61 tasks a turn.
const LOSSES: usize = 16;

/// The keeper's tasks. A closing client waits for the releases.
#[derive(Default)]
struct Tasks {
    all: JoinSet<()>,
    releases: JoinSet<()>,
}

/// Runs until the client closes.
async fn run(core: Arc<Core>, mut mailbox: mpsc::UnboundedReceiver<Mail>) {
    let broken = Arc::clone(&core.backend.config.broken);
    let keeper = Arc::new(Keeper::new(core));
    let core = &keeper.core;
    let mut tasks = Tasks::default();
    masters::watch(&keeper, &mut tasks.all);
    tasks.all.spawn(own(cluster::keep(Arc::clone(&keeper))));
    let mut busy_until = core.now();
    let mut mails = Vec::new();
    loop {
        let now = core.now();
        core.look_at_clock();
        keeper.watchdog.look();
        keeper.watchdog.connect_to_all();
        let next_renewal = keeper.watchdog.renew(&mut tasks.all);
        if !core.schedule.is_empty() {
            probe_quiet(&keeper, &mut tasks.all);
            busy_until = now + core.watchdog_lease.period();
        }
        // A client that has held nothing for a while and waits for no latch need not look at the clock.
        let idle = now >= busy_until && core.latches.is_empty();
        let latest = if idle { Moment::NEVER } else { now + LOOK };
        let next = core.schedule.plan(latest).min(next_renewal);
        tokio::select! {
            biased;
            () = core.look.notified() => {}
            nodes = broken.wait() => {
                core.backend.cluster.doubt();
                if !nodes.is_empty() {
                    keeper.watchdog.verify_at(&nodes);
                }
            }
            _ = mailbox.recv_many(&mut mails, MAILS) => {
                let closes = mails.iter().any(|mail| matches!(mail, Mail::Close));
                let mut losses = 0;
                for mail in mails.drain(..) {
                    losses += usize::from(matches!(mail, Mail::Lost(..)));
                    tasks.start(&keeper, mail);
                    if losses == LOSSES {
                        losses = 0;
                        yield_now().await;
                    }
                }
                if closes {
                    break;
                }
            }
            () = core.backend.timers().sleep_until(next) => {}
            Some(done) = tasks.all.join_next() => done.unwrap_or_else(fatal),
            Some(done) = tasks.releases.join_next() => done.unwrap_or_else(fatal),
        }
        tasks.reap();
    }
    flush(&keeper, tasks, mailbox).await;
}

/// Probes the connections that were quiet for a while, unless that is under way. Finds those that were cut or are
/// half open before a renewal needs them. No node waits for the answer of another.
fn probe_quiet(keeper: &Arc<Keeper>, tasks: &mut JoinSet<()>) {
    let mut quiet = keeper.core.backend.keepers.lanes();
    quiet.retain(|lane| lane.is_silent_for(QUIET));
    for lane in quiet {
        let node = lane.node().map_or(0, |node| node.number);
        if !keeper.probing.lock().insert(node) {
            continue;
        }
        let keeper = Arc::clone(keeper);
        tasks.spawn(own(async move {
            let limit = keeper.core.config.command_timeout;
            // The answer does not matter: a connection that does not answer is replaced, and its holds are verified.
            let _ = Pending::knock(&lane).within(limit).await;
            keeper.probing.lock().remove(&node);
        }));
    }
}

/// A task panicked, so its work was left half-done: the keeper panics, too.
fn fatal(error: tokio::task::JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}

impl Tasks {
    /// Takes out the tasks that have ended. Returns whether a release was among them.
    fn reap(&mut self) -> bool {
        let before = self.releases.len();
        for tasks in [&mut self.all, &mut self.releases] {
            while let Some(done) = tasks.try_join_next() {
                done.unwrap_or_else(fatal);
            }
        }
        self.releases.len() < before
    }

    fn start(&mut self, keeper: &Arc<Keeper>, mail: Mail) {
        let keeper = Arc::clone(keeper);
        match mail {
            Mail::Serve(names) => {
                self.all.spawn(own(job::serve(keeper, names)));
            }
            Mail::Watch(names) => {
                self.all.spawn(own(job::watch_latch(keeper, names)));
            }
            Mail::Release(hold) => {
                self.releases
                    .spawn(own(reaper::complete_release(keeper, hold)));
            }
            Mail::Write(hold, moment) => {
                self.all
                    .spawn(own(reaper::write_count(keeper, hold, moment)));
            }
            Mail::WriteBehind(hold, count, command) => {
                let writing = reaper::write_behind(keeper, hold, count, command);
                self.all.spawn(own(writing));
            }
            Mail::Finish(hold) => super::watchdog::finish(&keeper.core, &hold),
            Mail::Lost(hold, reason) => keeper.core.clean_up_lost(&hold, reason),
            // The end of a client waits for this as for its releases: then the label is deleted.
            Mail::ShowLabel => drop(self.releases.spawn(own(label::show(keeper)))),
            Mail::Close => {}
        }
    }
}

/// Completes what is under way: attempts whose outcome nobody waits for, releases, and hand-overs, which are both. Goes on
/// as long as releases are answered.
async fn flush(keeper: &Arc<Keeper>, mut tasks: Tasks, mut mailbox: mpsc::UnboundedReceiver<Mail>) {
    keeper.close();
    end_commands(&keeper.core);
    let patience = keeper.core.config.command_timeout.max(FLUSH);
    let mut answered_at = Instant::now();
    loop {
        while let Ok(mail) = mailbox.try_recv() {
            tasks.start(keeper, mail);
        }
        if tasks.reap() {
            answered_at = Instant::now();
        }
        let at_rest = tasks.releases.is_empty() && !keeper.core.is_in_flight();
        // What is not complete in time ends with its lease.
        if at_rest || answered_at.elapsed() >= patience {
            break;
        }
        tokio::time::sleep(FLUSH_LOOK).await;
    }
    // Each that is left notes its name as it is dropped.
    tasks.releases.shutdown().await;
    mailbox.close();
    keeper.hub.close();
    // The process may end with this client. A log that is blocked must not delay that.
    let _ = tokio::time::timeout(FLUSH, logged()).await;
}

/// Ends the commands in flight. The answer to a caller's command may never be seen, because its runtime rests. So the
/// keeper sends a release of its own for what is not known to be over.
fn end_commands(core: &Core) {
    for hold in core.holds() {
        let names = &hold.kind.names;
        if let Some(command) = core.at(names, core.now(), |gate, effects| {
            gate.overdue(&hold, effects)
        }) {
            command.overdue();
        }
    }
}
