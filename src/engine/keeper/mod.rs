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
mod run;
mod thread;
mod turns;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use self::hub::Hub;
pub(crate) use self::thread::{Starting, Thread};
use super::Core;
use crate::clock::Moment;
use crate::script::Call;

/// While anything is held, a connection that was quiet for so long is asked whether it is still there:
/// renewals are far apart, and that Redis restarted is to be known before the next one.
const QUIET: Duration = Duration::from_secs(1);

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
