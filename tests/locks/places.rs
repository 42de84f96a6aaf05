//! Where and when guards end, and what a view of the hold says.

use std::time::Duration;

use futures_util::FutureExt;
use watchlock::{Client, Error, Lease};
use watchlock_support::server::RedisServer;
use watchlock_support::{eventually, wait_until};

use crate::common::{LONG, connect, count, gone, poll_once, soon, without_polls};

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

#[test]
fn guards_dropped_outside_any_runtime_are_given_back() {
    let server = RedisServer::start();
    let runtime = runtime();
    let (client, guards) = runtime.block_on(async {
        let client = connect(&server).await;
        let guard = client.get_lock("outside").lock().await.unwrap();
        let level = guard.reenter().await.unwrap();
        (client, [guard, level])
    });
    for (guard, left) in guards.into_iter().zip([1, 0]) {
        drop(guard);
        let look = self::runtime();
        wait_until("the level is given back", LONG, || {
            look.block_on(count(&server, "outside")) == left
        });
    }
    // Nor is the client's own end anybody's business but the keeper's.
    drop(client);
}

#[test]
fn guards_that_outlive_their_runtime_are_given_back() {
    let server = RedisServer::start();
    let runtime = runtime();
    let guards: Vec<_> = runtime.block_on(async {
        let client = connect(&server).await;
        let mut guards = Vec::new();
        for i in 0..100 {
            let lock = client.get_lock(&format!("static-{i}"));
            guards.push(lock.lock().await.unwrap());
        }
        guards
    });
    drop(runtime);
    assert!(guards.iter().all(watchlock::LockGuard::is_valid));
    // The last guard takes the client along: what it left to the keeper is done first.
    drop(guards);
    self::runtime().block_on(async {
        assert!(server.keys().await.is_empty(), "the drop waits for it");
    });
}

#[test]
fn tasks_ended_by_their_runtime_give_their_locks_back() {
    let server = RedisServer::start();
    let (runtime, outer) = (runtime(), self::runtime());
    let client = outer.block_on(connect(&server));
    runtime.block_on(async {
        for i in 0..20 {
            let lock = client.get_lock(&format!("task-{i}"));
            tokio::spawn(async move {
                let _guard = lock.lock().await.unwrap();
                std::future::pending::<()>().await;
            });
        }
        eventually("all hold", LONG, async || server.keys().await.len() == 20).await;
    });
    drop(runtime);
    outer.block_on(eventually("all is given back", LONG, async || {
        server.keys().await.is_empty()
    }));
}

#[test]
fn an_unlock_after_the_runtime_is_gone_works_on_another() {
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    let (client, guard) = first.block_on(async {
        let client = connect(&server).await;
        let guard = client.get_lock("moved").lock().await.unwrap();
        (client, guard)
    });
    drop(first);
    second.block_on(async {
        guard.unlock().await.unwrap();
        let guard = client.get_lock("moved").lock().await.unwrap();
        guard.unlock().await.unwrap();
        assert!(!server.exists("moved").await);
    });
}

#[tokio::test]
async fn a_lock_is_free_for_its_own_client_as_soon_as_the_guard_is_dropped() {
    let server = RedisServer::start();
    let client = without_polls(&server).connect().await.unwrap();
    let lock = client.get_lock("again");
    for _ in 0..50 {
        drop(lock.lock().await.unwrap());
        let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        let guard = tried.unwrap().expect("its own release is waited for");
        drop(guard);
        drop(soon(lock.lock()).await.unwrap());
    }
}

#[tokio::test]
async fn a_view_follows_the_hold_and_keeps_nothing() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("view").lock().await.unwrap();
    let view = guard.hold();
    let elsewhere = tokio::spawn({
        let view = view.clone();
        async move { (view.is_valid(), view.check().is_ok()) }
    });
    assert_eq!(elsewhere.await.unwrap(), (true, true));
    assert!(view.valid_for() > Duration::from_secs(20));
    assert!(view.lost().now_or_never().is_none());
    guard.unlock().await.unwrap();
    assert!(!view.is_valid() && view.valid_for() == Duration::ZERO);
    assert!(matches!(view.check(), Err(Error::NotOwner)));
    assert!(view.lost().now_or_never().is_none(), "it was not lost");
}

#[tokio::test]
async fn i8_sending_the_last_release_ends_the_hold() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("ending");
    let guard = lock.lock_for(Duration::from_millis(300)).await.unwrap();
    let view = guard.hold();
    server.freeze();
    let mut unlock = Box::pin(guard.unlock());
    assert!(poll_once(&mut unlock).await.is_none());
    assert!(!view.is_valid());
    // Its lease goes by unanswered, and it is still no loss.
    let lost = tokio::time::timeout(Duration::from_millis(500), view.lost()).await;
    assert!(lost.is_err());
    server.resume();
    let _ = soon(unlock).await;
    assert!(view.lost().now_or_never().is_none());
    gone(&server, "ending").await;
}

#[tokio::test]
async fn guards_keep_the_client_alive() {
    let server = RedisServer::start();
    let client = Client::builder(&server.url())
        .watchdog_lease(Duration::from_millis(600))
        .connect()
        .await
        .unwrap();
    let guard = client.get_lock("alive").lock().await.unwrap();
    drop(client);
    let lost = tokio::time::timeout(Duration::from_millis(1500), guard.lost()).await;
    assert!(lost.is_err() && guard.is_valid());
    guard.unlock().await.unwrap();
    eventually("its connections are closed", LONG, async || {
        server.connections().await == 0
    })
    .await;
}
