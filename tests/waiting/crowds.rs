//! Many waiters: in order, with one try at a time, and nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, poll_once, soon, subscribed, without_polls};

#[tokio::test]
async fn waiters_of_a_client_are_served_first_come_first_served() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let lock = client.get_lock("row");
    let guard = holder.get_lock("row").lock().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..50 {
        let (lock, served) = (lock.clone(), Arc::clone(&served));
        let mut waiter = Box::pin(async move {
            let guard = lock.lock().await.unwrap();
            served.lock().push(i);
            guard.unlock().await.unwrap();
        });
        assert!(poll_once(&mut waiter).await.is_none());
        tasks.push(tokio::spawn(waiter));
    }
    subscribed(&server, "row").await;
    guard.unlock().await.unwrap();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(*served.lock(), (0..50).collect::<Vec<_>>());
}

#[tokio::test]
async fn waiters_that_come_soon_after_each_other_share_a_subscription() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    server.reset_calls().await;
    for _ in 0..5 {
        let guard = holder.get_lock("linger").lock().await.unwrap();
        let lock = client.get_lock("linger");
        let waiter = tokio::spawn(async move { lock.lock().await });
        subscribed(&server, "linger").await;
        guard.unlock().await.unwrap();
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    let subscribed = server.calls_of("subscribe").await;
    assert!(subscribed < 5, "{subscribed} subscriptions");
}

#[tokio::test]
async fn i7_after_the_last_waiter_the_subscription_and_its_connection_end() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    for client in [&holder, &client] {
        drop(client.get_lock("warm").lock().await.unwrap());
        clean(&server).await;
    }
    let before = server.connections().await;
    let guards = [
        holder.get_lock("one").lock().await.unwrap(),
        holder.get_lock("two").lock().await.unwrap(),
    ];
    let waiters = ["one", "two"].map(|name| {
        let lock = client.get_lock(name);
        tokio::spawn(async move { lock.lock().await })
    });
    eventually("both listen", LONG, async || {
        server.channels().await.len() == 2
    })
    .await;
    assert_eq!(server.connections().await, before + 1);
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    clean(&server).await;
    eventually("its connection is closed", LONG, async || {
        server.connections().await == before
    })
    .await;
    // And it can be opened again.
    let guard = holder.get_lock("one").lock().await.unwrap();
    let lock = client.get_lock("one");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "one").await;
    guard.unlock().await.unwrap();
    drop(soon(waiter).await.unwrap().unwrap());
}

#[tokio::test]
async fn waiters_of_several_clients_are_all_served_and_never_in_together() {
    let server = RedisServer::start();
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let client = connect(&server).await;
        for _ in 0..4 {
            let (lock, inside) = (client.get_lock("mixed"), Arc::clone(&inside));
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = lock.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            }));
        }
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    clean(&server).await;
}
