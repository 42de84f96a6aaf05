//! Listening to all nodes for the wake-ups of one name. Each node has its connection for that ([`Hub`]), which lives
//! while somebody waits for any name of the quorum.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::Nodes;
use super::node::Node;
use crate::backoff::Backoff;
use crate::engine::keeper::Route;
use crate::names::Names;

/// How long a subscription outlives its use.
const LINGER: Duration = Duration::from_secs(1);

/// An ear at each node. Dropped, they are closed, a while later.
pub(super) struct Ears {
    told: mpsc::UnboundedReceiver<usize>,
    _until: watch::Sender<()>,
}

impl Ears {
    pub(super) fn open(nodes: &Nodes, names: &Arc<Names>) -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        let (until, ended) = watch::channel(());
        for (place, node) in nodes.all.iter().enumerate() {
            let ear = Ear {
                place,
                node: Arc::clone(node),
                names: Arc::clone(names),
                tell: tell.clone(),
                route: Arc::default(),
            };
            tokio::spawn(ear.listen(ended.clone()));
        }
        Self {
            told,
            _until: until,
        }
    }

    /// The place of a node that told something, or from which messages arrive from now on.
    pub(super) async fn told(&mut self) -> usize {
        match self.told.recv().await {
            Some(place) => place,
            // No ear is open any more; the polls carry on.
            None => std::future::pending().await,
        }
    }
}

struct Ear {
    place: usize,
    node: Arc<Node>,
    names: Arc<Names>,
    tell: mpsc::UnboundedSender<usize>,
    /// Of the present subscription.
    route: Arc<Route>,
}

impl Ear {
    async fn listen(mut self, mut ended: watch::Receiver<()>) {
        tokio::select! {
            // The sender says nothing: it goes.
            _ = ended.changed() => {}
            () = self.subscribed() => {}
        }
        tokio::time::sleep(LINGER).await;
        self.unsubscribe().await;
    }

    async fn unsubscribe(&self) {
        let channel = self.names.channel();
        self.node.hub.unsubscribe(channel, &self.route).await;
    }

    /// Passes on what is told; for ever.
    async fn subscribed(&mut self) {
        let mut delays = Backoff::default().delays(fastrand::u64(..));
        loop {
            let channel = self.names.channel();
            if self.node.hub.subscribe(channel, &self.route).await.is_ok() {
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
        // Confirmed: what was published before was published before the next try.
        let _ = self.tell.send(self.place);
        loop {
            self.route.changed.notified().await;
            if self.route.is_broken() {
                return;
            }
            if self.route.take_messages() > 0 {
                let _ = self.tell.send(self.place);
            }
        }
    }
}
