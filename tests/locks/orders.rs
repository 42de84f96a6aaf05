//! Every order of taking and giving back fixed and watchdog levels.

use std::time::{Duration, Instant};

use watchlock::{Client, LockGuard, Owner};
use watchlock_support::server::RedisServer;

use crate::common::{clean, connect, count, soon};

/// How much a busy machine may blur the difference between two looks at a lease.
const BLUR: i64 = 1_000;
const FIXED: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Watchdog,
    Fixed,
}

async fn take(owner: &Owner, name: &str, level: Level) -> LockGuard {
    let lock = owner.get_lock(name);
    let guard = match level {
        Level::Watchdog => lock.lock().await,
        Level::Fixed => lock.lock_with_lease(FIXED).await,
    };
    guard.unwrap()
}

/// All orders in which three things can be taken.
const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

#[tokio::test]
async fn t1_to_t4_hold_in_every_order_of_levels() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    for bits in 0..8 {
        let levels = [0, 1, 2].map(|bit| {
            if bits >> bit & 1 == 0 {
                Level::Watchdog
            } else {
                Level::Fixed
            }
        });
        for order in ORDERS {
            soon(one_order(&server, &client, levels, order)).await;
        }
    }
    clean(&server).await;
}

async fn one_order(server: &RedisServer, client: &Client, levels: [Level; 3], order: [usize; 3]) {
    let what = format!("{levels:?} given back as {order:?}");
    let name = format!("{levels:?}{order:?}");
    let owner = client.new_owner();
    let mut guards = Vec::new();
    let mut longest = 0;
    for (level, taken) in levels.into_iter().zip(1..) {
        guards.push(Some(take(&owner, &name, level).await));
        longest = longest.max(if level == Level::Fixed { 90 } else { 30 });
        assert_eq!(count(server, &name).await, taken, "{what}");
        assert_lease(server, &name, longest * 1000, &what).await;
    }
    let view = guards[0].as_ref().unwrap().hold();
    let started = Instant::now();
    let promised = view.valid_for();
    for (which, left) in order.into_iter().zip([2, 1, 0]) {
        guards[which].take().unwrap().unlock().await.unwrap();
        assert_eq!(count(server, &name).await, left, "{what}");
        if left > 0 {
            // T4 (giving back a level writes no TTL): the promise stays when a level goes.
            assert_lease(server, &name, longest * 1000, &what).await;
            assert!(view.valid_for() + started.elapsed() >= promised, "{what}");
        }
    }
    assert!(!view.is_valid() && !server.exists(&name).await, "{what}");
}

async fn assert_lease(server: &RedisServer, name: &str, lease: i64, what: &str) {
    let ttl = server.pttl(name).await;
    assert!(ttl <= lease && ttl > lease - 5 * BLUR, "{what}: {ttl} ms");
}

#[tokio::test]
async fn i2_counts_are_written_whatever_the_old_count() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let outer = take(&owner, "written", Level::Watchdog).await;
    let field = server.hash("written").await.into_keys().next().unwrap();
    server.cmd(&["HSET", "written", &field, "41"]).await;
    let inner = take(&owner, "written", Level::Watchdog).await;
    assert_eq!(count(&server, "written").await, 2);
    server.cmd(&["HSET", "written", &field, "41"]).await;
    inner.unlock().await.unwrap();
    assert_eq!(count(&server, "written").await, 1);
    server.cmd(&["HSET", "written", &field, "41"]).await;
    outer.unlock().await.unwrap();
    assert!(!server.exists("written").await);
}
