//! Tells the keeper which connections broke: that of the one server (0), or those to nodes of a cluster.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct BrokenLinks {
    nodes: Mutex<BTreeSet<u32>>,
    told: Notify,
}

impl BrokenLinks {
    /// A connection to `node` broke.
    pub(crate) fn add(&self, node: u32) {
        self.nodes.lock().insert(node);
        self.told.notify_one();
    }

    /// Waits until some did: to which nodes.
    pub(crate) async fn wait(&self) -> BTreeSet<u32> {
        self.told.notified().await;
        // Nothing awaits behind the permit: who drops this future before it is ready has taken none.
        std::mem::take(&mut *self.nodes.lock())
    }
}
