//! Acquires: of a free lock, behind a stranger, behind a hold of the same client.

use std::time::Duration;

use watchlock::{Client, Error, Lease, LockGuard, ReentrantLock};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{after, at_every_await, nothing_is_left, scene, works};
use crate::common::{LONG, clean, connect, ms, poll_once, soon, subscribed, without_polls};

/// The ways to acquire.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Lock,
    LockFor,
    TryOnce,
    TryLong,
    Run,
    TryRun,
}

const VERBS: [Verb; 6] = [
    Verb::Lock,
    Verb::LockFor,
    Verb::TryOnce,
    Verb::TryLong,
    Verb::Run,
    Verb::TryRun,
];

async fn call(verb: Verb, lock: &ReentrantLock) -> Result<Option<LockGuard>, Error> {
    let wait = Duration::from_secs(60);
    match verb {
        Verb::Lock => lock.lock().await.map(Some),
        Verb::LockFor => lock.lock_for(wait).await.map(Some),
        Verb::TryOnce => lock.try_lock(Duration::ZERO, Lease::Watchdog).await,
        Verb::TryLong => lock.try_lock(wait, Lease::Watchdog).await,
        Verb::Run => lock.run(body).await.map(|()| None),
        Verb::TryRun => lock.try_run(wait, wait, body).await.map(|_| None),
    }
}

async fn body(_: &LockGuard) {
    tokio::task::yield_now().await;
}

#[tokio::test]
async fn i9_an_acquire_of_a_free_lock_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    for verb in VERBS {
        at_every_await(async |polls| {
            let name = format!("{verb:?}-{polls}");
            let got = after(polls, call(verb, &client.get_lock(&name))).await;
            let completed = got.is_some();
            drop(got.map(Result::unwrap));
            works(&client, &name).await;
            completed
        })
        .await;
    }
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_an_acquire_in_a_scope_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    let owner = client.new_owner();
    at_every_await(async |polls| {
        let lock = client.get_lock("scope");
        let got = after(polls, client.scope(lock.lock())).await;
        let completed = got.is_some();
        drop(got);
        let got = after(polls, owner.get_lock("owner").lock()).await;
        drop(got);
        assert_eq!(owner.get_lock("owner").hold_count(), 0);
        works(&client, "scope").await;
        works(&client, "owner").await;
        completed
    })
    .await;
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_a_wait_for_a_stranger_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    for verb in [Verb::Lock, Verb::LockFor, Verb::TryLong, Verb::TryRun] {
        at_every_await(async |polls| {
            let name = format!("{verb:?}-{polls}");
            server.cmd(&["HSET", &name, "stranger:1", "1"]).await;
            server.cmd(&["PEXPIRE", &name, "40"]).await;
            let got = after(polls, call(verb, &client.get_lock(&name))).await;
            let completed = got.is_some();
            drop(got.map(Result::unwrap));
            works(&client, &name).await;
            completed
        })
        .await;
    }
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_a_wait_behind_a_hold_of_the_same_client_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    for verb in VERBS {
        at_every_await(async |polls| {
            let name = format!("{verb:?}-{polls}");
            let lock = client.get_lock(&name);
            let guard = lock.lock().await.unwrap();
            let releases = tokio::spawn(async move {
                tokio::task::yield_now().await;
                guard.unlock().await
            });
            let got = after(polls, call(verb, &lock)).await;
            let completed = got.is_some();
            drop(got.map(Result::unwrap));
            releases.await.unwrap().unwrap();
            works(&client, &name).await;
            completed
        })
        .await;
    }
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_waiters_before_and_behind_a_dropped_one_are_served() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let lock = client.get_lock("row");
    for dropped in 0..3 {
        let guard = holder.get_lock("row").lock().await.unwrap();
        let mut row: Vec<_> = (0..3).map(|_| Some(Box::pin(lock.lock()))).collect();
        for waiter in row.iter_mut().flatten() {
            assert!(poll_once(waiter).await.is_none());
        }
        subscribed(&server, "row").await;
        row[dropped] = None;
        guard.unlock().await.unwrap();
        for waiter in row.into_iter().flatten() {
            soon(waiter).await.unwrap().unlock().await.unwrap();
        }
    }
    clean(&server).await;
}

#[tokio::test]
async fn i9_a_lock_that_came_in_for_a_dropped_waiter_goes_to_the_next() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let lock = client.get_lock("came-in");
    for _ in 0..20 {
        let guard = holder.get_lock("came-in").lock().await.unwrap();
        let mut head = Box::pin(lock.lock());
        let mut next = Box::pin(lock.lock());
        assert!(poll_once(&mut head).await.is_none());
        assert!(poll_once(&mut next).await.is_none());
        subscribed(&server, "came-in").await;
        guard.unlock().await.unwrap();
        // By now the keeper may be trying, or have got it.
        drop(head);
        soon(next).await.unwrap().unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn i9_an_acquire_dropped_while_the_server_stalls_leaves_nothing() {
    let (server, client, connections) = scene().await;
    for polls in 1..4 {
        server.freeze();
        let lock = client.get_lock("stall");
        let stalled = tokio::time::timeout(ms(100 * polls), lock.lock()).await;
        assert!(stalled.is_err());
        server.resume();
        works(&client, "stall").await;
    }
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_an_abandoned_attempt_is_undone_at_once_and_without_anybody_asking() {
    let server = RedisServer::start();
    // Long enough that no look at what is overdue helps.
    let builder = Client::builder(&server.url()).command_timeout(Duration::from_secs(60));
    let client = builder.connect().await.unwrap();
    let lock = client.get_lock("alone");
    for _ in 0..3 {
        server.reset_calls().await;
        assert!(after(1, lock.lock()).await.is_none());
        eventually("it was executed", LONG, async || {
            server.calls_of("pexpire").await > 0
        })
        .await;
        clean(&server).await;
    }
    works(&client, "alone").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_a_storm_of_dropped_acquires_leaves_nothing() {
    let (server, client, connections) = scene().await;
    let other = connect(&server).await;
    let tasks: Vec<_> = (0..32)
        .map(|i| {
            let client = if i % 4 == 0 { &other } else { &client };
            let lock = client.get_lock("storm");
            tokio::spawn(async move {
                for _ in 0..30 {
                    let patience = Duration::from_micros(fastrand::u64(0..4_000));
                    if let Ok(got) = tokio::time::timeout(patience, lock.lock()).await {
                        let unlock = got.unwrap().unlock();
                        let _ = tokio::time::timeout(patience, unlock).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    works(&client, "storm").await;
    works(&other, "storm").await;
    drop(other);
    nothing_is_left(&server, connections).await;
}
