//! The recipe that says who holds a lock works for every deployment and kind: it is here word for word. The tests of a
//! service are those of `watchlock-test`.

use std::collections::BTreeSet;

use watchlock::redis::{self, AsyncCommands, ConnectionAddr, RedisResult};
use watchlock::{Client, Lock};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::server::RedisServer;

use crate::text;

/// The ids of the clients that hold the lock: one, none, or all readers. `key` is the name with the prefix.
async fn holders(redis: &redis::Client, key: &str) -> RedisResult<Vec<String>> {
    let mut connection = redis.get_multiplexed_async_connection().await?;
    let mut fields: RedisResult<Vec<String>> = connection.hkeys(key).await;
    let moved = fields
        .as_ref()
        .err()
        .and_then(|error| error.redirect_node());
    if let Some((host, port)) = moved.and_then(|(node, _)| node.rsplit_once(':')) {
        // Another node of the cluster has the key. With TLS: `ConnectionAddr::TcpTls`.
        let node = ConnectionAddr::Tcp(host.to_owned(), port.parse().unwrap_or(6379));
        let info = redis.get_connection_info().clone().set_addr(node);
        let redis = redis::Client::open(info)?;
        fields = redis
            .get_multiplexed_async_connection()
            .await?
            .hkeys(key)
            .await;
    }
    // A read/write lock's hash also has a field `mode`.
    let hold_ids = fields?.into_iter();
    let clients = hold_ids.filter_map(|id| id.split_once(':').map(|(client, _)| client.to_owned()));
    Ok(clients.collect())
}

#[test]
fn it_is_word_for_word_in_the_document() {
    let own = include_str!("recipes.rs");
    let start = own.find("/// The ids of the clients").expect("its start");
    let end = own[start..].find("\n}\n").expect("its end") + start;
    assert!(text("docs/recipes.md").contains(&own[start..end]));
}

#[test]
fn the_tests_of_a_service_are_those_that_run() {
    let recipes = text("docs/recipes.md");
    let (_, shown) = recipes.split_once("```rust,ignore\n").expect("tests");
    let (shown, _) = shown.split_once("\n```").expect("their end");
    let service = text("watchlock-test/tests/service.rs");
    for part in shown.split("\n\n") {
        assert!(service.contains(part), "{part}");
    }
}

/// Takes the lock and asks who holds it.
async fn finds(url: &str, lock: impl Lock, client: &Client) {
    let guard = lock.lock().await.expect("a lock");
    let redis = redis::Client::open(url).expect("an address");
    let found = holders(&redis, lock.name()).await.expect("an answer");
    assert_eq!(found, [client.id().to_string()], "{}", lock.name());
    guard.unlock().await.expect("held to the end");
    let found = holders(&redis, lock.name()).await.expect("an answer");
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test]
async fn the_holder_is_found_whatever_the_kind() {
    let server = RedisServer::start();
    let url = server.url();
    let client = Client::connect(&url).await.expect("a client");
    let both = client.get_read_write_lock("x");
    finds(&url, client.get_lock("x"), &client).await;
    finds(&url, client.get_fair_lock("x"), &client).await;
    finds(&url, both.write_lock(), &client).await;
    finds(&url, both.read_lock(), &client).await;
    let other = Client::connect(&url).await.expect("a client");
    let readers = [
        both.read_lock().lock().await.expect("a read"),
        other
            .get_read_write_lock("x")
            .read_lock()
            .lock()
            .await
            .expect("a read"),
    ];
    let redis = redis::Client::open(url).expect("an address");
    let found = holders(&redis, "x").await.expect("an answer");
    let found: BTreeSet<_> = found.into_iter().collect();
    let ids = [&client, &other].map(|client| client.id().to_string());
    assert_eq!(found, BTreeSet::from(ids));
    drop(readers);
}

#[tokio::test]
async fn the_holder_is_found_at_any_node_of_a_cluster() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(cluster.node(0).url())
        .await
        .expect("a client");
    // Names of several nodes.
    for name in ["a", "b", "c", "d"] {
        finds(&cluster.node(0).url(), client.get_lock(name), &client).await;
    }
}
