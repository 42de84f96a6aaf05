//! Wake-ups: one connection for all subscriptions of a client.
//!
//! The connection is opened for the first waiter and closed after the last one. Each channel has a
//! [`Route`], which counts its messages; a job takes them as one. When the connection breaks every route
//! of it is told, and is of no more use: its job subscribes anew and tries once.
//!
//! Two names may share a channel (`x` and `{x}` do): it has a route for each, one subscription, and one
//! change of that at a time, so that the end of one route does not end the other's messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::backend::{Dialer, Failure, LaneConfig};

/// How often a quiet connection is asked whether it is still there.
const PING: Duration = Duration::from_secs(5);

pub(crate) struct Hub {
    dialer: Arc<Dialer>,
    command_timeout: Duration,
    connect_timeout: Duration,
    link: Mutex<Option<Arc<Link>>>,
    /// Held while a connection is being made, so that there is one.
    connecting: tokio::sync::Mutex<()>,
    denied: AtomicBool,
}

/// A subscribed channel.
#[derive(Default)]
pub(crate) struct Route {
    /// Told at each message, and when the connection broke.
    pub(crate) told: Notify,
    messages: AtomicU32,
    broken: AtomicBool,
}

impl Route {
    /// How many messages came since the last call.
    pub(crate) fn take_messages(&self) -> u32 {
        self.messages.swap(0, Ordering::AcqRel)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }
}

type Changing = Arc<tokio::sync::Mutex<()>>;

/// Who listens to a channel.
#[derive(Default)]
struct Channel {
    routes: Vec<Arc<Route>>,
    /// Held while the subscription begins or ends.
    changing: Changing,
}

struct Link {
    sink: PubSubSink,
    channels: Mutex<Option<HashMap<Box<str>, Channel>>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Link {
    /// Adds a route; what to hold while subscribing, or nothing when the connection is over.
    fn add(&self, channel: &str, route: &Arc<Route>) -> Option<Changing> {
        let mut channels = self.channels.lock();
        let channel = channels.as_mut()?.entry(channel.into()).or_default();
        channel.routes.push(Arc::clone(route));
        Some(Arc::clone(&channel.changing))
    }

    /// Takes a route out. What to hold while unsubscribing.
    fn remove(&self, channel: &str, route: &Arc<Route>) -> Option<Changing> {
        let mut channels = self.channels.lock();
        let channel = channels.as_mut()?.get_mut(channel)?;
        channel.routes.retain(|known| !Arc::ptr_eq(known, route));
        Some(Arc::clone(&channel.changing))
    }

    /// Whether anybody listens to `channel`.
    fn is_routed(&self, channel: &str) -> bool {
        let channels = self.channels.lock();
        let channel = channels.as_ref().and_then(|all| all.get(channel));
        channel.is_some_and(|channel| !channel.routes.is_empty())
    }

    /// Whether anybody listens to anything.
    fn is_used(&self) -> bool {
        let channels = self.channels.lock();
        let mut all = channels.iter().flat_map(HashMap::values);
        all.any(|channel| !channel.routes.is_empty())
    }

    /// Forgets a channel that nobody listens to any more.
    fn forget(&self, channel: &str) {
        if let Some(channels) = &mut *self.channels.lock()
            && channels.get(channel).is_some_and(|c| c.routes.is_empty())
        {
            channels.remove(channel);
        }
    }

    fn deliver(&self, channel: &str) {
        let channels = self.channels.lock();
        let channel = channels.as_ref().and_then(|all| all.get(channel));
        for route in channel.iter().flat_map(|channel| &channel.routes) {
            route.messages.fetch_add(1, Ordering::AcqRel);
            route.told.notify_one();
        }
    }

    /// The connection is over: every job subscribes anew.
    fn end(&self) {
        let channels = self.channels.lock().take().unwrap_or_default();
        for route in channels.values().flat_map(|channel| &channel.routes) {
            route.broken.store(true, Ordering::Release);
            route.told.notify_one();
        }
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }

    fn is_over(&self) -> bool {
        self.channels.lock().is_none()
    }
}

impl Hub {
    pub(crate) fn new(config: &LaneConfig) -> Self {
        Self {
            dialer: Arc::clone(&config.dialer),
            command_timeout: config.command_timeout,
            connect_timeout: config.connect_timeout,
            link: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            denied: AtomicBool::new(false),
        }
    }

