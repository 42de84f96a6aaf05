//! What the keeper's tasks share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::hub::Hub;
use super::watchdog::Watchdog;
use crate::engine::core::Core;

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
    pub(super) probing: AtomicBool,
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
