//! What the keeper does all day: it starts a task for each letter in its mailbox, looks at the schedule in
//! time, and at the end sees through what must not be left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Keeper, cluster, counts, masters, reaper, renewals, waiting};
use crate::clock::Moment;
use crate::engine::{Core, Mail};

/// While anything is held the clock is looked at this often: timers stop during a suspend.
const LOOK: Duration = Duration::from_millis(250);

/// How long the end of a client waits for what is under way, and how often it looks.
const FLUSH: Duration = Duration::from_millis(400);
const FLUSH_LOOK: Duration = Duration::from_millis(2);

/// The tasks that run, and those of them that a closing client waits for.
#[derive(Default)]
struct Chores {
    all: JoinSet<()>,
    releases: JoinSet<()>,
}

pub(super) async fn run(core: Arc<Core>, mut mailbox: mpsc::UnboundedReceiver<Mail>) {
    let broken = Arc::clone(&core.backend.config().broken);
    let keeper = Arc::new(Keeper::new(core));
    let core = &keeper.core;
    let mut chores = Chores::default();
    masters::watch(&keeper, &mut chores.all);
    chores.all.spawn(cluster::keep(Arc::clone(&keeper)));
    let mut busy_until = core.now();
    loop {
        let now = core.now();
        renewals::look(&keeper);
        renewals::reach(&keeper);
        let next_call = renewals::ask(&keeper, &mut chores.all);
        if !core.schedule.is_empty() {
            busy_until = now + core.plan.period();
            let quiet = keeper.quiet();
            if !quiet.is_empty() {
                chores.all.spawn(Arc::clone(&keeper).ask(quiet));
            }
        }
        // A client that holds nothing for a while is not looked after, and costs nothing.
        let idle = now >= busy_until;
        let latest = if idle { Moment::NEVER } else { now + LOOK };
        let next = core.schedule.plan(latest).min(next_call);
        tokio::select! {
            mail = mailbox.recv() => match mail {
                None | Some(Mail::Close) => break,
                Some(mail) => chores.start(&keeper, mail),
            },
            () = core.look.notified() => {}
            () = tokio::time::sleep(now.until(next)) => {}
            nodes = broken.wait() => {
                core.backend.cluster().doubt();
                renewals::verify_at(&keeper, &nodes);
            }
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
            Mail::Release(hold) => {
                self.releases.spawn(reaper::see_through(keeper, hold));
            }
            Mail::Write(hold) => {
                self.all.spawn(counts::write(keeper, hold));
            }
            Mail::Bury(hold, reason) => keeper.core.bury(&hold, reason),
            Mail::Close => {}
        }
    }
}

/// Sees through what is under way, for a moment: attempts whose outcome nobody waits for any more, releases,
/// and hand-overs, which are both.
async fn flush(
    keeper: &Arc<Keeper>,
    mut chores: Chores,
    mut mailbox: mpsc::UnboundedReceiver<Mail>,
) {
    // Relaxed: all who read it run on this thread.
    keeper.closing.store(true, Ordering::Relaxed);
    keeper.closed.notify_waiters();
    let at_rest = async {
        while keeper.core.is_in_flight() || !chores.releases.is_empty() || !mailbox.is_empty() {
            tokio::select! {
                Some(mail) = mailbox.recv() => chores.start(keeper, mail),
                Some(done) = chores.all.join_next() => done.unwrap_or_else(fatal),
                Some(done) = chores.releases.join_next() => done.unwrap_or_else(fatal),
                () = tokio::time::sleep(FLUSH_LOOK) => {}
            }
        }
    };
    // What cannot be seen through in time ends with its lease.
    let _ = tokio::time::timeout(FLUSH, at_rest).await;
    mailbox.close();
    keeper.hub.close();
}
