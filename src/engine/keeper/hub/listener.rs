//! The subscriptions of one connection: which routes listen to which channel. Commands go into a [`Sink`], what the server
//! pushes comes out of a channel.
//!
//! 1. A message goes to all routes of its channel, even while a subscription begins or ends.
//! 2. In a cluster with sharded channels, a node ends the subscriptions of a slot that leaves it, without a command of
//!    ours. Then the routes of the channel are broken, and their jobs subscribe again.
//! 3. A subscription begins with a confirmation that names its channel. The reply to the command is not enough: the
//!    client may take an unrequested end (2) for that reply.
//! 4. Two names may share a channel (`x` and `{x}` do). The channel then has a route for each but only one
//!    subscription, which changes once at a time, so that the end of one route does not end the other's messages.
//! 5. The connection speaks RESP3, in which the server's own messages (pushes) differ from replies. In RESP2 the client
//!    would take the unrequested end of a subscription (2) for a reply, and would not notice that it gets no messages any
//!    more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::AbortHandle;

use crate::backend::{Cluster, Connection};
use crate::config::Publish;
use crate::host::{RandomState, own};

/// How often a connection is probed with a ping.
const PING: Duration = Duration::from_secs(5);

/// A message that follows another one, for waiters of Redisson (`lua/rw/release.lua`). We ignore it.
const REPEATED: &[u8] = b"00";

/// Delivers the messages of one channel to one job.
#[derive(Default)]
pub(crate) struct Route {
    /// Notified at each message, and when the route breaks.
    pub(crate) changed: Notify,
    messages: AtomicU32,
    broken: AtomicBool,
    /// The listener that it is subscribed at, or about to be.
    pub(super) at: Mutex<Option<Arc<Listener>>>,
}

