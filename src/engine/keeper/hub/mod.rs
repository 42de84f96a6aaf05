//! Wake-ups: one connection for all subscriptions of a client; in a cluster one to each node whose slots have channels
//! that somebody listens to.
//!
//! A connection is opened for the first waiter and closed after the last one. Each channel has a
//! [`Route`], which counts its messages; a job takes them as one. When the connection breaks every route
//! of it is told, and is of no more use: its job subscribes anew and tries once. So it is when a slot changes its node.
//!
//! What is refused (a password, a channel of the ACL) may be granted later: connecting is tried again, and so
//! is each channel by its job, ever more rarely. That is told when it begins, and when it works again.

mod connection;
mod listener;
mod wire;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use self::connection::HubConnection;
pub(super) use self::connection::{is_refusal, refusals};
pub(crate) use self::listener::Route;
use self::listener::{Listener, SubscribeError};
use crate::backend::cluster::Cluster;
use crate::backend::{Failure, LaneConfig, Redirect};
use crate::slot::Slot;

/// So often a subscription follows its slot from node to node.
const HOPS: usize = 5;

pub(crate) struct Hub {
    config: LaneConfig,
    cluster: Arc<Cluster>,
    /// By the number of the node; 0 is the one server.
    connections: Mutex<HashMap<u32, Arc<HubConnection>>>,
    refusals: Mutex<Refusals>,
}

/// What is refused at the moment.
#[derive(Default)]
struct Refusals {
    /// The channels whose jobs wait for it.
    channels: HashSet<Box<str>>,
    /// It was told when that began, and not yet that it is over.
    logged: bool,
}

impl Hub {
    pub(crate) fn new(config: &LaneConfig, cluster: &Arc<Cluster>) -> Self {
        Self {
            config: config.clone(),
            cluster: Arc::clone(cluster),
            connections: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Subscribes `route` to `channel` and waits for the confirmation.
    pub(crate) async fn subscribe(&self, channel: &str, route: &Arc<Route>) -> Result<(), Failure> {
        for _ in 0..HOPS {
            let (connection, host) = self.connection(channel)?;
            let listener = connection.listener().await?;
            let subscribing = listener.subscribe(channel, route);
            let error = match tokio::time::timeout(self.config.command_timeout, subscribing).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(SubscribeError::Closed)) => return Err(Failure::no_connection()),
                Ok(Err(SubscribeError::Redis(error))) => error,
                Err(_) => {
                    listener.end();
                    return Err(Failure::no_reply());
                }
            };
            if listener.remove(channel, route).is_some() {
                listener.forget(channel);
            }
            match Redirect::of(&error, &host) {
                Some(redirect) if self.cluster.is_joined() => {
                    self.cluster.redirected(redirect);
                }
                _ => return Err(Failure::from(error)),
            }
        }
        Err(Failure::no_node())
    }

    /// The way to the server that has a channel, and its host.
    fn connection(&self, channel: &str) -> Result<(Arc<HubConnection>, Box<str>), Failure> {
        let mut connections = self.connections.lock();
        if !self.cluster.is_joined() {
            let new = || HubConnection::new(&self.config, &self.cluster, None);
            return Ok((
                Arc::clone(connections.entry(0).or_insert_with(new)),
                "".into(),
            ));
        }
        let Some(node) = self.cluster.node_of(Slot::of(channel)) else {
            self.cluster.doubt();
            return Err(Failure::no_node());
        };
        let host = node.host().into();
        let connection = connections
            .entry(node.number)
            .or_insert_with(|| HubConnection::new(&self.config, &self.cluster, Some(node)));
        Ok((Arc::clone(connection), host))
    }

    /// Ends the subscription of `route`, also when it was not confirmed, and the connection with the
    /// last one.
    pub(crate) async fn unsubscribe(&self, channel: &str, route: &Arc<Route>) {
        let listener = route.at.lock().take();
        let Some(listener) = listener else {
            return;
        };
        let Some(changing) = listener.remove(channel, route) else {
            return;
        };
        let unsubscribing = listener.unsubscribe(channel, changing);
        let done = tokio::time::timeout(self.config.command_timeout, unsubscribing).await;
        if !matches!(done, Ok(Ok(()))) {
            listener.end();
        }
    }

    /// Slots changed their nodes: who listens to a channel of theirs is told, and nobody listens at nodes that left.
    pub(super) fn moved(&self) {
        let nodes: HashSet<u32> = self
            .cluster
            .nodes()
            .iter()
            .map(|node| node.number)
            .collect();
        let mut connections = self.connections.lock();
        for (number, connection) in connections.iter() {
            let Some(listener) = connection.current() else {
                continue;
            };
            let elsewhere = |channel: &str| {
                let node = self.cluster.node_of(Slot::of(channel));
                node.is_none_or(|node| node.number != *number)
            };
            for channel in listener.break_where(elsewhere) {
                self.leave_behind(&listener, channel);
            }
        }
        connections.retain(|number, _| nodes.contains(number));
    }

    /// A subscription whose slot is elsewhere. Most often the node has ended it.
    fn leave_behind(&self, listener: &Arc<Listener>, channel: Box<str>) {
        let (listener, limit) = (Arc::clone(listener), self.config.command_timeout);
        tokio::spawn(async move {
            let Some(changing) = listener.changing(&channel) else {
                return;
            };
            let unsubscribing = listener.unsubscribe(&channel, changing);
            let done = tokio::time::timeout(limit, unsubscribing).await;
            if !matches!(done, Ok(Ok(()))) {
                listener.end();
            }
        });
    }

    /// Subscribing to `channel` was refused. Whether to tell: it was not told before.
    pub(super) fn refused(&self, channel: &str) -> bool {
        let mut refusals = self.refusals.lock();
        refusals.channels.insert(channel.into());
        !std::mem::replace(&mut refusals.logged, true)
    }

    /// Subscribing to `channel` works. Whether to tell: it was the last that was refused.
    pub(super) fn granted(&self, channel: &str) -> bool {
        let mut refusals = self.refusals.lock();
        let last = refusals.channels.remove(channel) && refusals.channels.is_empty();
        last && std::mem::take(&mut refusals.logged)
    }

    /// Nobody wants `channel` any more.
    pub(super) fn forget(&self, channel: &str) {
        self.refusals.lock().channels.remove(channel);
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        for connection in self.connections.lock().values() {
            connection.close();
        }
    }
}
