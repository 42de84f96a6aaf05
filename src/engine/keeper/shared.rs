//! What the keeper's tasks share.
//!
//! All of them run on the keeper's thread, so the flags order nothing: Relaxed is enough.

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

/// After how much silence a connection is probed while anything is held. Renewals are far apart, and the keeper should
/// notice a restart of Redis before the next one.
const QUIET: Duration = Duration::from_secs(1);

/// How many repeated releases are under way at a time.
const RELEASES: usize = 64;

/// What the keeper's tasks share.
pub(crate) struct Keeper {
    pub(crate) core: Arc<Core>,
    pub(super) hub: Hub,
    /// Whether renewals fail at the moment. Logged once per outage.
    pub(super) renewals_failing: AtomicBool,
    pub(super) wards: Mutex<Wards>,
    /// Permits to send a repeated release. They limit the releases of an outage, so that losses are still reported on
    /// time.
    pub(super) sending: Semaphore,
    /// Whether a probe of quiet connections is under way.
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

    /// Probes `quiet` connections, to find those that were cut or are half open before a renewal needs them.
    pub(super) async fn probe(self: Arc<Self>, quiet: Vec<Arc<Lane>>) {
        let limit = self.core.config.command_timeout;
        // The answers do not matter: a connection that fails to answer is replaced, and its holds are verified.
        let answers = quiet.iter().map(|lane| Pending::knock(lane).within(limit));
        join_all(answers).await;
        self.probing.store(false, Ordering::Relaxed);
    }

    /// The lanes to probe. Empty while a probe is under way.
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

    /// Resolves when the client closes.
    pub(super) async fn closing(&self) {
        let mut closed = std::pin::pin!(self.closed.notified());
        closed.as_mut().enable();
        if !self.is_closing() {
            closed.await;
        }
    }
}
