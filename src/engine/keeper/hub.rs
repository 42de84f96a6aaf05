//! Wake-ups: one connection for all subscriptions of a client.
//!
//! The connection is opened for the first waiter and closed after the last one. Each channel has a
//! [`Route`], which counts its messages; a job takes them as one. When the connection breaks every route
//! of it is told, and is of no more use: its job subscribes anew and tries once.
//!
//! Two names may share a channel (`x` and `{x}` do): it has a route for each, one subscription, and one
//! change of that at a time, so that the end of one route does not end the other's messages.
//!
//! What is refused (a password, a channel of the ACL) may be granted later: connecting is tried again, and so
//! is each channel by its job, ever more rarely. That is told when it begins, and when it works again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::backend::{Class, Failure, LaneConfig, Pace};
use crate::backoff::{Backoff, Delays};
use crate::clock::Moment;

/// How often a quiet connection is asked whether it is still there.
const PING: Duration = Duration::from_secs(5);

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
    listener: Mutex<Option<Arc<Listener>>>,
    /// Held while a connection is being made, so that there is one.
    connecting: tokio::sync::Mutex<Connecting>,
    refused: Mutex<Refused>,
}

/// What is refused at the moment.
#[derive(Default)]
struct Refused {
    /// The channels whose jobs wait for it.
    channels: HashSet<Box<str>>,
    /// It was told when that began, and not yet that it is over.
    told: bool,
}

struct Connecting {
    pace: Pace,
    refusals: Delays,
    /// The last attempt was refused; the next one is not made before then.
    refused: Option<(Failure, Moment)>,
}

/// A subscribed channel.
#[derive(Default)]
pub(crate) struct Route {
    /// Told at each message, and when the connection broke.
    pub(crate) told: Notify,
    messages: AtomicU32,
    broken: AtomicBool,
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
}

type Changing = Arc<tokio::sync::Mutex<()>>;

/// Who listens to a channel.
#[derive(Default)]
struct Channel {
    routes: Vec<Arc<Route>>,
    /// Held while the subscription begins or ends.
    changing: Changing,
}