    /// Subscribes `route` to `channel` and waits for the confirmation.
    pub(crate) async fn subscribe(&self, channel: &str, route: &Arc<Route>) -> Result<(), Failure> {
        let link = self.link().await?;
        let Some(changing) = link.add(channel, route) else {
            return Err(Failure::no_connection());
        };
        let mut sink = link.sink.clone();
        let subscribing = async {
            let _changing = changing.lock().await;
            sink.subscribe(channel).await
        };
        match tokio::time::timeout(self.command_timeout, subscribing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                if self.remove(&link, channel, route).is_some() {
                    link.forget(channel);
                }
                Err(Failure::from(error))
            }
            Err(_) => {
                link.end();
                Err(Failure::no_reply())
            }
        }
    }

    /// Ends the subscription of `route`, also when it was not confirmed, and the connection with the
    /// last one.
    pub(crate) async fn unsubscribe(&self, channel: &str, route: &Arc<Route>) {
        let Some(link) = self.current() else { return };
        let Some(changing) = self.remove(&link, channel, route) else {
            return;
        };
        let mut sink = link.sink.clone();
        let unsubscribing = async {
            let _changing = changing.lock().await;
            if !link.is_routed(channel) {
                sink.unsubscribe(channel).await?;
                link.forget(channel);
            }
            redis::RedisResult::Ok(())
        };
        let done = tokio::time::timeout(self.command_timeout, unsubscribing).await;
        if !matches!(done, Ok(Ok(()))) {
            link.end();
        }
    }

    /// Takes a route out; what to hold while unsubscribing, or nothing when the connection is over: it
    /// ends with the last route of all.
    fn remove(&self, link: &Arc<Link>, channel: &str, route: &Arc<Route>) -> Option<Changing> {
        let changing = link.remove(channel, route);
        if link.is_used() {
            return changing;
        }
        link.end();
        self.link
            .lock()
            .take_if(|current| Arc::ptr_eq(current, link));
        None
    }

    fn current(&self) -> Option<Arc<Link>> {
        let link = self.link.lock().clone();
        link.filter(|link| !link.is_over())
    }

    async fn link(&self) -> Result<Arc<Link>, Failure> {
        let _connecting = self.connecting.lock().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let pubsub = self.dialer.subscribe(self.connect_timeout).await?;
        let (sink, stream) = pubsub.split();
        let link = Arc::new(Link {
            sink,
            channels: Mutex::new(Some(HashMap::new())),
            tasks: Mutex::default(),
        });
        let reads = tokio::spawn(read(Arc::clone(&link), stream));
        let pings = tokio::spawn(ping(Arc::clone(&link), self.command_timeout));
        link.tasks
            .lock()
            .extend([reads.abort_handle(), pings.abort_handle()]);
        *self.link.lock() = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Whether this is the first time that subscribing was denied.
    pub(crate) fn first_denied(&self) -> bool {
        !self.denied.swap(true, Ordering::AcqRel)
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        if let Some(link) = self.current() {
            link.end();
        }
    }
}

async fn read(link: Arc<Link>, mut stream: PubSubStream) {
    while let Some(message) = stream.next().await {
        link.deliver(message.get_channel_name());
    }
    link.end();
}

/// Finds a connection that is half open: nobody tells of it.
async fn ping(link: Arc<Link>, timeout: Duration) {
    let mut sink = link.sink.clone();
    loop {
        tokio::time::sleep(PING).await;
        let pong = tokio::time::timeout(timeout, sink.ping::<redis::Value>()).await;
        if !matches!(pong, Ok(Ok(_))) {
            link.end();
            return;
        }
    }
}
