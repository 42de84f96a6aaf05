//! Listening to all nodes for the wake-ups of one name. Each node has one connection for that ([`Hub`]), which is open
//! while somebody waits for any name of the quorum.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::node::QuorumNode;
use crate::backoff::Backoff;
use crate::engine::keeper::{Hub, Route};
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
            let sender = sender.clone();
            let wakes = move || {
                let _ = sender.send(place);
            };
            let listening = listen(Arc::clone(node), Arc::clone(names), ended.clone(), wakes);
            tokio::spawn(own(listening));
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

/// Calls `wakes` whenever `node` published a wake-up, until `ended`.
async fn listen(
    node: Arc<QuorumNode>,
    names: Arc<Names>,
    mut ended: watch::Receiver<()>,
    wakes: impl Fn(),
) {
    let mut route = Arc::default();
    tokio::select! {
        biased;
        // The sender never sends; this resolves when it is dropped.
        _ = ended.changed() => {}
        () = subscribed(&node.hub, names.channel(), &mut route, wakes) => {}
    }
    tokio::time::sleep(LINGER).await;
    node.hub.unsubscribe(names.channel(), &route).await;
}

/// Subscribes, again after each failure, with `route` for the present subscription. Never ends.
async fn subscribed(hub: &Hub, channel: &str, route: &mut Arc<Route>, wakes: impl Fn()) {
    let mut delays = Backoff::default().delays(fastrand::u64(..));
    loop {
        if hub.subscribe(channel, route).await.is_ok() {
            delays.reset();
            pass_on(route, &wakes).await;
        }
        hub.unsubscribe(channel, route).await;
        *route = Arc::default();
        tokio::time::sleep(delays.step()).await;
    }
}

/// Ends when the connection breaks.
async fn pass_on(route: &Route, wakes: impl Fn()) {
    // The lock may have become free before the subscription was confirmed, so one try is due now.
    wakes();
    loop {
        route.changed.notified().await;
        if route.is_broken() {
            return;
        }
        if route.take_messages() > 0 {
            wakes();
        }
    }
}
