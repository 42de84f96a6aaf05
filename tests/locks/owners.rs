//! Without an owner every acquire stands for itself; a guard or an owner enters again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join;
use tokio::sync::oneshot;
use watchlock::{Error, Lease, Lock};
use watchlock_support::server::RedisServer;

use crate::common::{
    clean, connect, count, is_free, poll_once, soon, subscribed, try_once, without_polls,
};

#[tokio::test]
async fn tasks_that_share_a_handle_exclude_each_other() {
    let server = RedisServer::start();
    let lock = Arc::new(connect(&server).await.get_lock("shared"));
    let inside = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (lock, inside) = (Arc::clone(&lock), Arc::clone(&inside));
            tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = lock.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn one_task_without_an_owner_excludes_itself() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("self");
    let guard = lock.lock().await.unwrap();
    let clone = lock.clone();
    let again = clone.try_lock(Duration::ZERO, Lease::Watchdog);
    assert!(again.await.unwrap().is_none());
    assert!(try_once(&client, "self").await.unwrap().is_none());
    assert!(!lock.is_held() && lock.hold_count() == 0);
    guard.unlock().await.unwrap();
    assert!(is_free(&client, "self").await);
}

#[tokio::test]
async fn a_guard_enters_again_and_redis_shows_the_count() {
    let server = RedisServer::start();
    let lock = connect(&server).await.get_lock("nested");
    let outer = lock.lock().await.unwrap();
    assert_eq!((outer.hold_count(), count(&server, "nested").await), (1, 1));
    let middle = outer.reenter(Lease::Watchdog).await.unwrap();
    let inner = middle.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!((outer.hold_count(), count(&server, "nested").await), (3, 3));
    inner.unlock().await.unwrap();
    assert_eq!(
        (middle.hold_count(), count(&server, "nested").await),
        (2, 2)
    );
    outer.unlock().await.unwrap();
    assert!(middle.is_valid());
    assert_eq!(count(&server, "nested").await, 1);
    middle.unlock().await.unwrap();
    assert_eq!(count(&server, "nested").await, 0);
}

