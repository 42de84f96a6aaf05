//! The ambient owner.

use std::time::Duration;

use futures_util::future::join;
use watchlock::{Client, Lease, ReentrantLock};
use watchlock_support::server::RedisServer;

use crate::common::{clean, connect, count, gone, soon};

async fn is_busy(lock: &ReentrantLock) -> bool {
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    tried.unwrap().is_none()
}

/// A service as it is ported from Java: the handle is a field.
struct Service {
    lock: ReentrantLock,
}

impl Service {
    async fn outer(&self) -> u32 {
        let guard = self.lock.lock().await.unwrap();
        let count = self.inner().await;
        guard.unlock().await.unwrap();
        count
    }

    async fn inner(&self) -> u32 {
        let guard = self.lock.lock().await.unwrap();
        let count = self.lock.hold_count();
        guard.unlock().await.unwrap();
        count
    }
}

async fn service() -> (RedisServer, Client, Service) {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("service");
    (server, client, Service { lock })
}

#[tokio::test]
async fn a_scope_enters_again_through_a_handle_kept_in_a_struct() {
    let (server, client, service) = service().await;
    assert_eq!(soon(client.scope(service.outer())).await, 2);
    assert_eq!(client.scope(service.inner()).await, 1);
    assert!(!server.exists("service").await);
}

#[tokio::test]
async fn a_future_made_outside_acts_for_the_scope_it_is_polled_in() {
    let (server, client, service) = service().await;
    let later = service.lock.lock();
    client
        .scope(async {
            let guard = service.lock.lock().await.unwrap();
            let again = later.await.unwrap();
            assert_eq!(again.hold_count(), 2);
            drop((guard, again));
        })
        .await;
    gone(&server, "service").await;
}

#[tokio::test]
async fn a_scope_is_not_inherited_by_spawn() {
    let (_server, client, service) = service().await;
    client
        .scope(async {
            let guard = service.lock.lock().await.unwrap();
            let lock = service.lock.clone();
            let spawned = tokio::spawn(async move { (is_busy(&lock).await, lock.is_held()) });
            assert_eq!(spawned.await.unwrap(), (true, false));
            guard.unlock().await.unwrap();
        })
        .await;
}

#[tokio::test]
async fn futures_joined_in_a_scope_share_its_owner() {
    let (server, client, service) = service().await;
    client
        .scope(async {
            let (one, two) = soon(join(service.lock.lock(), service.lock.lock())).await;
            assert_eq!(one.unwrap().hold_count(), 2);
            drop(two);
        })
        .await;
    clean(&server).await;
}

#[tokio::test]
async fn an_inner_scope_is_another_owner_and_the_outer_one_comes_back() {
    let (_server, client, service) = service().await;
    let lock = &service.lock;
    client
        .scope(async {
            let guard = lock.lock().await.unwrap();
            client
                .scope(async {
                    assert!(is_busy(lock).await);
                    assert!(!lock.is_held());
                })
                .await;
            assert!(lock.is_held());
            let inner = lock.lock().await.unwrap();
            assert_eq!(lock.hold_count(), 2);
            inner.unlock().await.unwrap();
            guard.unlock().await.unwrap();
        })
        .await;
}

#[tokio::test]
async fn scopes_of_two_clients_stand_side_by_side() {
    let (server, client, service) = service().await;
    let other = connect(&server).await;
    let theirs = other.get_lock("theirs");
    client
        .scope(async {
            // There is no scope of this client here, so nobody enters again.
            let guard = theirs.lock().await.unwrap();
            assert!(is_busy(&theirs).await);
            drop(guard);
            other
                .scope(async {
                    let guards = [theirs.lock().await.unwrap(), theirs.lock().await.unwrap()];
                    let ours = [
                        service.lock.lock().await.unwrap(),
                        service.lock.lock().await.unwrap(),
                    ];
                    assert_eq!((theirs.hold_count(), service.lock.hold_count()), (2, 2));
                    drop((guards, ours));
                })
                .await;
        })
        .await;
    clean(&server).await;
}

#[tokio::test]
async fn a_guard_outlives_the_scope_it_was_taken_in() {
    let (server, client, service) = service().await;
    let guard = client.scope(service.lock.lock()).await.unwrap();
    assert!(guard.is_valid());
    assert!(is_busy(&service.lock).await);
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(count(&server, "service").await, 2);
    inner.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert!(!server.exists("service").await);
}

#[tokio::test]
async fn an_owner_handle_in_a_scope_acts_for_its_owner() {
    let (_server, client, service) = service().await;
    let owner = client.new_owner();
    client
        .scope(async {
            let guard = service.lock.lock().await.unwrap();
            let theirs = owner.get_lock("service");
            let tried = theirs.try_lock(Duration::ZERO, Lease::Watchdog).await;
            assert!(tried.unwrap().is_none());
            guard.unlock().await.unwrap();
        })
        .await;
}
