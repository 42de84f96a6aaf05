//! The beginning and the end of a client, dropped at every await. `tests/kinds` does the same with locks.

use std::time::Duration;

use watchlock::{Client, Error};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::cut::{after, at_every_await};
use crate::common::{LONG, clean, connect, soon};

/// I7: no key, no channel, no waiter, and the connections that were there before.
async fn nothing_is_left(server: &RedisServer, connections: usize) {
    clean(server).await;
    eventually("the connections are as before", LONG, async || {
        server.connections().await <= connections
    })
    .await;
}

#[tokio::test]
async fn i9_a_connect_can_be_dropped_at_any_await() {
    let server = RedisServer::start();
    at_every_await(async |polls| {
        let connected = after(polls, Client::connect(&server.url())).await;
        connected.is_some_and(|client| client.is_ok())
    })
    .await;
    nothing_is_left(&server, 0).await;
}

#[tokio::test]
async fn i9_a_connect_by_a_pool_can_be_dropped_at_any_await() {
    let server = RedisServer::start();
    let pool = deadpool_redis::Config::from_url(server.url());
    let pool = pool
        .create_pool(Some(deadpool_redis::Runtime::Tokio1))
        .unwrap();
    at_every_await(async |polls| {
        let builder = Client::builder(&server.url()).pool(pool.clone());
        let connected = after(polls, builder.connect()).await;
        connected.is_some_and(|client| client.is_ok())
    })
    .await;
    // The probe's lock may be left to its lease of a few seconds.
    nothing_is_left(&server, 0).await;
}

#[tokio::test]
async fn i9_a_shutdown_can_be_dropped_at_any_await() {
    let server = RedisServer::start();
    at_every_await(async |polls| {
        let client = connect(&server).await;
        let guard = client.get_lock("end").lock().await.unwrap();
        let completed = after(polls, client.shutdown(Duration::ZERO))
            .await
            .is_some();
        if completed {
            assert!(!guard.is_valid());
        } else {
            // It may or may not have announced the end; the hold can be given back.
            let again = client.get_lock("other").lock().await;
            assert_eq!(matches!(again, Err(Error::Closed)), polls > 0);
            drop(again);
        }
        drop((guard, client));
        completed
    })
    .await;
    nothing_is_left(&server, 0).await;
}

#[tokio::test]
async fn a_second_shutdown_waits_for_the_same_end() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let long = Duration::from_secs(60);
    let guard = client.get_lock("twice").lock().await.unwrap();
    let first = after(1, client.shutdown(long)).await;
    assert!(first.is_none() && guard.is_valid());
    let ended = tokio::spawn({
        let client = client.clone();
        async move { client.shutdown(long).await }
    });
    guard.unlock().await.unwrap();
    soon(ended).await.unwrap();
    soon(client.shutdown(long)).await;
    nothing_is_left(&server, 0).await;
}