#[tokio::test]
async fn an_owner_enters_again_by_any_handle_and_others_do_not() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let (owner, other) = (client.new_owner(), client.new_owner());
    let outer = owner.get_lock("mine").lock().await.unwrap();
    let handle = owner.get_lock("mine");
    let again = handle.try_lock(Duration::ZERO, Lease::Watchdog).await;
    let again = again.unwrap().expect("the owner is let in");
    let inner = handle.lock_for(Duration::from_secs(10)).await.unwrap();
    assert_eq!(handle.hold_count(), 3);
    assert!(handle.is_held());
    assert_eq!(count(&server, "mine").await, 3);

    let theirs = other.get_lock("mine");
    let refused = theirs.try_lock(Duration::ZERO, Lease::Watchdog);
    assert!(refused.await.unwrap().is_none());
    assert!(try_once(&client, "mine").await.unwrap().is_none());
    assert!(!other.get_lock("mine").is_held());
    assert_eq!(other.get_lock("mine").hold_count(), 0);
    assert!(!owner.get_lock("yours").is_held());

    drop((outer, again));
    inner.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn an_owner_enters_a_hold_that_began_in_a_guard_of_his() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let guard = owner.get_lock("both").lock().await.unwrap();
    let by_guard = guard.reenter(Lease::Watchdog).await.unwrap();
    let by_owner = owner.get_lock("both").lock().await.unwrap();
    assert_eq!(by_owner.hold_count(), 3);
    drop((guard, by_guard));
    assert!(by_owner.is_valid());
    by_owner.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn acquires_of_one_owner_at_once_start_one_hold_and_enter_it() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    for _ in 0..20 {
        let lock = owner.get_lock("at-once");
        let (first, second) = soon(join(lock.lock(), lock.lock())).await;
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!((first.hold_count(), second.hold_count()), (2, 2));
        assert_eq!(count(&server, "at-once").await, 2);
        let (first, second) = join(first.unlock(), second.unlock()).await;
        first.unwrap();
        second.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn acquires_of_one_owner_wait_as_one_for_a_stranger() {
    let server = RedisServer::start();
    let stranger = connect(&server).await.get_lock("queue");
    let client = without_polls(&server).connect().await.unwrap();
    let guard = stranger.lock().await.unwrap();
    let owner = client.new_owner();
    let lock = owner.get_lock("queue");
    let mut both = Box::pin(join(lock.lock(), lock.lock()));
    assert!(poll_once(&mut both).await.is_none());
    subscribed(&server, "queue").await;
    guard.unlock().await.unwrap();
    let (first, second) = soon(both).await;
    assert_eq!(first.unwrap().hold_count(), 2);
    drop(second);
    clean(&server).await;
}

#[tokio::test]
async fn a_reentry_that_comes_after_the_last_release_starts_a_new_hold() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("after");
    for _ in 0..20 {
        let guard = lock.lock().await.unwrap();
        let mut unlock = Box::pin(guard.unlock());
        assert!(poll_once(&mut unlock).await.is_none());
        let (unlocked, again) = soon(join(unlock, lock.lock())).await;
        unlocked.unwrap();
        let again = again.unwrap();
        assert_eq!(again.hold_count(), 1);
        assert_eq!(count(&server, "after").await, 1);
        again.unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn another_client_excludes_the_same_process() {
    let server = RedisServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    assert_ne!(one.id(), two.id());
    let guard = one.get_lock("two").lock().await.unwrap();
    assert!(!is_free(&two, "two").await);
    for client in [&one, &two] {
        assert!(client.get_lock("two").is_locked().await.unwrap());
    }
    let hash = server.hash("two").await;
    let field = hash.keys().next().unwrap();
    assert!(field.starts_with(&format!("{}:", one.id())), "{field}");
    guard.unlock().await.unwrap();
    assert!(!two.get_lock("two").is_locked().await.unwrap());
    assert!(is_free(&two, "two").await);
}

#[tokio::test]
async fn every_hold_has_an_id_of_its_own() {
    let server = RedisServer::start();
    let lock = connect(&server).await.get_lock("fresh");
    let mut fields = Vec::new();
    for _ in 0..5 {
        let guard = lock.lock().await.unwrap();
        fields.extend(server.hash("fresh").await.into_keys());
        guard.unlock().await.unwrap();
    }
    fields.sort();
    fields.dedup();
    assert_eq!(fields.len(), 5);
}

#[tokio::test]
async fn levels_are_given_back_from_other_tasks_and_threads() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let outer = client.get_lock("away").lock().await.unwrap();
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    tokio::spawn(outer.unlock()).await.unwrap().unwrap();
    assert_eq!(count(&server, "away").await, 1);

    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _ = tell.send(runtime.block_on(inner.unlock()));
    });
    soon(told).await.unwrap().unwrap();
    assert_eq!(count(&server, "away").await, 0);
}

#[tokio::test]
async fn any_kind_of_handle_serves_as_a_lock() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let handles: [Box<dyn Lock + '_>; 2] = [
        Box::new(client.get_lock("any")),
        Box::new(owner.get_lock("any")),
    ];
    for lock in &handles {
        assert_eq!(lock.name(), "any");
        let guard = lock.lock().await.unwrap();
        assert!(lock.is_locked().await.unwrap());
        guard.unlock().await.unwrap();
        let guard = lock
            .try_lock(Duration::ZERO, Lease::Watchdog)
            .await
            .unwrap();
        assert_eq!(guard.unwrap().name(), "any");
        assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
        let guard = lock.lock_for(Duration::from_secs(5)).await.unwrap();
        assert!(lock.force_unlock().await.unwrap());
        assert!(!guard.is_valid() && !lock.is_held() && lock.hold_count() == 0);
        drop(guard);
    }
}
