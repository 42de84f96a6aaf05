//! Spin locks of Java and Rust on one name, and plain waiters of either beside them.

use std::time::Duration;

use serde_json::json;
use watchlock::{Backoff, Client, Error, Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::{Call, Worker};

use crate::{LONG, NO_POLL, channel, nothing_is_left};

const SPIN: &str = "spin";
const PLAIN: &str = "lock";

/// A server, and a client of each side on it; ours polls once a minute where it listens.
async fn two() -> Option<(RedisServer, Worker, Client)> {
    let java = Worker::java()?;
    let server = RedisServer::start();
    java.open(&server.url(), None).await.expect("a client");
    let rare = Backoff::new().base(NO_POLL).cap(NO_POLL);
    let rust = Client::builder(&server.url()).backoff(rare).connect().await;
    Some((server, java, rust.expect("a client")))
}

fn ask(java: &Worker, op: &str, kind: &str) -> Call {
    java.request(
        op,
        json!({"owner": "j", "kind": kind, "name": "x", "wait_ms": 20_000}),
    )
}

async fn done(call: Call) {
    let answer = tokio::time::timeout(LONG, call).await.expect("in time");
    answer.outcome.expect("an answer");
}

async fn got(waiting: tokio::task::JoinHandle<Result<LockGuard, Error>>) -> LockGuard {
    let waited = tokio::time::timeout(LONG, waiting).await.expect("in time");
    waited.unwrap().unwrap()
}

#[tokio::test]
async fn spin_locks_of_java_and_rust_exclude_each_other_and_wait_for_each_other() {
    let Some((server, java, rust)) = two().await else {
        return;
    };
    let lock = rust.get_spin_lock("x");
    for _ in 0..3 {
        let guard = lock.lock().await.unwrap();
        let waiting = ask(&java, "lock", SPIN);
        guard.unlock().await.unwrap();
        done(waiting).await;
        let busy = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        assert!(busy.unwrap().is_none());
        assert!(lock.is_locked().await.unwrap());
        let lock = lock.clone();
        let waiting = tokio::spawn(async move { lock.lock().await });
        done(ask(&java, "unlock", SPIN)).await;
        got(waiting).await.unlock().await.unwrap();
    }
    nothing_is_left(&server).await;
}

/// Redisson's spin lock publishes nothing at its release: its plain waiters sleep until the TTL.
#[tokio::test]
async fn a_plain_waiter_of_java_is_woken_by_the_release_of_our_spin_lock() {
    let Some((server, java, rust)) = two().await else {
        return;
    };
    // Java would sleep for the lease, longer than this test waits.
    let guard = rust
        .get_spin_lock("x")
        .lock_with_lease(NO_POLL)
        .await
        .unwrap();
    let waiting = ask(&java, "lock", PLAIN);
    eventually("it listens", LONG, async || {
        server.subscribers(&channel("x")).await == 1
    })
    .await;
    guard.unlock().await.unwrap();
    done(waiting).await;
    done(ask(&java, "unlock", PLAIN)).await;
}

/// The reverse: our spin waiter needs no message, since it polls, however rarely the client does.
#[tokio::test]
async fn our_spin_waiter_gets_in_after_a_release_of_java_that_wakes_nobody() {
    let Some((server, java, rust)) = two().await else {
        return;
    };
    done(ask(&java, "lock", SPIN)).await;
    let lock = rust.get_spin_lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    done(ask(&java, "unlock", SPIN)).await;
    got(waiting).await.unlock().await.unwrap();
    assert!(server.channels().await.is_empty());
}
