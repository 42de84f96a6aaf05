//! The keeper's loop: it starts a task for each message in its mailbox, looks at the schedule in time, and at the end
//! completes what must not be left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::shared::Keeper;
use super::{cluster, job, masters, reaper};
use crate::backend::Pending;
use crate::clock::Moment;
use crate::engine::core::{Core, Mail};
use crate::log::logged;

/// How often the keeper looks at the clock while anything is held. Timers stop while the machine is suspended.
const LOOK: Duration = Duration::from_millis(250);

/// After how much silence a connection is probed while anything is held. Renewals are far apart, and the keeper should
/// notice a restart of Redis before the next one.
const QUIET: Duration = Duration::from_secs(1);

/// How long the end of a client waits at least while no release is answered, and how often it checks that.
const FLUSH: Duration = Duration::from_millis(400);
const FLUSH_LOOK: Duration = Duration::from_millis(2);

/// How many messages are taken from the mailbox at a time.
const MAILS: usize = 1000;

/// The keeper's tasks. A closing client waits for the releases.
#[derive(Default)]
struct Tasks {
    all: JoinSet<()>,
    releases: JoinSet<()>,
}

/// Runs until the client closes.
pub(super) async fn run(core: Arc<Core>, mut mailbox: mpsc::UnboundedReceiver<Mail>) {
    let broken = Arc::clone(&core.backend.config().broken);
    let keeper = Arc::new(Keeper::new(core));
    let core = &keeper.core;
    let mut tasks = Tasks::default();
    masters::watch(&keeper, &mut tasks.all);
    tasks.all.spawn(cluster::keep(Arc::clone(&keeper)));
    let mut busy_until = core.now();
    let mut mails = Vec::new();
    loop {
        let now = core.now();
        core.look_at_clock();
        keeper.watchdog.look();
        keeper.watchdog.connect_to_all();
        let next_renewal = keeper.watchdog.renew(&mut tasks.all);
        if !core.schedule.is_empty() {
            busy_until = now + core.plan.period();
            probe_quiet(&keeper, &mut tasks.all);
        }
        // A client that has held nothing for a while needs no looks at the clock.
        let idle = now >= busy_until;
        let latest = if idle { Moment::NEVER } else { now + LOOK };
        let next = core.schedule.plan(latest).min(next_renewal);
        tokio::select! {
            _ = mailbox.recv_many(&mut mails, MAILS) => {
                let closes = mails.iter().any(|mail| matches!(mail, Mail::Close));
                mails.drain(..).for_each(|mail| tasks.start(&keeper, mail));
                if closes {
                    break;
                }
            }
            () = core.look.notified() => {}
            () = core.backend.timers().sleep_until(next) => {}
            nodes = broken.wait() => {
                core.backend.cluster().doubt();
                if !nodes.is_empty() {
                    keeper.watchdog.verify_at(&nodes);
                }
            }
            Some(done) = tasks.all.join_next() => done.unwrap_or_else(fatal),
            Some(done) = tasks.releases.join_next() => done.unwrap_or_else(fatal),
        }
    }
    flush(&keeper, tasks, mailbox).await;
}

/// Probes the connections that were quiet for a while, unless that is under way. Finds those that were cut or are
/// half open before a renewal needs them.
fn probe_quiet(keeper: &Arc<Keeper>, tasks: &mut JoinSet<()>) {
    let quiet = keeper.core.keeper_fleet.quiet(QUIET);
    // Relaxed: only tasks on the keeper's thread use the flag.
    if quiet.is_empty() || keeper.probing.swap(true, Ordering::Relaxed) {
        return;
    }
    let keeper = Arc::clone(keeper);
    tasks.spawn(async move {
        let limit = keeper.core.config.command_timeout;
        // The answers do not matter: a connection that does not answer is replaced, and its holds are verified.
        let answers = quiet.iter().map(|lane| Pending::knock(lane).within(limit));
        join_all(answers).await;
        keeper.probing.store(false, Ordering::Relaxed);
    });
}

/// A task panicked, so its work was left half-done: the keeper panics, too.
fn fatal(error: tokio::task::JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}

impl Tasks {
    fn start(&mut self, keeper: &Arc<Keeper>, mail: Mail) {
        let keeper = Arc::clone(keeper);
        match mail {
            Mail::Serve(names) => {
                self.all.spawn(job::serve(keeper, names));
            }
            Mail::Release(hold) => {
                self.releases.spawn(reaper::complete_release(keeper, hold));
            }
            Mail::Write(hold) => {
                self.all.spawn(reaper::write_count(keeper, hold));
            }
            Mail::WriteBehind(hold, count, command) => {
                let writing = reaper::write_behind(keeper, hold, count, command);
                self.all.spawn(writing);
            }
            Mail::Lost(hold, reason) => keeper.core.clean_up_lost(&hold, reason),
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
        while let Some(done) = tasks.all.try_join_next() {
            done.unwrap_or_else(fatal);
        }
        while let Some(done) = tasks.releases.try_join_next() {
            done.unwrap_or_else(fatal);
            answered_at = Instant::now();
        }
        let at_rest = tasks.releases.is_empty() && !keeper.core.is_in_flight();
        // What is not complete in time ends with its lease.
        if at_rest || answered_at.elapsed() >= patience {
            break;
        }
        tokio::time::sleep(FLUSH_LOOK).await;
    }
    mailbox.close();
    keeper.hub.close();
    // The process may end with this client. A log that is blocked must not delay that.
    let _ = tokio::time::timeout(FLUSH, logged()).await;
}

/// Ends the commands in flight. The answer to a caller's command may never be seen, because its runtime rests. So the
/// keeper sends a release of its own for what is not known to be over.
fn end_commands(core: &Core) {
    for hold in core.holds() {
        let names = hold.kind.names();
        if let Some(command) = core.at(names, |gate, effects| gate.overdue(&hold, effects)) {
            command.overdue();
        }
    }
}
