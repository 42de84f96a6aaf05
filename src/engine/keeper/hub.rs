//! Wake-ups: one connection for all subscriptions of a client.
//!
//! The connection is opened for the first waiter and closed after the last one. Each channel has a
//! [`Route`], which counts its messages; a job takes them as one. When the connection breaks every route
//! of it is told, and is of no more use: its job subscribes anew and tries once.

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

struct Link {
    sink: PubSubSink,
    routes: Mutex<Option<HashMap<Box<str>, Arc<Route>>>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Link {
    /// Adds a route; false when the connection is over.
    fn add(&self, channel: &str, route: &Arc<Route>) -> bool {
        match &mut *self.routes.lock() {
            Some(routes) => {
                routes.insert(channel.into(), Arc::clone(route));
                true
            }
            None => false,
        }
    }

    fn deliver(&self, channel: &str) {
        if let Some(route) = self.routes.lock().as_ref().and_then(|all| all.get(channel)) {
            route.messages.fetch_add(1, Ordering::AcqRel);
            route.told.notify_one();
        }
    }

    /// The connection is over: every job subscribes anew.
    fn end(&self) {
        for route in self.routes.lock().take().unwrap_or_default().values() {
            route.broken.store(true, Ordering::Release);
            route.told.notify_one();
        }
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }

    fn is_over(&self) -> bool {
        self.routes.lock().is_none()
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

    /// Subscribes to `channel` and waits for the confirmation.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<Arc<Route>, Failure> {
        let link = self.link().await?;
        let route = Arc::<Route>::default();
        if !link.add(channel, &route) {
            return Err(Failure::no_connection());
        }
        let mut sink = link.sink.clone();
        match tokio::time::timeout(self.command_timeout, sink.subscribe(channel)).await {
            Ok(Ok(())) => Ok(route),
            Ok(Err(error)) => {
                self.remove(&link, channel);
                Err(Failure::from(error))
            }
            Err(_) => {
                link.end();
                Err(Failure::no_reply())
            }
        }
    }

    /// Ends a subscription, and the connection with the last one.
    pub(crate) async fn unsubscribe(&self, channel: &str) {
        let Some(link) = self.current() else { return };
        if self.remove(&link, channel) {
            return;
        }
        let mut sink = link.sink.clone();
        let done = tokio::time::timeout(self.command_timeout, sink.unsubscribe(channel)).await;
        if !matches!(done, Ok(Ok(()))) {
            link.end();
        }
    }

    /// Forgets a route; ends the connection, and says so, when it was the last.
    fn remove(&self, link: &Arc<Link>, channel: &str) -> bool {
        let last = match &mut *link.routes.lock() {
            Some(routes) => {
                routes.remove(channel);
                routes.is_empty()
            }
            None => true,
        };
        if last {
            link.end();
            self.link
                .lock()
                .take_if(|current| Arc::ptr_eq(current, link));
        }
        last
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
            routes: Mutex::new(Some(HashMap::new())),
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
