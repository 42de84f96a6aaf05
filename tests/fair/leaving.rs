//! A waiter that gives up leaves the queue at once, and nobody waits for it.

use std::time::Duration;

use watchlock::{Error, Lease};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms, soon, without_polls};
use crate::{LINE, QUEUE, SCORES, WAITERS, queue, queued, waiter};

#[tokio::test]
async fn who_is_dropped_leaves_at_once() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let (first, _) = waiter(&server, &one).await;
    let (second, stays) = waiter(&server, &other).await;
    let (third, _) = waiter(&server, &one).await;
    third.abort();
    queued(&server, 2).await;
    first.abort();
    queued(&server, 1).await;
    assert_eq!(queue(&server).await, [stays]);
    let scores: u32 = server.query(&["ZCARD", SCORES]).await;
    assert_eq!(scores, 1);
    held.unlock().await.unwrap();
    soon(second).await.unwrap().unwrap().unlock().await.unwrap();
    drop((one, other));
    clean(&server).await;
}

#[tokio::test]
async fn whose_wait_ends_leaves_at_once() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    for client in [&one, &other] {
        let lock = client.get_fair_lock(LINE);
        let tried = lock.try_lock(ms(100), Lease::Watchdog).await.unwrap();
        assert!(tried.is_none());
        eventually("it left", LONG, async || server.keys().await == [LINE]).await;
    }
    held.unlock().await.unwrap();
    drop((one, other));
    clean(&server).await;
}

/// The lock is free, and the head leaves before its wake-up arrives. Nobody polls here.
#[tokio::test]
async fn a_head_that_leaves_passes_its_turn_on() {
    let server = RedisServer::start();
    let one = connect(&server).await;
    let other = without_polls(&server).connect().await.unwrap();
    let third = without_polls(&server).connect().await.unwrap();
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let (first, head) = waiter(&server, &other).await;
    let (second, next) = waiter(&server, &third).await;
    for place in [&head, &next] {
        let channel = format!("redisson_lock__channel:{{line}}:{place}");
        eventually("it listens", LONG, async || {
            server.subscribers(&channel).await == 1
        })
        .await;
    }
    // A release without a wake-up.
    server
        .cmd(&[
            "HDEL",
            LINE,
            &server.hash(LINE).await.into_keys().next().unwrap(),
        ])
        .await;
    first.abort();
    soon(second).await.unwrap().unwrap().unlock().await.unwrap();
    drop(held);
    drop((one, other, third));
    clean(&server).await;
}

/// The lock is free, and the head leaves before its wake-up arrives. Another waiter of its client must not use its place.
#[tokio::test]
async fn who_waits_behind_another_client_gets_no_place_of_one_that_leaves() {
    let server = RedisServer::start();
    let one = connect(&server).await;
    let other = without_polls(&server).connect().await.unwrap();
    let third = without_polls(&server).connect().await.unwrap();
    // A server that does not know the script yet runs the release behind the try.
    let known = one.get_fair_lock("known").lock().await.unwrap();
    known.unlock().await.unwrap();
    for _ in 0..20 {
        let held = one.get_fair_lock(LINE).lock().await.unwrap();
        let (first, _) = waiter(&server, &other).await;
        let (second, next) = waiter(&server, &third).await;
        let (last, _) = waiter(&server, &other).await;
        let channel = format!("redisson_lock__channel:{{line}}:{next}");
        eventually("it listens", LONG, async || {
            server.subscribers(&channel).await == 1
        })
        .await;
        let holder = server.hash(LINE).await.into_keys().next().unwrap();
        server.cmd(&["HDEL", LINE, &holder]).await;
        first.abort();
        let second = soon(second).await.unwrap().unwrap();
        assert!(!last.is_finished());
        second.unlock().await.unwrap();
        soon(last).await.unwrap().unwrap().unlock().await.unwrap();
        drop(held);
    }
    drop((one, other, third));
    clean(&server).await;
}

#[tokio::test]
async fn a_client_that_closes_takes_its_waiters_along() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(waiter(&server, &other).await.0);
    }
    let (last, stays) = waiter(&server, &one).await;
    other.shutdown(LONG).await;
    for waiter in waiters {
        let refused = soon(waiter).await.unwrap();
        assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    }
    assert_eq!(queue(&server).await, [stays]);
    held.unlock().await.unwrap();
    soon(last).await.unwrap().unwrap().unlock().await.unwrap();
    drop(one);
    clean(&server).await;
}

#[tokio::test]
async fn no_key_is_left_without_a_ttl_while_somebody_waits() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let held = client.get_fair_lock(LINE).lock().await.unwrap();
    let (waiting, place) = waiter(&server, &client).await;
    let day = Duration::from_secs(24 * 3600);
    let day = i64::try_from(day.as_millis()).unwrap();
    for key in [QUEUE, SCORES] {
        let ttl = server.pttl(key).await;
        assert!(ttl > day && ttl < day + 400_000, "{key}: {ttl}");
    }
    let ttl = server.pttl(WAITERS).await;
    assert!(ttl > 0 && ttl < 400_000, "{ttl}");
    let score: f64 = server.query(&["ZSCORE", SCORES, &place]).await;
    assert!(score > 1e12, "{score}");
    held.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    drop(client);
    clean(&server).await;
}

/// With a TTL that nobody renews, Redis would drop Java's waiters.
#[tokio::test]
async fn the_last_of_ours_leaves_redissons_queue_as_redisson_has_it() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let held = client.get_fair_lock(LINE).lock().await.unwrap();
    let (waiting, _) = waiter(&server, &client).await;
    server.cmd(&["RPUSH", QUEUE, "java:1"]).await;
    server
        .cmd(&["ZADD", SCORES, "99999999999999", "java:1"])
        .await;
    waiting.abort();
    queued(&server, 1).await;
    eventually("they are as Redisson's", LONG, async || {
        server.pttl(QUEUE).await == -1 && server.pttl(SCORES).await == -1
    })
    .await;
    assert!(!server.exists(WAITERS).await);
    held.unlock().await.unwrap();
    assert_eq!(queue(&server).await, ["java:1"]);
}
