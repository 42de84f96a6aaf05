//! What the integration tests share.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod counted;
pub(crate) mod cut;

use std::fs;
use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use redis::Value;
use watchlock::{Backoff, Client, ClientBuilder, Error, Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

/// By when anything must have happened on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// A watchdog lease that a test can wait for, and that a busy machine keeps.
pub(crate) const SHORT: Duration = Duration::from_millis(1200);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) async fn connect(server: &RedisServer) -> Client {
    Client::connect(&server.url()).await.expect("a client")
}

/// A client whose watchdog's lease is [`SHORT`].
pub(crate) async fn connect_short(server: &RedisServer) -> Client {
    let builder = Client::builder(&server.url()).watchdog_lease(SHORT);
    builder.connect().await.expect("a client")
}

/// A client that polls once a minute: anything that happens sooner was not a poll.
pub(crate) fn without_polls(server: &RedisServer) -> ClientBuilder {
    let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    Client::builder(&server.url()).backoff(minute)
}

/// The channel of a plain lock whose name has no brace.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// The script in this file under `lua/`.
pub(crate) fn script(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua").join(file);
    fs::read_to_string(path).expect("a text")
}

/// The code of a reply, and its number; 0 if it has none.
pub(crate) fn both(reply: Value) -> (i64, i64) {
    match reply {
        Value::Int(code) => (code, 0),
        Value::Array(items) => match items[..] {
            [Value::Int(code), Value::Int(number), ..] => (code, number),
            _ => panic!("no code and number: {items:?}"),
        },
        other => panic!("no code: {other:?}"),
    }
}

/// Awaits `future`; in a test that passes it takes never long.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it ends")
}

/// Polls once.
pub(crate) async fn poll_once<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Waits until the lock has a confirmed subscriber.
pub(crate) async fn subscribed(server: &RedisServer, name: &str) {
    let channel = channel(name);
    eventually("somebody listens", LONG, async || {
        server.subscribers(&channel).await > 0
    })
    .await;
}

/// Waits until nothing is left of any lock.
pub(crate) async fn clean(server: &RedisServer) {
    eventually("no key and no channel is left", LONG, async || {
        server.keys().await.is_empty() && server.channels().await.is_empty()
    })
    .await;
}

/// Waits until the key is gone.
pub(crate) async fn gone(server: &RedisServer, key: &str) {
    eventually("the key is gone", LONG, async || !server.exists(key).await).await;
}

/// One try.
pub(crate) async fn try_once(client: &Client, name: &str) -> Result<Option<LockGuard>, Error> {
    let lock = client.get_lock(name);
    lock.try_lock(Duration::ZERO, Lease::Watchdog).await
}

/// One try: whether the lock was free. It is free again when this returns.
pub(crate) async fn is_free(client: &Client, name: &str) -> bool {
    match try_once(client, name).await.expect("a clean answer") {
        Some(guard) => {
            guard.unlock().await.expect("our own lock");
            true
        }
        None => false,
    }
}

/// The hold count in Redis, 0 when the lock is free.
pub(crate) async fn count(server: &RedisServer, name: &str) -> u32 {
    let hash = server.hash(name).await;
    assert!(hash.len() <= 1, "one hold at most: {hash:?}");
    hash.values().next().map_or(0, |count| {
        count.parse().expect("the hold count is a number")
    })
}
