//! Listening to all nodes for the wake-ups of one name. Each node has one connection for that ([`Hub`]), which is open
//! while somebody waits for any name of the quorum.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::node::QuorumNode;
use crate::backoff::Backoff;
use crate::engine::keeper::Route;
use crate::host::own;
use crate::names::Names;

/// How long a subscription outlives its use.
const LINGER: Duration = Duration::from_secs(1);

/// A listener at each node. Dropping this closes them, a while later.
pub(super) struct Listeners {
    wake_ups: mpsc::UnboundedReceiver<usize>,
    _until: watch::Sender<()>,
}

impl Listeners {
    pub(super) fn open(nodes: &[Arc<QuorumNode>], names: &Arc<Names>) -> Self {
        let (sender, wake_ups) = mpsc::unbounded_channel();
        let (until, ended) = watch::channel(());
        for (place, node) in nodes.iter().enumerate() {
            let listener = NodeListener {
                place,
                node: Arc::clone(node),
                names: Arc::clone(names),
                wake_ups: sender.clone(),
                route: Arc::default(),
            };
            tokio::spawn(own(listener.listen(ended.clone())));
        }
        Self {
            wake_ups,
            _until: until,
        }
    }

    /// The place of the next node that published a wake-up, or whose messages arrive from now on.
    pub(super) async fn next(&mut self) -> usize {
        match self.wake_ups.recv().await {
            Some(place) => place,
            // All listeners ended; the caller polls.
            None => std::future::pending().await,
        }
    }
}

struct NodeListener {
    place: usize,
    node: Arc<QuorumNode>,
    names: Arc<Names>,
    wake_ups: mpsc::UnboundedSender<usize>,
    /// Of the present subscription.
    route: Arc<Route>,
}

impl NodeListener {
    async fn listen(mut self, mut ended: watch::Receiver<()>) {
        tokio::select! {
            biased;
            // The sender never sends; this resolves when it is dropped.
            _ = ended.changed() => {}
            () = self.subscribed() => {}
        }
        tokio::time::sleep(LINGER).await;
        self.unsubscribe().await;
    }

    async fn unsubscribe(&self) {
        let channel = self.names.channel();
        self.node.hub().unsubscribe(channel, &self.route).await;
    }

    /// Subscribes, again after each failure, and passes wake-ups on. Never ends.
    async fn subscribed(&mut self) {
        let mut delays = Backoff::default().delays(fastrand::u64(..));
        loop {
            let channel = self.names.channel();
            let subscribed = self.node.hub().subscribe(channel, &self.route).await;
            if subscribed.is_ok() {
                delays.reset();
                self.pass_on().await;
            }
            self.unsubscribe().await;
            self.route = Arc::default();
            tokio::time::sleep(delays.step()).await;
        }
    }

    /// Ends when the connection breaks.
    async fn pass_on(&self) {
        // The lock may have become free before the subscription was confirmed, so one try is due now.
        let _ = self.wake_ups.send(self.place);
        loop {
            self.route.changed.notified().await;
            if self.route.is_broken() {
                return;
            }
            if self.route.take_messages() > 0 {
                let _ = self.wake_ups.send(self.place);
            }
        }
    }
}
