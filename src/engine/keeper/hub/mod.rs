//! Subscriptions to wake-ups: one connection for all channels of a client. In a cluster, one to each node with a
//! channel that somebody listens to.
//!
//! 1. A connection is opened for the first waiter and closed after the last one.
//! 2. A [`Route`] counts the messages of a channel for one job; the job takes all of them at once.
//! 3. If the connection breaks, or the slot of a channel moves to another node, the routes are broken and of no more
//!    use: each job subscribes with a new route, and tries once.
//! 4. A refusal (a wrong password, a channel missing in the ACL) may be corrected later. So the hub connects again, and
//!    each job subscribes again, with growing pauses. The log has one line when refusals begin, and one when they end.

mod listener;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::PushInfo;
use tokio::sync::mpsc;

pub(crate) use self::listener::Route;
use self::listener::{Listener, Sink};
use crate::backend::{AttemptPace, Class, Cluster, Failure, LaneConfig, Redirect};
use crate::backoff::{Backoff, Delays};
use crate::clock::Moment;
use crate::config::Publish;
use crate::host::own;
use crate::slot::Slot;

/// How often a subscription follows its slot from node to node.
const HOPS: usize = 5;

/// All subscriptions of a client.
pub(crate) struct Hub {
    config: LaneConfig,
    cluster: Arc<Cluster>,
    /// By the number of the node; 0 outside of a cluster.
    connections: Mutex<BTreeMap<u32, Arc<HubConnection>>>,
    refusals: Mutex<Refusals>,
}