struct Listener {
    sink: PubSubSink,
    channels: Mutex<Option<HashMap<Box<str>, Channel>>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Listener {
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
            route.messages.fetch_add(1, Ordering::Relaxed);
            route.told.notify_one();
        }
    }

    /// The connection is over: every job subscribes anew.
    fn end(&self) {
        let channels = self.channels.lock().take().unwrap_or_default();
        for route in channels.values().flat_map(|channel| &channel.routes) {
            route.broken.store(true, Ordering::Relaxed);
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
            config: config.clone(),
            listener: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(Connecting {
                pace: Pace::new(config.backoff, fastrand::u64(..)),
                refusals: refusals(),
                refused: None,
            }),
            refused: Mutex::default(),
        }
    }

    /// Subscribes `route` to `channel` and waits for the confirmation.
    pub(crate) async fn subscribe(&self, channel: &str, route: &Arc<Route>) -> Result<(), Failure> {
        let listener = self.listener().await?;
        let Some(changing) = listener.add(channel, route) else {
            return Err(Failure::no_connection());
        };
        let mut sink = listener.sink.clone();
        let subscribing = async {
            let _changing = changing.lock().await;
            sink.subscribe(channel).await
        };
        match tokio::time::timeout(self.config.command_timeout, subscribing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                if self.remove(&listener, channel, route).is_some() {
                    listener.forget(channel);
                }
                Err(Failure::from(error))
            }
            Err(_) => {
                listener.end();
                Err(Failure::no_reply())
            }
        }
    }

    /// Ends the subscription of `route`, also when it was not confirmed, and the connection with the
    /// last one.
    pub(crate) async fn unsubscribe(&self, channel: &str, route: &Arc<Route>) {
        let Some(listener) = self.current() else {
            return;
        };
        let Some(changing) = self.remove(&listener, channel, route) else {
            return;
        };
        let mut sink = listener.sink.clone();
        let unsubscribing = async {
            let _changing = changing.lock().await;
            if !listener.is_routed(channel) {
                sink.unsubscribe(channel).await?;
                listener.forget(channel);
            }
            redis::RedisResult::Ok(())
        };
        let done = tokio::time::timeout(self.config.command_timeout, unsubscribing).await;
        if !matches!(done, Ok(Ok(()))) {
            listener.end();
        }
    }

    /// Takes a route out; what to hold while unsubscribing, or nothing when the connection is over: it
    /// ends with the last route of all.
    fn remove(
        &self,
        listener: &Arc<Listener>,
        channel: &str,
        route: &Arc<Route>,
    ) -> Option<Changing> {
        let changing = listener.remove(channel, route);
        if listener.is_used() {
            return changing;
        }
        listener.end();
        self.listener
            .lock()
            .take_if(|current| Arc::ptr_eq(current, listener));
        None
    }

    fn current(&self) -> Option<Arc<Listener>> {
        let listener = self.listener.lock().clone();
        listener.filter(|listener| !listener.is_over())
    }

    async fn listener(&self) -> Result<Arc<Listener>, Failure> {
        let mut connecting = self.connecting.lock().await;
        if let Some(listener) = self.current() {
            return Ok(listener);
        }
        let pubsub = connecting.connect(&self.config).await?;
        let (sink, stream) = pubsub.split();
        let listener = Arc::new(Listener {
            sink,
            channels: Mutex::new(Some(HashMap::new())),
            tasks: Mutex::default(),
        });
        let reads = tokio::spawn(read(Arc::clone(&listener), stream));
        let pings = tokio::spawn(ping(Arc::clone(&listener), self.config.command_timeout));
        listener
            .tasks
            .lock()
            .extend([reads.abort_handle(), pings.abort_handle()]);
        *self.listener.lock() = Some(Arc::clone(&listener));
        Ok(listener)
    }

    /// Subscribing to `channel` was refused. Whether to tell: it was not told before.
    pub(super) fn refused(&self, channel: &str) -> bool {
        let mut refused = self.refused.lock();
        refused.channels.insert(channel.into());
        !std::mem::replace(&mut refused.told, true)
    }

    /// Subscribing to `channel` works. Whether to tell: it was the last that was refused.
    pub(super) fn granted(&self, channel: &str) -> bool {
        let mut refused = self.refused.lock();
        let last = refused.channels.remove(channel) && refused.channels.is_empty();
        last && std::mem::take(&mut refused.told)
    }

    /// Nobody wants `channel` any more.
    pub(super) fn forget(&self, channel: &str) {
        self.refused.lock().channels.remove(channel);
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        if let Some(listener) = self.current() {
            listener.end();
        }
    }
}

impl Connecting {
    async fn connect(&mut self, config: &LaneConfig) -> Result<PubSub, Failure> {
        let now = config.clock.now();
        if let Some((failure, until)) = &self.refused
            && now < *until
        {
            return Err(failure.clone());
        }
        tokio::time::sleep(self.pace.wait(now)).await;
        self.pace.attempt(config.clock.now());
        let connected = config.dialer.subscribe(config.connect_timeout).await;
        self.refused = match &connected {
            Err(failure) if is_refusal(failure) => {
                let until = config.clock.now() + self.refusals.step();
                Some((failure.clone(), until))
            }
            _ => None,
        };
        if connected.is_ok() {
            self.refusals.reset();
        }
        connected
    }
}

async fn read(listener: Arc<Listener>, mut stream: PubSubStream) {
    while let Some(message) = stream.next().await {
        listener.deliver(message.get_channel_name());
    }
    listener.end();
}

/// Finds a connection that is half open: nobody tells of it.
async fn ping(listener: Arc<Listener>, timeout: Duration) {
    let mut sink = listener.sink.clone();
    loop {
        tokio::time::sleep(PING).await;
        let pong = tokio::time::timeout(timeout, sink.ping::<redis::Value>()).await;
        if !matches!(pong, Ok(Ok(_))) {
            listener.end();
            return;
        }
    }
}
