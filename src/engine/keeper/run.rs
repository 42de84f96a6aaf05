//! What the keeper does all day: it starts a task for each letter in its mailbox, looks at the schedule in
//! time, and at the end sees through what must not be left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Keeper, reaper, renewals, waiting};
use crate::clock::Moment;
use crate::engine::{Core, Mail};

/// While anything is held the clock is looked at this often: timers stop during a suspend.
const LOOK: Duration = Duration::from_millis(250);

/// How long the end of a client waits for releases that are under way.
const FLUSH: Duration = Duration::from_millis(400);

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
    let mut busy_until = core.now();
    loop {
        let now = core.now();
        renewals::look(&keeper);
        let next_call = renewals::ask(&keeper, &mut chores.all);
        if !core.schedule.is_empty() {
            busy_until = now + core.plan.period();
            if keeper.is_quiet(now) {
                chores.all.spawn(Arc::clone(&keeper).ask_the_quiet());
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
            () = broken.notified() => renewals::verify_all(&keeper),
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
