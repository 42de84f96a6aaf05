//! Addresses, prefixes, pools, and the connections that come of them.

use std::time::Duration;

use deadpool_redis::{Config, Pool, Runtime};
use watchlock::{Client, ConfigError, Error};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, is_free, soon, subscribed};

async fn holds(server: &RedisServer, client: &Client, key: &str, name: &str) {
    let guard = client.get_lock(name).lock().await.unwrap();
    assert!(server.exists(key).await, "{:?}", server.keys().await);
    guard.unlock().await.unwrap();
    assert!(!server.exists(key).await);
}

#[tokio::test]
async fn a_password_and_a_user_are_sent() {
    let server = RedisServer::options().password("letmein").start();
    holds(&server, &connect(&server).await, "lock", "lock").await;
    server
        .cmd(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"])
        .await;
    let url = server.url().replace(":letmein@", "app:pw@");
    let client = Client::connect(&url).await.unwrap();
    holds(&server, &client, "lock", "lock").await;
}

#[tokio::test]
async fn a_database_number_is_used_on_every_connection() {
    let server = RedisServer::start();
    let url = format!("{}3", server.url());
    let (one, two) = (
        Client::connect(&url).await.unwrap(),
        Client::connect(&url).await.unwrap(),
    );
    let guard = one.get_lock("db").lock().await.unwrap();
    assert!(server.keys().await.is_empty(), "not in database 0");
    assert!(!is_free(&two, "db").await);
    assert!(is_free(&connect(&server).await, "db").await);
    let lock = two.get_lock("db");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "db").await;
    drop(guard);
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    let server = RedisServer::options().unix_socket().start();
    let client = Client::connect(&server.socket_url()).await.unwrap();
    holds(&server, &client, "lock", "lock").await;
}

#[tokio::test]
async fn a_prefix_is_put_before_keys_and_channels_and_not_before_names() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).key_prefix("app:");
    let client = builder.connect().await.unwrap();
    holds(&server, &client, "app:lock", "lock").await;
    let plain = connect(&server).await;
    let guard = plain.get_lock("app:lock").lock().await.unwrap();
    let lock = client.get_lock("lock");
    assert_eq!(lock.name(), "lock");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "app:lock").await;
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert_eq!(guard.name(), "lock");
    guard.unlock().await.unwrap();
}

fn pool(server: &RedisServer) -> Pool {
    let config = Config::from_url(server.url());
    config.create_pool(Some(Runtime::Tokio1)).unwrap()
}

#[tokio::test]
async fn a_pool_of_the_applications_is_connected_by_and_not_drawn_from() {
    let server = RedisServer::start();
    let pool = pool(&server);
    let builder = Client::builder(&server.url()).pool(pool.clone());
    let client = builder.connect().await.unwrap();
    holds(&server, &client, "lock", "lock").await;
    assert_eq!(pool.status().size, 0);
    clean(&server).await;
}

#[tokio::test]
async fn a_pool_that_leads_elsewhere_is_refused_and_nothing_is_left() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let builder = Client::builder(&server.url()).pool(pool(&other));
    let error = builder.connect().await.unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::PoolMismatch)));
    clean(&server).await;
    clean(&other).await;
}

#[tokio::test]
async fn a_client_has_one_connection_here_and_one_in_its_keeper() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    for i in 0..50 {
        drop(client.get_lock(&format!("{i}")).lock().await.unwrap());
    }
    let tasks: Vec<_> = (0..50)
        .map(|i| {
            let lock = client.get_lock(&format!("{i}"));
            tokio::spawn(async move { lock.lock().await.unwrap().unlock().await })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap().unwrap();
    }
    assert!(server.connections().await <= 2 + 1, "and one for waiters");
    let clone = client.clone();
    assert_eq!(clone.id(), client.id());
    drop(client);
    assert!(is_free(&clone, "clone").await);
    drop(clone);
    eventually("all are closed", LONG, async || {
        server.connections().await == 0
    })
    .await;
}

#[tokio::test]
async fn uncontended_lock_and_unlock_are_one_round_trip_each() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("cost");
    lock.lock().await.unwrap().unlock().await.unwrap();
    server.reset_calls().await;
    for _ in 0..100 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    assert_eq!(server.calls_of("evalsha").await, 200);
    assert_eq!(server.calls_of("eval").await, 0);
}

#[tokio::test]
async fn an_idle_client_sends_nothing() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).watchdog_lease(Duration::from_millis(600));
    let client = builder.connect().await.unwrap();
    drop(client.get_lock("idle").lock().await.unwrap());
    clean(&server).await;
    let mut before = server.calls().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut after = server.calls().await;
    for calls in [&mut before, &mut after] {
        calls.remove("info");
    }
    assert_eq!(before, after);
}
