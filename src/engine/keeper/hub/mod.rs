//! Wake-ups: one connection for all subscriptions of a client; in a cluster one to each node whose slots have channels
//! that somebody listens to.
//!
//! A connection is opened for the first waiter and closed after the last one. Each channel has a
//! [`Route`], which counts its messages; a job takes them as one. When the connection breaks every route
//! of it is told, and is of no more use: its job subscribes anew and tries once. So it is when a slot changes its node.
//!
//! What is refused (a password, a channel of the ACL) may be granted later: connecting is tried again, and so
//! is each channel by its job, ever more rarely. That is told when it begins, and when it works again.

mod listener;
mod spoke;
mod wire;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use self::listener::Route;
use self::listener::{Listener, Refused};
use self::spoke::Spoke;
use crate::backend::Cluster;
use crate::backend::{Class, Failure, LaneConfig, Redirect};
use crate::backoff::{Backoff, Delays};
use crate::slot::Slot;

/// So often a subscription follows its slot from node to node.
const HOPS: usize = 5;

/// After how long what was refused is tried again.
pub(super) fn refusals() -> Delays {
    let backoff = Backoff::new().base(Duration::from_secs(1));
    backoff
        .cap(Duration::from_secs(30))
        .delays(fastrand::u64(..))
}

/// Whether a failure is a refusal, which may last.
pub(super) fn is_refusal(failure: &Failure) -> bool {
    matches!(failure.class, Class::Denied | Class::Rejected)
}

pub(crate) struct Hub {
    config: LaneConfig,
    cluster: Arc<Cluster>,
    /// By the number of the node; 0 is the one server.
    spokes: Mutex<HashMap<u32, Arc<Spoke>>>,
    refusals: Mutex<Refusals>,
}

/// What is refused at the moment.
#[derive(Default)]
struct Refusals {
    /// The channels whose jobs wait for it.
    channels: HashSet<Box<str>>,
    /// It was told when that began, and not yet that it is over.
    told: bool,
}

impl Hub {
    pub(crate) fn new(config: &LaneConfig, cluster: &Arc<Cluster>) -> Self {
        Self {
            config: config.clone(),
            cluster: Arc::clone(cluster),
            spokes: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Subscribes `route` to `channel` and waits for the confirmation.
    pub(crate) async fn subscribe(&self, channel: &str, route: &Arc<Route>) -> Result<(), Failure> {
        for _ in 0..HOPS {
            let (spoke, host) = self.spoke(channel)?;
            let listener = spoke.listener().await?;
            let subscribing = listener.subscribe(channel, route);
            let error = match tokio::time::timeout(self.config.command_timeout, subscribing).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Refused::Over)) => return Err(Failure::no_connection()),
                Ok(Err(Refused::By(error))) => error,
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
    fn spoke(&self, channel: &str) -> Result<(Arc<Spoke>, Box<str>), Failure> {
        let mut spokes = self.spokes.lock();
        if !self.cluster.is_joined() {
            let new = || Spoke::new(&self.config, &self.cluster, None);
            return Ok((Arc::clone(spokes.entry(0).or_insert_with(new)), "".into()));
        }
        let Some(node) = self.cluster.node_of(Slot::of(channel)) else {
            self.cluster.doubt();
            return Err(Failure::no_node());
        };
        let host = node.host().into();
        let spoke = spokes
            .entry(node.number())
            .or_insert_with(|| Spoke::new(&self.config, &self.cluster, Some(node)));
        Ok((Arc::clone(spoke), host))
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
            .map(|node| node.number())
            .collect();
        let mut spokes = self.spokes.lock();
        for (number, spoke) in spokes.iter() {
            let Some(listener) = spoke.current() else {
                continue;
            };
            let elsewhere = |channel: &str| {
                let node = self.cluster.node_of(Slot::of(channel));
                node.is_none_or(|node| node.number() != *number)
            };
            for channel in listener.break_where(elsewhere) {
                self.leave_behind(&listener, channel);
            }
        }
        spokes.retain(|number, _| nodes.contains(number));
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
        !std::mem::replace(&mut refusals.told, true)
    }

    /// Subscribing to `channel` works. Whether to tell: it was the last that was refused.
    pub(super) fn granted(&self, channel: &str) -> bool {
        let mut refusals = self.refusals.lock();
        let last = refusals.channels.remove(channel) && refusals.channels.is_empty();
        last && std::mem::take(&mut refusals.told)
    }

    /// Nobody wants `channel` any more.
    pub(super) fn forget(&self, channel: &str) {
        self.refusals.lock().channels.remove(channel);
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        for spoke in self.spokes.lock().values() {
            spoke.close();
        }
    }
}
