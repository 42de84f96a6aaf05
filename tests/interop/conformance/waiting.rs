//! How long an acquire waits, what ends it, and that nobody is in together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use watchlock::{Client, Lease};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{LATE, LONG, SHORT, connect, connect_short, is_free};

/// How late a bounded wait may end.
const ACCURATE: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_bounded_wait_takes_as_long_as_it_was_told() {
    let server = RedisServer::start();
    let (holder, client) = (connect(&server).await, connect(&server).await);
    let guard = holder.get_lock("busy").lock().await.unwrap();
    let lock = client.get_lock("busy");
    for wait in [0, 1, 50, 300, 1200].map(Duration::from_millis) {
        let mut soonest = Duration::MAX;
        // The best of some: the machine may be late, the library not.
        for _ in 0..5 {
            let started = Instant::now();
            let tried = lock.try_lock(wait, Lease::Watchdog).await.unwrap();
            assert!(tried.is_none());
            soonest = soonest.min(started.elapsed());
            if soonest < wait + ACCURATE {
                break;
            }
        }
        assert!(
            soonest >= wait && soonest < wait + ACCURATE,
            "{wait:?}: {soonest:?}"
        );
    }
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_bounded_wait_ends_with_the_release() {
    let server = RedisServer::start();
    let (holder, client) = (connect(&server).await, connect(&server).await);
    let guard = holder.get_lock("soon").lock().await.unwrap();
    let lock = client.get_lock("soon");
    let waiter = tokio::spawn(async move { lock.try_lock(LONG, Lease::Watchdog).await });
    eventually("it waits", LONG, async || {
        !server.channels().await.is_empty()
    })
    .await;

    let started = Instant::now();
    guard.unlock().await.unwrap();

    let entered = waiter.await.unwrap().unwrap().expect("in");
    assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
    entered.unlock().await.unwrap();
}

#[tokio::test]
async fn tasks_of_one_client_are_never_in_together() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    loops(&server, &vec![client; 16], 20).await;
}

#[tokio::test]
async fn many_clients_are_never_in_together() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(connect(&server).await);
    }
    loops(&server, &clients, 20).await;
}

/// Each client reads a counter in Redis, thinks, and writes it back, as often as told.
async fn loops(server: &RedisServer, clients: &[Client], times: u32) {
    let inside = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = clients
        .iter()
        .map(|client| {
            let (lock, inside) = (client.get_lock("loop"), Arc::clone(&inside));
            tokio::spawn(async move {
                for _ in 0..times {
                    let guard = lock.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    guard.unlock().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(LONG, task)
            .await
            .expect("served")
            .unwrap();
    }
    assert!(!server.exists("loop").await);
}

#[tokio::test]
async fn a_wait_that_is_given_up_takes_no_lock_and_renews_none() {
    let server = RedisServer::start();
    let (holder, client) = (connect(&server).await, connect_short(&server).await);
    let guard = holder.get_lock("gone").lock().await.unwrap();
    let lock = client.get_lock("gone");
    let given_up = tokio::time::timeout(Duration::from_millis(100), lock.lock()).await;
    assert!(given_up.is_err());

    guard.unlock().await.unwrap();

    // Whatever the given-up wait had under way is undone, and stays so for as long as a watchdog would look again.
    eventually("nobody holds or waits", LONG, async || {
        server.keys().await.is_empty() && server.channels().await.is_empty()
    })
    .await;
    server.reset_calls().await;
    tokio::time::sleep(SHORT).await;
    assert_eq!(
        server.calls_of("evalsha").await,
        0,
        "something is still renewed"
    );
    assert!(is_free(&holder, "gone").await);
}

#[tokio::test]
async fn waiting_for_many_names_takes_one_subscription_connection() {
    const NAMES: usize = 100;
    let server = RedisServer::start();
    let (holder, client) = (connect(&server).await, connect(&server).await);
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for i in 0..NAMES {
        let name = format!("many-{i}");
        guards.push(holder.get_lock(&name).lock().await.unwrap());
        let lock = client.get_lock(&name);
        waiters.push(tokio::spawn(async move {
            lock.lock().await.unwrap().unlock().await.unwrap();
        }));
    }
    eventually("all wait", LONG, async || {
        server.channels().await.len() == NAMES
    })
    .await;

    let clients = server.clients().await;
    let subscribed = clients
        .iter()
        .filter(|c| c.get("sub").is_some_and(|n| n != "0"));
    assert_eq!(subscribed.count(), 1);

    for guard in guards {
        guard.unlock().await.unwrap();
    }
    for waiter in waiters {
        tokio::time::timeout(LONG, waiter)
            .await
            .expect("served")
            .unwrap();
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_server_that_goes_away_and_comes_back_is_waited_for() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    server.kill();
    let lock = client.get_lock("back");
    let started = Instant::now();
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(tried.is_err_and(|error| error.is_transient()));
    assert!(started.elapsed() < LONG);

    server.restart();

    lock.lock().await.unwrap().unlock().await.unwrap();
}
