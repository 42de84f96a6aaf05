//! Clients that die while they wait: they are skipped, however many they are.

use std::time::{Duration, Instant};

use watchlock::Client;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, soon};
use crate::{LINE, WAITERS, gets_in, queue, queued, waiter};

/// The time after which a waiter of a dead client is skipped.
const SKIPPED: Duration = Duration::from_secs(16);
/// The delay that a busy machine may add.
const LATE: Duration = Duration::from_secs(3);

/// A client that can be cut off for good, so that for Redis it is dead.
async fn mortal(server: &RedisServer) -> (Client, Proxy) {
    let proxy = Proxy::to(server);
    let builder = Client::builder(&proxy.url()).unavailable_after(LONG * 2);
    (builder.connect().await.expect("a client"), proxy)
}

async fn dead_heads_are_skipped(dead: usize) {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let mut mortals = Vec::new();
    for _ in 0..dead {
        let (client, proxy) = mortal(&server).await;
        let waiting = waiter(&server, &client).await.0;
        mortals.push((client, proxy, waiting));
    }
    let (waiting, place) = waiter(&server, &other).await;
    for (_, proxy, _) in &mortals {
        proxy.black_hole(Direction::Both);
    }
    let died = Instant::now();
    held.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    let stalled = died.elapsed();
    assert!(stalled < SKIPPED + LATE, "{stalled:?}");
    assert!(stalled > Duration::from_secs(5), "they were waited for");
    assert_eq!(server.hash(LINE).await.into_keys().next(), Some(place));
    assert!(queue(&server).await.is_empty());
    guard.unlock().await.unwrap();
    assert!(!server.exists(WAITERS).await);
}

#[tokio::test]
async fn a_dead_head_is_skipped_within_16_s() {
    dead_heads_are_skipped(1).await;
}

#[tokio::test]
async fn ten_dead_heads_are_skipped_within_the_same_16_s() {
    dead_heads_are_skipped(10).await;
}

#[tokio::test]
async fn dead_ones_that_died_long_ago_cost_nothing() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let (client, proxy) = mortal(&server).await;
    let _dead = waiter(&server, &client).await.0;
    let (waiting, _) = waiter(&server, &other).await;
    proxy.black_hole(Direction::Both);
    tokio::time::sleep(SKIPPED).await;
    let released = Instant::now();
    held.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert!(released.elapsed() < Duration::from_secs(2));
}

/// A client that was silent for too long comes back with all its waiters at the end of the queue.
#[tokio::test]
async fn a_client_that_was_silent_for_too_long_queues_anew() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let (client, proxy) = mortal(&server).await;
    let (first, first_place) = waiter(&server, &client).await;
    let (second, second_place) = waiter(&server, &client).await;
    let (passed, _) = waiter(&server, &other).await;
    let (last, last_place) = waiter(&server, &other).await;
    proxy.black_hole(Direction::Both);
    tokio::time::sleep(SKIPPED).await;
    held.unlock().await.unwrap();
    let guard = soon(passed).await.unwrap().unwrap();
    assert_eq!(queue(&server).await, std::slice::from_ref(&last_place));
    proxy.heal();
    queued(&server, 3).await;
    assert_eq!(
        queue(&server).await,
        [last_place, first_place, second_place]
    );
    drop(guard);
    for waiting in [last, first, second] {
        // Its connections were cut, and it may not know of all of them.
        drop(soon(waiting).await.unwrap().unwrap());
    }
    drop((one, other, client));
    clean(&server).await;
}

/// A live client vouches every five seconds, which keeps its places for as long as it waits.
#[tokio::test]
async fn who_lives_keeps_its_place() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let (first, head) = waiter(&server, &other).await;
    let (second, next) = waiter(&server, &one).await;
    tokio::time::sleep(SKIPPED + LATE).await;
    let third = connect(&server).await;
    assert!(!gets_in(&third).await);
    assert_eq!(queue(&server).await, [head, next]);
    held.unlock().await.unwrap();
    soon(first).await.unwrap().unwrap().unlock().await.unwrap();
    soon(second).await.unwrap().unwrap().unlock().await.unwrap();
}