#[derive(Default)]
struct Refusals {
    /// The channels that Redis refused.
    channels: HashSet<Box<str>>,
    /// Their begin was logged, and their end was not yet.
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
            let limit = self.config.command_timeout;
            let subscribing = listener.subscribe(channel, route);
            let error = match listener.while_answered(limit, subscribing).await {
                Some(Some(Ok(()))) => return Ok(()),
                Some(Some(Err(error))) => error,
                Some(None) => return Err(Failure::no_connection()),
                None => {
                    listener.end();
                    return Err(Failure::slow_reply(limit));
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

    /// The connection to the server of a channel, and the server's host.
    fn connection(&self, channel: &str) -> Result<(Arc<HubConnection>, Box<str>), Failure> {
        let mut connections = self.connections.lock();
        if !self.cluster.is_joined() {
            let new = || HubConnection::new(self.config.clone(), &self.cluster);
            return Ok((
                Arc::clone(connections.entry(0).or_insert_with(new)),
                "".into(),
            ));
        }
        let Some(node) = self.cluster.node_of(Slot::of(channel)) else {
            self.cluster.doubt();
            return Err(Failure::no_node());
        };
        let host = node.dialer.host().into();
        let connection = connections
            .entry(node.number)
            .or_insert_with(|| HubConnection::new(self.config.to(&node), &self.cluster));
        Ok((Arc::clone(connection), host))
    }

    /// Ends the subscription of `route`, even if it was not confirmed. The connection ends with the last one.
    pub(crate) async fn unsubscribe(&self, channel: &str, route: &Arc<Route>) {
        let listener = route.at.lock().take();
        let Some(listener) = listener else {
            return;
        };
        let Some(changing) = listener.remove(channel, route) else {
            return;
        };
        let limit = self.config.command_timeout;
        listener.unsubscribe(channel, changing, limit).await;
    }

    /// Slots moved to other nodes: breaks the routes of their channels, and drops the connections to nodes that left.
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

    /// Ends a subscription whose slot moved. Most often the node has ended it already.
    fn leave_behind(&self, listener: &Arc<Listener>, channel: Box<str>) {
        let (listener, limit) = (Arc::clone(listener), self.config.command_timeout);
        tokio::spawn(own(async move {
            if let Some(changing) = listener.changing(&channel) {
                listener.unsubscribe(&channel, changing, limit).await;
            }
        }));
    }

    /// Redis refused the subscription to `channel`. Returns whether to log that: it is the first refusal.
    pub(super) fn refused(&self, channel: &str) -> bool {
        let mut refusals = self.refusals.lock();
        refusals.channels.insert(channel.into());
        !std::mem::replace(&mut refusals.logged, true)
    }

    /// Redis granted the subscription to `channel`. Returns whether to log that: it was the last refused channel.
    pub(super) fn granted(&self, channel: &str) -> bool {
        let mut refusals = self.refusals.lock();
        let last = refusals.channels.remove(channel) && refusals.channels.is_empty();
        last && std::mem::take(&mut refusals.logged)
    }

    /// Nobody wants `channel` any more.
    pub(super) fn forget(&self, channel: &str) {
        self.refusals.lock().channels.remove(channel);
    }

    pub(crate) fn close(&self) {
        for connection in self.connections.lock().values() {
            connection.close();
        }
    }
}

/// The pauses before a refused connection or subscription is tried again.
pub(super) fn refusals() -> Delays {
    let backoff = Backoff::new().base(Duration::from_secs(1));
    backoff
        .cap(Duration::from_secs(30))
        .delays(fastrand::u64(..))
}

/// Whether a failure is a refusal, which may last longer than an outage.
pub(super) fn is_refusal(failure: &Failure) -> bool {
    matches!(failure.class, Class::Denied | Class::Rejected)
}

/// The connection to one server for subscriptions: opened for the first subscription, closed after the last one.
struct HubConnection {
    config: LaneConfig,
    cluster: Arc<Cluster>,
    listener: Mutex<Option<Arc<Listener>>>,
    /// Held while a connection is being made, so that only one is.
    connecting: tokio::sync::Mutex<Connecting>,
}

struct Connecting {
    pace: AttemptPace,
    refusals: Delays,
    /// Why the last attempt failed, and until when: whoever came before waits for no other attempt. The server may be gone
    /// for good, with thousands who want to listen to it.
    failed: Option<(Failure, Moment)>,
}

impl HubConnection {
    fn new(config: LaneConfig, cluster: &Arc<Cluster>) -> Arc<Self> {
        Arc::new(Self {
            cluster: Arc::clone(cluster),
            listener: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(Connecting {
                pace: AttemptPace::new(config.backoff, fastrand::u64(..)),
                refusals: refusals(),
                failed: None,
            }),
            config,
        })
    }

    /// The listener of the open connection, if there is one.
    fn current(&self) -> Option<Arc<Listener>> {
        let listener = self.listener.lock().clone();
        listener.filter(|listener| !listener.is_closed())
    }

    /// The listener of the connection. Connects if there is none.
    async fn listener(&self) -> Result<Arc<Listener>, Failure> {
        let came = self.config.clock.now();
        let mut connecting = self.connecting.lock().await;
        if let Some(listener) = self.current() {
            return Ok(listener);
        }
        if let Some((failure, until)) = &connecting.failed
            && came < *until
        {
            return Err(failure.clone());
        }
        let now = self.config.clock.now();
        tokio::time::sleep(connecting.pace.wait(now)).await;
        connecting.pace.attempt(self.config.clock.now());
        let connected = self.connect().await;
        let connected = self.config.metrics.connected("messages", connected);
        connecting.record(self.config.clock.now(), connected.as_ref().err());
        let timeout = self.config.command_timeout;
        let listener = Listener::start(connected?, Arc::clone(&self.cluster), timeout);
        *self.listener.lock() = Some(Arc::clone(&listener));
        Ok(listener)
    }

    async fn connect(&self) -> Result<(Sink, mpsc::UnboundedReceiver<PushInfo>), Failure> {
        let (sender, pushes) = mpsc::unbounded_channel();
        let config = &self.config;
        let subscribing = config
            .dialer
            .subscribe(&config.timers, config.connect_timeout, sender);
        let mut connection = subscribing.await?;
        config.greet(&mut connection).await?;
        let node = config.node.as_ref();
        let sink = Sink {
            connection,
            publish: node.map_or(Publish::Classic, |node| node.publish()),
        };
        Ok((sink, pushes))
    }

    fn close(&self) {
        if let Some(listener) = self.current() {
            listener.end();
        }
    }
}

impl Connecting {
    /// Records the result of an attempt. A refusal is not repeated for a while.
    fn record(&mut self, now: Moment, failure: Option<&Failure>) {
        self.failed = failure.map(|failure| {
            let pause = if is_refusal(failure) {
                self.refusals.step()
            } else {
                Duration::ZERO
            };
            (failure.clone(), now + pause)
        });
        if failure.is_none() {
            self.refusals.reset();
        }
    }
}
