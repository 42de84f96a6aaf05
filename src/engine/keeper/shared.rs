//! What the keeper's tasks share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::hub::Hub;
use super::watchdog::Watchdog;
use crate::backend::Pending;
use crate::engine::core::Core;

/// After how much silence a connection is probed while anything is held. Renewals are far apart, and the keeper should
/// notice a restart of Redis before the next one.
const QUIET: Duration = Duration::from_secs(1);

/// How many repeated releases are under way at a time.
const RELEASES: usize = 64;

/// The client's part in the keeper, and what its tasks share.
pub(crate) struct Keeper {
    pub(crate) core: Arc<Core>,
    pub(super) hub: Hub,
    pub(super) watchdog: Arc<Watchdog>,
    /// Permits to send a repeated release. They limit the releases of an outage, so that losses are still reported on
    /// time.
    pub(super) sending: Semaphore,
    /// A probe of quiet connections is under way.
    probing: AtomicBool,
    /// The client is closing.
    closing: watch::Sender<bool>,
}

impl Keeper {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            hub: Hub::new(core.backend.config(), core.backend.cluster()),
            watchdog: Arc::new(Watchdog::new(Arc::clone(&core))),
            sending: Semaphore::new(RELEASES),
            probing: AtomicBool::new(false),
            closing: watch::Sender::new(false),
            core,
        }
    }

    /// Probes the connections that were quiet for a while, unless that is under way. Finds those that were cut or are
    /// half open before a renewal needs them.
    pub(super) fn probe_quiet(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let quiet = self.core.keeper_fleet.quiet(QUIET);
        // Relaxed: only tasks on the keeper's thread use the flag.
        if quiet.is_empty() || self.probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let keeper = Arc::clone(self);
        tasks.spawn(async move {
            let limit = keeper.core.config.command_timeout;
            // The answers do not matter: a connection that does not answer is replaced, and its holds are verified.
            let answers = quiet.iter().map(|lane| Pending::knock(lane).within(limit));
            join_all(answers).await;
            keeper.probing.store(false, Ordering::Relaxed);
        });
    }

    /// The client closes: nothing waits for a pause any more.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(super) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits until the client closes, for at most `pause`.
    pub(super) async fn pause(&self, pause: Duration) {
        let mut closing = self.closing.subscribe();
        let closes = closing.wait_for(|closing| *closing);
        let _ = tokio::time::timeout(pause, closes).await;
    }
}
