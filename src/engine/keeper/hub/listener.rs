//! One connection with subscriptions, and who listens on it to what.
//!
//! 1. A message is for the routes of its channel, whatever else the connection is doing.
//! 2. Where channels belong to slots, a node ends the subscriptions of a slot that leaves it. Nobody asked for that:
//!    the routes of the channel are broken, and their jobs subscribe anew.
//! 3. A subscription counts when it was confirmed by the channel's name: what nobody asked for may be taken for the
//!    reply to a command.
//!
//! Two names may share a channel (`x` and `{x}` do): it has a route for each, one subscription, and one
//! change of that at a time, so that the end of one route does not end the other's messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{RedisError, RedisResult};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::wire::{News, Sink, Stream};
use crate::backend::Cluster;

/// How often a quiet connection is asked whether it is still there.
const PING: Duration = Duration::from_secs(5);

/// A subscribed channel.
#[derive(Default)]
pub(crate) struct Route {
    /// Told at each message, and when the connection broke.
    pub(crate) told: Notify,
    messages: AtomicU32,
    /// What was said last, if it was more than a number.
    said: Mutex<Option<Box<str>>>,
    broken: AtomicBool,
    /// Where it is subscribed, or about to be.
    pub(super) at: Mutex<Option<Arc<Listener>>>,
}

