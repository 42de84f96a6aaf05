//! The fair lock grants in the order of arrival, whoever leaves, dies or is cut off.

#[path = "../common/mod.rs"]
mod common;

mod dying;
mod faults;
mod guard_rails;
mod leaving;
mod order;
mod processes;
mod random;
mod redisson;
mod waking;

use std::time::Duration;

use tokio::task::JoinHandle;
use watchlock::{Client, Error, Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::LONG;

/// The lock of these tests.
pub(crate) const LINE: &str = "line";
pub(crate) const QUEUE: &str = "redisson_lock_queue:{line}";
pub(crate) const SCORES: &str = "redisson_lock_timeout:{line}";
pub(crate) const WAITERS: &str = "watchlock_waiters:{line}";

pub(crate) type Waiter = JoinHandle<Result<LockGuard, Error>>;

/// The queue in Redis, in order.
pub(crate) async fn queue(server: &RedisServer) -> Vec<String> {
    server.query(&["LRANGE", QUEUE, "0", "-1"]).await
}

/// Waits until the queue in Redis has so many waiters.
pub(crate) async fn queued(server: &RedisServer, waiters: usize) {
    eventually("they queue", LONG, async || {
        queue(server).await.len() == waiters
    })
    .await;
}

/// Tries once, and returns whether it got the lock.
pub(crate) async fn gets_in(client: &Client) -> bool {
    let lock = client.get_fair_lock(LINE);
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    tried.expect("a clean answer").is_some()
}

/// One who waits for the lock, and its place in Redis' queue.
pub(crate) async fn waiter(server: &RedisServer, client: &Client) -> (Waiter, String) {
    let before = queue(server).await;
    let lock = client.get_fair_lock(LINE);
    let waiting = tokio::spawn(async move { lock.lock().await });
    queued(server, before.len() + 1).await;
    let place = queue(server).await.pop().expect("it queues");
    (waiting, place)
}