// Relaxed: `changed` orders the counter and the flag. A writer changes them before it notifies, and the task that takes
// the notification reads them after that.
impl Route {
    /// How many messages came since the last call.
    pub(crate) fn take_messages(&self) -> u32 {
        self.messages.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn had_connection(&self) -> bool {
        self.at.lock().is_some()
    }

    fn deliver(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
    }

    fn end(&self) {
        self.broken.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

/// Held while the subscription of a channel begins or ends.
pub(super) type ChangeLock = Arc<tokio::sync::Mutex<()>>;

/// The routes of a channel, and the state of its subscription.
#[derive(Default)]
struct Channel {
    routes: Vec<Arc<Route>>,
    changing: ChangeLock,
    /// The subscription is confirmed, so messages arrive.
    confirmed: bool,
    /// We sent the command that ends it.
    leaving: bool,
}

impl Channel {
    /// Messages do not arrive any more.
    fn end(&mut self) {
        self.confirmed = false;
        self.routes.drain(..).for_each(|route| route.end());
    }
}

pub(super) struct Listener {
    sink: Mutex<Option<Sink>>,
    channels: Mutex<Option<HashMap<Box<str>, Channel, RandomState>>>,
    /// How many pushes came, and how many answers to our commands. Relaxed: they stand for themselves.
    heard: AtomicU32,
    answers: AtomicU32,
    tasks: Mutex<Vec<AbortHandle>>,
    /// Notified when a subscription was confirmed or ended.
    changed: Notify,
}

impl Listener {
    /// Starts the tasks that read and ping. `timeout`: how long a ping waits for its reply.
    pub(super) fn start(
        (sink, pushes): (Sink, UnboundedReceiver<PushInfo>),
        cluster: Arc<Cluster>,
        timeout: Duration,
    ) -> Arc<Self> {
        let listener = Arc::new(Self {
            sink: Mutex::new(Some(sink.clone())),
            channels: Mutex::new(Some(HashMap::default())),
            heard: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            tasks: Mutex::default(),
            changed: Notify::new(),
        });
        let reads = tokio::spawn(own(read(Arc::clone(&listener), pushes, cluster)));
        let pings = tokio::spawn(own(ping(Arc::clone(&listener), sink, timeout)));
        let tasks = [reads.abort_handle(), pings.abort_handle()];
        listener.tasks.lock().extend(tasks);
        listener
    }

    /// Subscribes a route to `channel`, and waits for the confirmation. `None` if the connection has ended.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        channel: &str,
        route: &Arc<Route>,
    ) -> Option<RedisResult<()>> {
        let changing = self.add(channel, route)?;
        let _changing = changing.lock().await;
        let subscribed = self.sink()?.subscribe(channel).await;
        self.is_answered();
        if subscribed.is_ok() {
            self.confirmed(channel, route).await?;
        }
        Some(subscribed)
    }

    fn is_answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// The output of `future`, which awaits an answer; none if for `limit` there was no answer to anything. It may be behind
    /// thousands of others.
    pub(super) async fn while_answered<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        loop {
            let answers = self.answers.load(Ordering::Relaxed);
            let output = tokio::time::timeout(limit, future.as_mut()).await;
            if output.is_ok() || self.answers.load(Ordering::Relaxed) == answers {
                return output.ok();
            }
        }
    }

    /// Waits until messages of `channel` arrive for a route. `None` if they never will.
    async fn confirmed(&self, channel: &str, route: &Arc<Route>) -> Option<()> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let channels = self.channels.lock();
                let channel = channels.as_ref()?.get(channel)?;
                if !channel.routes.iter().any(|known| Arc::ptr_eq(known, route)) {
                    return None;
                }
                if channel.confirmed {
                    return Some(());
                }
            }
            changed.await;
        }
    }

    /// Ends the subscription of `channel`, unless a route is left. If that fails, or nothing is answered for `limit`, it ends
    /// the connection.
    pub(super) async fn unsubscribe(&self, channel: &str, changing: ChangeLock, limit: Duration) {
        let unsubscribing = async {
            let _changing = changing.lock().await;
            if let Some(mut sink) = self.begin_to_leave(channel) {
                let unsubscribed = sink.unsubscribe(channel).await;
                self.is_answered();
                unsubscribed?;
                self.forget(channel);
            }
            RedisResult::Ok(())
        };
        let done = self.while_answered(limit, unsubscribing).await;
        if !matches!(done, Some(Ok(()))) {
            self.end();
        }
    }

    /// Adds a route. Returns the lock to hold while subscribing, or `None` if the connection has ended.
    fn add(self: &Arc<Self>, channel: &str, route: &Arc<Route>) -> Option<ChangeLock> {
        let mut channels = self.channels.lock();
        let channel = channels.as_mut()?.entry(channel.into()).or_default();
        channel.routes.push(Arc::clone(route));
        *route.at.lock() = Some(Arc::clone(self));
        Some(Arc::clone(&channel.changing))
    }

    /// Removes a route. Returns the lock to hold while unsubscribing, or `None` if the connection has ended: it ends
    /// with the last route of all.
    pub(super) fn remove(&self, channel: &str, route: &Arc<Route>) -> Option<ChangeLock> {
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

    /// The lock to hold while the subscription of a channel changes.
    pub(super) fn changing(&self, channel: &str) -> Option<ChangeLock> {
        let channels = self.channels.lock();
        let channel = channels.as_ref()?.get(channel)?;
        Some(Arc::clone(&channel.changing))
    }

    /// The sink to end a subscription with, if it has no route any more.
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

    /// Whether any channel has a route.
    fn is_used(&self) -> bool {
        let channels = self.channels.lock();
        let mut all = channels.iter().flat_map(HashMap::values);
        all.any(|channel| !channel.routes.is_empty())
    }

    /// Removes a channel, unless it has a route again.
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

    /// Breaks the routes of the channels that `is_meant` selects. Returns these channels.
    pub(super) fn break_where(&self, is_meant: impl Fn(&str) -> bool) -> Vec<Box<str>> {
        let mut broken = Vec::new();
        if let Some(channels) = &mut *self.channels.lock() {
            for (name, channel) in channels.iter_mut() {
                if !channel.routes.is_empty() && is_meant(name) {
                    broken.push(name.clone());
                    channel.end();
                }
            }
        }
        self.ended(!broken.is_empty());
        broken
    }

    /// Subscriptions may have ended. The connection ends with the last route.
    fn ended(&self, any: bool) {
        self.changed.notify_waiters();
        if any && !self.is_used() {
            self.end();
        }
    }

    /// Acts on what the server pushed about a channel.
    fn take(&self, push: &PushInfo, cluster: &Cluster) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        let mut channels = self.channels.lock();
        let channel = push.data.first().and_then(|name| {
            let name: String = redis::from_redis_value_ref(name).ok()?;
            channels.as_mut()?.get_mut(&*name)
        });
        let Some(channel) = channel else {
            return;
        };
        match push.kind {
            PushKind::Message | PushKind::SMessage if is_repeated(push) => {}
            PushKind::Message | PushKind::SMessage => {
                channel.routes.iter().for_each(|route| route.deliver());
            }
            PushKind::Subscribe | PushKind::SSubscribe => {
                channel.confirmed = true;
                self.changed.notify_waiters();
            }
            // It has ended, and we did not ask for that.
            PushKind::Unsubscribe | PushKind::SUnsubscribe if !channel.leaving => {
                cluster.doubt();
                channel.end();
                drop(channels);
                self.ended(true);
            }
            _ => {}
        }
    }

    fn sink(&self) -> Option<Sink> {
        self.sink.lock().clone()
    }

    /// Ends the connection, and breaks all routes: every job subscribes again.
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

    pub(super) fn is_closed(&self) -> bool {
        self.channels.lock().is_none()
    }
}

