//! Redis loses data: tokens grow all the same.

use watchlock::FencingToken;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{stored, token_key};
use crate::common::{LONG, connect, soon};

/// The token of a hold that began and ended on this server.
async fn token_of(server: &RedisServer) -> FencingToken {
    let client = connect(server).await;
    let guard = soon(client.get_fenced_lock("a").lock()).await.unwrap();
    let token = guard.token();
    guard.unlock().await.unwrap();
    token
}

#[tokio::test]
async fn tokens_grow_over_a_flush() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_fenced_lock("a");
    let mut before = None;
    for _ in 0..5 {
        let guard = lock.lock().await.unwrap();
        assert!(Some(guard.token()) > before);
        before = Some(guard.token());
        server.cmd(&["FLUSHALL"]).await;
        drop(guard);
    }
}

#[tokio::test]
async fn tokens_grow_over_a_restart_that_forgets() {
    let server = RedisServer::start();
    let first = token_of(&server).await;
    server.restart();
    assert_eq!(stored(&server, "a").await, None);
    assert!(token_of(&server).await > first);
}

#[tokio::test]
async fn tokens_grow_over_a_restart_that_remembers_an_older_one() {
    let server = RedisServer::options().aof().start();
    let old = token_of(&server).await;
    let newest = token_of(&server).await;
    // As after the loss of an append-only file's end.
    server
        .cmd(&["SET", &token_key("a"), &old.to_string()])
        .await;
    server.restart();
    assert_eq!(stored(&server, "a").await, Some(old.to_string()));
    assert!(token_of(&server).await > newest);
}

#[tokio::test]
async fn tokens_grow_over_a_failover_that_lost_the_last_writes() {
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    replica.synced().await;
    let replicated = token_of(&master).await;
    eventually("the replica has it", LONG, async || {
        stored(&replica, "a").await == Some(replicated.to_string())
    })
    .await;
    // Cut off, and behind from now on.
    replica.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    let newest = token_of(&master).await;
    assert!(newest > replicated);
    master.kill();
    assert_eq!(stored(&replica, "a").await, Some(replicated.to_string()));
    assert!(token_of(&replica).await > newest);
}

/// The key may be evicted, or deleted, while the lock is held.
#[tokio::test]
async fn a_token_key_that_goes_away_costs_no_hold_and_the_next_token_is_larger() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_fenced_lock("a");
    let guard = lock.lock().await.unwrap();
    server.cmd(&["DEL", &token_key("a")]).await;
    guard.verify().await.unwrap();
    let inner = guard.reenter(LONG).await.unwrap();
    assert_eq!(inner.token(), guard.token());
    inner.unlock().await.unwrap();
    let token = guard.token();
    guard.unlock().await.unwrap();
    assert!(token_of(&server).await > token);
}

/// A wall clock that was stepped back, or a new server whose clock is behind.
#[tokio::test]
async fn tokens_grow_on_a_server_whose_clock_is_behind_as_long_as_it_has_the_key() {
    let server = RedisServer::start();
    let ahead = token_of(&server).await.as_u64() + 3_600_000_000;
    server
        .cmd(&["SET", &token_key("a"), &ahead.to_string()])
        .await;
    for next in 1..4 {
        assert_eq!(token_of(&server).await.as_u64(), ahead + next);
    }
}
