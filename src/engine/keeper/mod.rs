//! The keeper: the client's own background thread.
//!
//! It has its own runtime and its own connections, because user code blocks runtimes and stops polling futures. It runs
//! a job for every name that somebody waits for ([`job`]), renews holds in time ([`watchdog`]), subscribes to wake-ups
//! ([`hub`]), completes releases that no caller completes ([`reaper`]), and follows fail-overs ([`masters`]) and slots
//! that move ([`cluster`]), and shows who the client is ([`label`]). It holds nothing that keeps the client alive, and ends with the last [`Engine`].

mod cluster;
mod hub;
mod job;
mod label;
mod masters;
mod reaper;
mod release_queue;
mod thread;
mod watchdog;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

pub(crate) use self::hub::{Hub, Route};
use self::release_queue::ReleaseQueue;
pub(crate) use self::thread::{Engine, Starting, start_thread};
use self::watchdog::Watchdog;
use super::core::Core;

/// The client's part in the keeper, and what its tasks share.
struct Keeper {
    core: Arc<Core>,
    hub: Hub,
    watchdog: Arc<Watchdog>,
    releases: ReleaseQueue,
    /// The nodes whose quiet connections are being probed; 0 is the one server.
    probing: Mutex<BTreeSet<u32>>,
    /// The client is closing.
    closing: watch::Sender<bool>,
}

impl Keeper {
    fn new(core: Arc<Core>) -> Self {
        Self {
            hub: Hub::new(&core.backend.config, &core.backend.cluster),
            watchdog: Arc::new(Watchdog::new(Arc::clone(&core))),
            releases: ReleaseQueue::default(),
            probing: Mutex::default(),
            closing: watch::Sender::new(false),
            core,
        }
    }

    /// The client closes: every pause ends.
    fn close(&self) {
        self.closing.send_replace(true);
    }

    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits for `pause`, or until the client begins to close.
    async fn pause(&self, pause: Duration) {
        let mut closing = self.closing.subscribe();
        let timers = self.core.backend.timers();
        let _ = timers
            .until(self.core.now() + pause, closing.changed())
            .await;
    }
}