async fn read(
    listener: Arc<Listener>,
    mut pushes: UnboundedReceiver<PushInfo>,
    cluster: Arc<Cluster>,
) {
    while let Some(push) = pushes.recv().await
        && push.kind != PushKind::Disconnection
    {
        listener.take(&push, &cluster);
    }
    listener.end();
}

/// Detects a half-open connection, which reports no error by itself. A connection on which pushes or answers arrive is none:
/// the reply may be behind thousands of them.
async fn ping(listener: Arc<Listener>, mut sink: Sink, timeout: Duration) {
    loop {
        tokio::time::sleep(PING).await;
        let heard = listener.heard.load(Ordering::Relaxed);
        let is_alive = match listener.while_answered(timeout, sink.ping()).await {
            Some(pong) => pong.is_ok(),
            None => listener.heard.load(Ordering::Relaxed) != heard,
        };
        if !is_alive {
            listener.end();
            return;
        }
    }
}

/// Takes commands.
#[derive(Clone)]
pub(super) struct Sink {
    pub(super) connection: Connection,
    pub(super) publish: Publish,
}

impl Sink {
    /// Subscribes to a channel. A push confirms it once messages arrive.
    async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        let command = match self.publish {
            Publish::Classic => "SUBSCRIBE",
            Publish::Sharded => "SSUBSCRIBE",
        };
        self.send(redis::cmd(command).arg(channel)).await
    }

    async fn unsubscribe(&mut self, channel: &str) -> RedisResult<()> {
        let command = match self.publish {
            Publish::Classic => "UNSUBSCRIBE",
            Publish::Sharded => "SUNSUBSCRIBE",
        };
        match self.send(redis::cmd(command).arg(channel)).await {
            // The slot has moved, which ended the subscription.
            Err(error) if error.redirect_node().is_some() => Ok(()),
            result => result,
        }
    }

    /// A refusal is an answer, too.
    async fn ping(&mut self) -> RedisResult<Value> {
        let ping = redis::cmd("PING");
        self.connection.send_packed_command(&ping).await
    }

    async fn send(&mut self, cmd: &Cmd) -> RedisResult<()> {
        let reply = self.connection.send_packed_command(cmd).await;
        reply.and_then(Value::extract_error).map(drop)
    }
}

fn is_repeated(push: &PushInfo) -> bool {
    matches!(push.data.get(1), Some(Value::BulkString(message)) if message == REPEATED)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::backend::Dialer;

    /// A node that becomes a replica ends all of them at once, each by a message of its own.
    #[test]
    fn thousands_of_subscriptions_end_in_no_time() {
        const MANY: usize = 20_000;
        let name = |number: usize| -> Box<str> { format!("channel:{number}").into() };
        let route = Arc::<Route>::default();
        let channel = || Channel {
            routes: vec![Arc::clone(&route)],
            confirmed: true,
            ..Channel::default()
        };
        let channels = (0..MANY).map(|number| (name(number), channel()));
        let listener = Listener {
            sink: Mutex::new(None),
            channels: Mutex::new(Some(channels.collect())),
            heard: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            tasks: Mutex::default(),
            changed: Notify::new(),
        };
        let template = Dialer::from_url("redis://127.0.0.1/", None).unwrap();
        let cluster = Cluster::new(Arc::new(template), None, None);
        let begun = Instant::now();
        for number in 0..MANY {
            assert!(!listener.is_closed());
            let push = PushInfo {
                kind: PushKind::Unsubscribe,
                data: vec![Value::BulkString(name(number).as_bytes().into())],
            };
            listener.take(&push, &cluster);
        }
        assert!(listener.is_closed() && route.is_broken());
        assert!(begun.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn a_repeated_message_is_ignored() {
        for kind in [PushKind::Message, PushKind::SMessage] {
            let push = |message: &str| PushInfo {
                kind: kind.clone(),
                data: ["channel", message]
                    .map(|part| Value::BulkString(part.into()))
                    .into(),
            };
            assert!(!is_repeated(&push("1")));
            assert!(is_repeated(&push("00")));
        }
    }
}