/// `told` orders what it tells of: a permit is given after the change, and its taker sees that. So the counter
/// and the flag need no order of their own.
impl Route {
    /// How many messages came since the last call.
    pub(crate) fn take_messages(&self) -> u32 {
        self.messages.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// What was said last, and was not taken yet.
    pub(crate) fn take_said(&self) -> Option<Box<str>> {
        self.said.lock().take()
    }

    fn hear(&self, said: Option<&str>) {
        if let Some(said) = said {
            *self.said.lock() = Some(said.into());
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.told.notify_one();
    }

    fn end(&self) {
        self.broken.store(true, Ordering::Relaxed);
        self.told.notify_one();
    }
}

pub(super) type Changing = Arc<tokio::sync::Mutex<()>>;

/// Who listens to a channel.
#[derive(Default)]
struct Channel {
    routes: Vec<Arc<Route>>,
    /// Held while the subscription begins or ends.
    changing: Changing,
    /// Messages arrive.
    confirmed: bool,
    /// Its end was asked for.
    leaving: bool,
}

/// Why subscribing failed.
pub(super) enum Refused {
    /// The connection is over.
    Over,
    By(RedisError),
}

pub(super) struct Listener {
    sink: Mutex<Option<Sink>>,
    channels: Mutex<Option<HashMap<Box<str>, Channel>>>,
    tasks: Mutex<Vec<AbortHandle>>,
    /// Told when a channel was confirmed, or ended.
    changed: Notify,
}

impl Listener {
    /// Begins to listen; `timeout` is for how long a reply is waited for.
    pub(super) fn start(
        (sink, stream): (Sink, Stream),
        cluster: Arc<Cluster>,
        timeout: Duration,
    ) -> Arc<Self> {
        let listener = Arc::new(Self {
            sink: Mutex::new(Some(sink.clone())),
            channels: Mutex::new(Some(HashMap::new())),
            tasks: Mutex::default(),
            changed: Notify::new(),
        });
        let reads = tokio::spawn(read(Arc::clone(&listener), stream, cluster));
        let pings = tokio::spawn(ping(Arc::clone(&listener), sink, timeout));
        let tasks = [reads.abort_handle(), pings.abort_handle()];
        listener.tasks.lock().extend(tasks);
        listener
    }

    /// Subscribes a route to `channel`, and waits for the confirmation.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        channel: &str,
        route: &Arc<Route>,
    ) -> Result<(), Refused> {
        let changing = self.add(channel, route).ok_or(Refused::Over)?;
        let _changing = changing.lock().await;
        let mut sink = self.sink().ok_or(Refused::Over)?;
        if sink.subscribe(channel).await.map_err(Refused::By)? {
            return Ok(());
        }
        self.confirmed(channel, route).await
    }

    /// Waits until messages of `channel` arrive for a route.
    async fn confirmed(&self, channel: &str, route: &Arc<Route>) -> Result<(), Refused> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let channels = self.channels.lock();
                let channel = channels.as_ref().and_then(|all| all.get(channel));
                let channel = channel.ok_or(Refused::Over)?;
                if !channel.routes.iter().any(|known| Arc::ptr_eq(known, route)) {
                    return Err(Refused::Over);
                }
                if channel.confirmed {
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    /// Ends the subscription of a route that was taken out; of no other.
    pub(super) async fn unsubscribe(&self, channel: &str, changing: Changing) -> RedisResult<()> {
        let _changing = changing.lock().await;
        if let Some(mut sink) = self.begin_to_leave(channel) {
            sink.unsubscribe(channel).await?;
            self.forget(channel);
        }
        Ok(())
    }

    /// Adds a route; what to hold while subscribing, or nothing when the connection is over.
    fn add(self: &Arc<Self>, channel: &str, route: &Arc<Route>) -> Option<Changing> {
        let mut channels = self.channels.lock();
        let channel = channels.as_mut()?.entry(channel.into()).or_default();
        channel.routes.push(Arc::clone(route));
        *route.at.lock() = Some(Arc::clone(self));
        Some(Arc::clone(&channel.changing))
    }

    /// Takes a route out; what to hold while unsubscribing, or nothing when the connection is over: it ends with the
    /// last route of all.
    pub(super) fn remove(&self, channel: &str, route: &Arc<Route>) -> Option<Changing> {
        let changing = {
            let mut channels = self.channels.lock();
            let channel = channels.as_mut()?.get_mut(channel)?;
            channel.routes.retain(|known| !Arc::ptr_eq(known, route));
            Arc::clone(&channel.changing)
        };
        if self.is_used() {
            return Some(changing);
        }
        self.end();
        None
    }

    /// What to hold while the subscription of a channel changes.
    pub(super) fn changing(&self, channel: &str) -> Option<Changing> {
        let channels = self.channels.lock();
        let channel = channels.as_ref()?.get(channel)?;
        Some(Arc::clone(&channel.changing))
    }

    /// What to end a subscription with, if nobody listens to it any more.
    fn begin_to_leave(&self, channel: &str) -> Option<Sink> {
        let mut channels = self.channels.lock();
        let channel = channels.as_mut()?.get_mut(channel)?;
        if !channel.routes.is_empty() {
            return None;
        }
        channel.leaving = true;
        channel.confirmed = false;
        self.sink()
    }

    /// Whether anybody listens to anything.
    fn is_used(&self) -> bool {
        let channels = self.channels.lock();
        let mut all = channels.iter().flat_map(HashMap::values);
        all.any(|channel| !channel.routes.is_empty())
    }

    /// Forgets a channel, unless somebody listens to it again.
    pub(super) fn forget(&self, channel: &str) {
        if let Some(channels) = &mut *self.channels.lock()
            && let Some(known) = channels.get_mut(channel)
        {
            known.leaving = false;
            if known.routes.is_empty() {
                channels.remove(channel);
            }
        }
    }

    /// Takes out what `is_meant`; the channels that it took out.
    pub(super) fn break_where(&self, is_meant: impl Fn(&str) -> bool) -> Vec<Box<str>> {
        let mut broken = Vec::new();
        if let Some(channels) = &mut *self.channels.lock() {
            for (name, channel) in channels.iter_mut() {
                if !channel.routes.is_empty() && is_meant(name) {
                    broken.push(name.clone());
                    channel.confirmed = false;
                    channel.routes.drain(..).for_each(|route| route.end());
                }
            }
        }
        self.changed.notify_waiters();
        if !broken.is_empty() && !self.is_used() {
            self.end();
        }
        broken
    }

    fn take(&self, news: News, cluster: &Cluster) {
        match news {
            News::Message(channel, said) => {
                let channels = self.channels.lock();
                let channel = channels.as_ref().and_then(|all| all.get(&channel));
                let routes = channel.iter().flat_map(|channel| &channel.routes);
                routes.for_each(|route| route.hear(said.as_deref()));
            }
            News::Confirmed(channel) => {
                if let Some(channels) = &mut *self.channels.lock()
                    && let Some(channel) = channels.get_mut(&channel)
                {
                    channel.confirmed = true;
                }
                self.changed.notify_waiters();
            }
            News::Ended(channel) => {
                if !self.is_leaving(&channel) {
                    cluster.doubt();
                    self.break_where(|name| *name == *channel);
                }
            }
        }
    }

    fn is_leaving(&self, channel: &str) -> bool {
        let channels = self.channels.lock();
        let channel = channels.as_ref().and_then(|all| all.get(channel));
        channel.is_none_or(|channel| channel.leaving)
    }

    fn sink(&self) -> Option<Sink> {
        self.sink.lock().clone()
    }

    /// The connection is over: every job subscribes anew.
    pub(super) fn end(&self) {
        let channels = self.channels.lock().take().unwrap_or_default();
        for route in channels.values().flat_map(|channel| &channel.routes) {
            route.end();
        }
        self.sink.lock().take();
        self.changed.notify_waiters();
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.channels.lock().is_none()
    }
}

async fn read(listener: Arc<Listener>, mut stream: Stream, cluster: Arc<Cluster>) {
    while let Some(news) = stream.next().await {
        listener.take(news, &cluster);
    }
    listener.end();
}

/// Finds a connection that is half open: nobody tells of it.
async fn ping(listener: Arc<Listener>, mut sink: Sink, timeout: Duration) {
    loop {
        tokio::time::sleep(PING).await;
        let pong = tokio::time::timeout(timeout, sink.ping()).await;
        if !matches!(pong, Ok(Ok(()))) {
            listener.end();
            return;
        }
    }
}
