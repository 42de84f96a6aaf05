//! Without an owner every acquire stands alone; a guard or an owner enters again.

use std::time::Duration;

use watchlock::{Error, Lease, Lock};
use watchlock_support::server::RedisServer;

use crate::common::{clean, connect, is_free};

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
        let guard = lock.lock_with_lease(Duration::from_secs(5)).await.unwrap();
        assert!(lock.force_unlock().await.unwrap());
        assert!(!guard.is_valid() && !lock.is_held() && lock.hold_count() == 0);
        drop(guard);
    }
}
