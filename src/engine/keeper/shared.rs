//! What the keeper's tasks share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::hub::Hub;
use super::release_queue::ReleaseQueue;
use super::watchdog::Watchdog;
use crate::engine::core::Core;

/// The client's part in the keeper, and what its tasks share.
pub(crate) struct Keeper {
    pub(crate) core: Arc<Core>,
    pub(super) hub: Hub,
    pub(super) watchdog: Arc<Watchdog>,
    pub(super) releases: ReleaseQueue,
    /// The nodes whose quiet connections are being probed; 0 is the one server.
    pub(super) probing: Mutex<BTreeSet<u32>>,
    /// The client is closing.
    closing: watch::Sender<bool>,
}

impl Keeper {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            hub: Hub::new(core.backend.config(), core.backend.cluster()),
            watchdog: Arc::new(Watchdog::new(Arc::clone(&core))),
            releases: ReleaseQueue::default(),
            probing: Mutex::default(),
            closing: watch::Sender::new(false),
            core,
        }
    }

    /// The client closes: every pause ends.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(super) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits for `pause`, or until the client begins to close.
    pub(super) async fn pause(&self, pause: Duration) {
        let mut closing = self.closing.subscribe();
        let timers = self.core.backend.timers();
        let _ = timers
            .until(self.core.now() + pause, closing.changed())
            .await;
    }
}
