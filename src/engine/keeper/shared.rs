//! What the tasks of the keeper share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use super::hub::Hub;
use super::watchdog::Wards;
use crate::backend::{Lane, Pending};
use crate::engine::core::Core;

/// While anything is held, a connection that was quiet for so long is asked whether it is still there:
/// renewals are far apart, and that Redis restarted is to be known before the next one.
const QUIET: Duration = Duration::from_secs(1);

/// How many repeated releases are out at a time.
const RELEASES: usize = 64;

/// What the keeper's tasks share. They run on one thread: its flags order nothing.
pub(crate) struct Keeper {
    pub(crate) core: Arc<Core>,
    pub(super) hub: Hub,
    /// Whether renewals fail at the moment; told once per outage.
    pub(super) renewals_failing: AtomicBool,
    pub(super) wards: Mutex<Wards>,
    /// Turns to send a repeated release: an outage with many of them must leave time to tell losses.
    pub(super) sending: Semaphore,
    /// Whether a question for a quiet connection is on its way.
    pub(super) probing: AtomicBool,
    pub(super) closing: AtomicBool,
    pub(super) closed: Notify,
}

impl Keeper {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            hub: Hub::new(core.backend.config(), core.backend.cluster()),
            renewals_failing: AtomicBool::new(false),
            wards: Mutex::default(),
            sending: Semaphore::new(RELEASES),
            probing: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
            core,
        }
    }

    /// Finds connections that were cut, or are half open, before a renewal needs them.
    pub(super) async fn probe(self: Arc<Self>, quiet: Vec<Arc<Lane>>) {
        let limit = self.core.config.command_timeout;
        // Any answer will do; a broken connection is replaced, and then its holds are verified.
        let answers = quiet.iter().map(|lane| Pending::knock(lane).within(limit));
        join_all(answers).await;
        self.probing.store(false, Ordering::Relaxed);
    }

    /// Which lanes are to be asked.
    pub(super) fn quiet(&self) -> Vec<Arc<Lane>> {
        let mut quiet = self.core.keeper_fleet.quiet(QUIET);
        if !quiet.is_empty() && self.probing.swap(true, Ordering::Relaxed) {
            quiet.clear();
        }
        quiet
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub(super) async fn closing(&self) {
        let mut closed = std::pin::pin!(self.closed.notified());
        closed.as_mut().enable();
        if !self.is_closing() {
            closed.await;
        }
    }
}
