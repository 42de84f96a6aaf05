//! Changes that Redisson's scripts make to the shared queue, made here by hand, and the order that must remain.

use std::time::{Duration, Instant};

use watchlock::Error;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, soon};
use crate::{LINE, QUEUE, SCORES, queue, queued, waiter};

/// Adds a waiter as Redisson's script does.
async fn java_waits(server: &RedisServer, id: &str, for_ms: i64) {
    let now: Vec<String> = server.query(&["TIME"]).await;
    let score = now[0].parse::<i64>().unwrap() * 1000 + for_ms;
    server.cmd(&["RPUSH", QUEUE, id]).await;
    server.cmd(&["ZADD", SCORES, &score.to_string(), id]).await;
}

/// Drops the head as Redisson's script does when its score has passed.
async fn java_drops_the_head(server: &RedisServer) -> String {
    let head: String = server.query(&["LPOP", QUEUE]).await;
    server.cmd(&["ZREM", SCORES, &head]).await;
    head
}

/// The hold id that has the lock.
async fn holder(server: &RedisServer) -> Option<String> {
    server.hash(LINE).await.into_keys().next()
}

/// Redisson would append it to the queue.
#[tokio::test]
async fn a_live_waiter_whose_score_passed_keeps_its_place() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let (first, head) = waiter(&server, &other).await;
    let (second, next) = waiter(&server, &other).await;
    java_waits(&server, "java:1", 600_000).await;
    let (third, last) = waiter(&server, &one).await;
    assert_eq!(java_drops_the_head(&server).await, head);
    assert_eq!(java_drops_the_head(&server).await, next);
    eventually("they are put back", LONG, async || {
        queue(&server).await.len() == 4
    })
    .await;
    assert_eq!(queue(&server).await, [&head, &next, "java:1", &last]);
    held.unlock().await.unwrap();
    for waiting in [first, second] {
        soon(waiting)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    assert_eq!(queue(&server).await, ["java:1", &last]);
    server.cmd(&["LPOP", QUEUE]).await;
    server.cmd(&["ZREM", SCORES, "java:1"]).await;
    soon(third).await.unwrap().unwrap().unlock().await.unwrap();
    drop((one, other));
    clean(&server).await;
}

/// The release notices it before anybody else gets the lock.
#[tokio::test]
async fn a_release_wakes_a_head_that_was_dropped() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let (first, head) = waiter(&server, &other).await;
    let (second, _) = waiter(&server, &one).await;
    assert_eq!(java_drops_the_head(&server).await, head);
    held.unlock().await.unwrap();
    let guard = soon(first).await.unwrap().unwrap();
    assert_eq!(holder(&server).await, Some(head));
    guard.unlock().await.unwrap();
    soon(second).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_head_of_redissons_is_dropped_when_its_score_is_over_and_the_lock_is_free() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    java_waits(&server, "java:1", -1).await;
    java_waits(&server, "java:2", 3_000).await;
    let (waiting, place) = waiter(&server, &other).await;
    // Not before the lock is free: a live waiter of Redisson gets a new score when it tries again.
    assert_eq!(queue(&server).await, ["java:1", "java:2", &place]);
    let released = Instant::now();
    held.unlock().await.unwrap();
    assert_eq!(queue(&server).await, ["java:2", &place]);
    let guard = soon(waiting).await.unwrap().unwrap();
    let waited = released.elapsed();
    assert!(
        waited > Duration::from_secs(1),
        "{waited:?}: it was its turn"
    );
    assert!(waited < Duration::from_secs(6), "{waited:?}");
    guard.unlock().await.unwrap();
    drop((one, other));
    clean(&server).await;
}

#[tokio::test]
async fn who_is_listed_without_a_score_is_dead() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    server.cmd(&["RPUSH", QUEUE, "java:1"]).await;
    let (waiting, place) = waiter(&server, &other).await;
    server.cmd(&["ZREM", SCORES, &place]).await;
    held.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    drop((one, other));
    clean(&server).await;
}

/// Redisson answers success.
#[tokio::test]
async fn a_release_of_a_lock_that_is_not_held_is_no_success() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.new_owner().get_fair_lock(LINE);
    let refused = lock.unlock().await;
    assert!(
        matches!(refused, Err(Error::NotOwner { .. })),
        "{refused:?}"
    );
    let guard = client.get_fair_lock(LINE).lock().await.unwrap();
    server.cmd(&["DEL", LINE]).await;
    let lost = guard.unlock().await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
}

/// The head has 20 s, however long the holder's lease is, and those of ours behind it hardly more: if their client dies,
/// Redisson drops them then. A waiter behind one of Redisson's has the whole time. When a waiter leaves, the scores behind it
/// fall by as much as it added.
#[tokio::test]
async fn scores_are_redissons() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let held = client
        .get_fair_lock(LINE)
        .lock_with_lease(Duration::from_secs(60))
        .await
        .unwrap();
    let (first, head) = waiter(&server, &client).await;
    let (second, next) = waiter(&server, &client).await;
    java_waits(&server, "java:1", 20_000 + 300_000).await;
    let (third, last) = waiter(&server, &client).await;
    let score = async |place: &str| -> f64 { server.query(&["ZSCORE", SCORES, place]).await };
    let time: Vec<String> = server.query(&["TIME"]).await;
    let now = time[0].parse::<f64>().unwrap() * 1000.0;
    let first_score = score(&head).await;
    let left = first_score - now;
    assert!(left > 10_000.0 && left < 22_000.0, "{left}");
    assert!((score(&next).await - first_score - 1.0).abs() < 1.0);
    let behind = score("java:1").await;
    assert!((score(&last).await - behind - 300_000.0).abs() < 1.0);
    second.abort();
    queued(&server, 3).await;
    assert!((score("java:1").await - behind + 1.0).abs() < 1.0);
    assert!((score(&last).await - behind - 300_000.0 + 1.0).abs() < 1.0);
    first.abort();
    queued(&server, 2).await;
    assert_eq!(java_drops_the_head(&server).await, "java:1");
    // The last becomes the head.
    eventually("it has a head's time", LONG, async || {
        let left = score(&last).await - now;
        left > 10_000.0 && left < 60_000.0
    })
    .await;
    let left = score(&last).await - now;
    assert!(left > 10_000.0 && left < 30_000.0, "{left}");
    held.unlock().await.unwrap();
    soon(third).await.unwrap().unwrap().unlock().await.unwrap();
}
