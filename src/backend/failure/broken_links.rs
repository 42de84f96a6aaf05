//! Which connections broke: the keeper waits for it. Number 0 is the one server, the others are nodes of a cluster.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct BrokenLinks {
    nodes: Mutex<BTreeSet<u32>>,
    added: Notify,
}

impl BrokenLinks {
    pub(crate) fn add(&self, node: u32) {
        self.nodes.lock().insert(node);
        self.added.notify_one();
    }

    /// A node cannot be connected to.
    pub(crate) fn unreached(&self) {
        self.added.notify_one();
    }

    /// Waits until a connection breaks, or cannot be made; returns the nodes whose connections broke.
    pub(crate) async fn wait(&self) -> BTreeSet<u32> {
        self.added.notified().await;
        // No await after this one, so a future that is dropped early has not taken the permit.
        std::mem::take(&mut *self.nodes.lock())
    }
}
