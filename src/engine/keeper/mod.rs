//! The keeper: the client's own background thread.
//!
//! It has its own runtime and its own connection, because user code blocks runtimes and stops polling
//! futures. It runs a job for every name that somebody waits for ([`waiting`]), renews holds in time
//! ([`renewals`], [`asking`]), listens to wake-ups ([`hub`]) and sees releases through that nobody waits for
//! ([`reaper`]). It holds nothing that keeps the client alive, and ends with it.

mod asking;
mod counts;
mod hub;
mod listening;
mod marks;
mod masters;
mod places;
mod policy;
mod reaper;
mod renewals;
mod run;
mod thread;
mod turns;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use self::asking::Asking;
use self::hub::Hub;
pub(crate) use self::thread::{Starting, Thread};
use super::Core;
use crate::clock::Moment;
use crate::engine::hold::Hold;
use crate::script::Call;

/// While anything is held, a connection that was quiet for so long is asked whether it is still there:
/// renewals are far apart, and that Redis restarted is to be known before the next one.
const QUIET: Duration = Duration::from_secs(1);

/// How many repeated releases are out at a time.
const RELEASES: usize = 64;

/// What the keeper's tasks share. They run on one thread: its flags order nothing.
pub(crate) struct Keeper {
    pub(crate) core: Arc<Core>,
    hub: Hub,
    /// Whether renewals fail at the moment; told once per outage.
    trouble: AtomicBool,
    asking: Mutex<Asking<Arc<Hold>>>,
    /// Whether all holds are to be asked for once calls are answered again.
    unverified: AtomicBool,
    /// Turns to send a repeated release: an outage with many of them must leave time to tell losses.
    sending: Semaphore,
    /// Whether a question for a quiet connection is on its way.
    knocking: AtomicBool,
    closing: AtomicBool,
    closed: Notify,
}

impl Keeper {
    fn new(core: Arc<Core>) -> Self {
        let config = &core.config;
        // By when a hold ends; nothing once it has ended.
        let end =
            |hold: &Arc<Hold>| Some(hold.valid_until()).filter(|end| *end > Moment::default());
        Self {
            hub: Hub::new(core.backend.config()),
            trouble: AtomicBool::new(false),
            asking: Mutex::new(Asking::new(config.backoff, config.command_timeout, end)),
            unverified: AtomicBool::new(false),
            sending: Semaphore::new(RELEASES),
            knocking: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
            core,
        }
    }

    /// Finds a connection that was cut, or is half open, before a renewal needs it.
    async fn ask_the_quiet(self: Arc<Self>) {
        let limit = self.core.config.command_timeout;
        // Any answer will do; a broken connection is replaced, and then every hold verified.
        let _ = self.core.ask(Call::ping(), limit).await;
        self.knocking.store(false, Ordering::Relaxed);
    }

    fn is_quiet(&self, now: Moment) -> bool {
        let quiet = now >= self.core.keeper_lane.heard_at() + QUIET;
        quiet && !self.knocking.swap(true, Ordering::Relaxed)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    async fn closing(&self) {
        let mut closed = std::pin::pin!(self.closed.notified());
        closed.as_mut().enable();
        if !self.is_closing() {
            closed.await;
        }
    }
}
