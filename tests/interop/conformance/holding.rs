//! Who holds, how often, and who may give back.

use std::time::Duration;

use watchlock::{Client, Error, Lease};
use watchlock_support::server::RedisServer;

use super::{LONG, connect, is_free};

#[tokio::test]
async fn lock_and_unlock_leave_nothing_behind() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("plain");
    for _ in 0..10 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_lock_knows_its_name() {
    let server = RedisServer::start();
    let client = Client::builder(&server.url())
        .key_prefix("app:")
        .connect()
        .await
        .unwrap();
    let guard = client.get_lock("orders").lock().await.unwrap();
    assert_eq!(client.get_lock("orders").name(), "orders");
    assert_eq!(guard.name(), "orders");
    assert_eq!(server.keys().await, ["app:orders"]);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn everybody_sees_that_it_is_locked() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    assert!(!one.get_lock("seen").is_locked().await.unwrap());

    let guard = one.get_lock("seen").lock().await.unwrap();
    for client in [&one, &other] {
        assert!(client.get_lock("seen").is_locked().await.unwrap());
        assert!(!is_free(client, "seen").await);
    }

    guard.unlock().await.unwrap();
    assert!(!other.get_lock("seen").is_locked().await.unwrap());
}

#[tokio::test]
async fn only_the_owner_holds_it() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let (mine, yours) = (client.new_owner(), client.new_owner());
    let (mine, yours) = (mine.get_lock("held"), yours.get_lock("held"));
    assert!(!mine.is_held());

    let guard = mine.lock().await.unwrap();

    assert!(mine.is_held());
    assert!(!yours.is_held());
    guard.unlock().await.unwrap();
    assert!(!mine.is_held());
}

#[tokio::test]
async fn the_hold_count_follows_every_level() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let (owner, stranger) = (client.new_owner(), client.new_owner());
    let (lock, strange) = (owner.get_lock("count"), stranger.get_lock("count"));
    assert_eq!(lock.hold_count(), 0);

    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    assert_eq!((lock.hold_count(), strange.hold_count()), (2, 0));

    inner.unlock().await.unwrap();
    assert_eq!(lock.hold_count(), 1);
    outer.unlock().await.unwrap();
    assert_eq!(lock.hold_count(), 0);
}

#[tokio::test]
async fn the_owner_enters_again_by_every_way_of_acquiring() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("again");
    let lease = Duration::from_secs(10);

    let mut levels = vec![lock.lock().await.unwrap()];
    levels.push(lock.lock_for(lease).await.unwrap());
    let tried = lock
        .try_lock(Duration::ZERO, Lease::Watchdog)
        .await
        .unwrap();
    levels.push(tried.expect("the owner is let in"));
    let inner = levels[0].reenter().await.unwrap();
    levels.push(inner);

    assert_eq!(lock.hold_count(), 4);
    for level in levels {
        assert!(!is_free(&client, "again").await);
        level.unlock().await.unwrap();
    }
    assert!(is_free(&client, "again").await);
}

#[tokio::test]
async fn tasks_that_share_a_lock_object_exclude_each_other() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("shared");
    let guard = lock.lock().await.unwrap();
    let twin = lock.clone();
    let other = tokio::spawn(async move { twin.try_lock(Duration::ZERO, Lease::Watchdog).await });
    assert!(other.await.unwrap().unwrap().is_none());
    // Redisson lets the same thread in here. Without an owner nobody is let in.
    assert!(!is_free(&client, "shared").await);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn only_the_owner_gives_back() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let owner = one.new_owner();
    let lock = owner.get_lock("mine");
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner)), "free");

    let guard = lock.lock().await.unwrap();
    for client in [&one, &other] {
        let stranger = client.new_owner();
        let refused = stranger.get_lock("mine").unlock().await;
        assert!(matches!(refused, Err(Error::NotOwner)));
        let refused = client.get_lock("mine").unlock().await;
        assert!(matches!(refused, Err(Error::NotOwner)));
    }
    guard.check().unwrap();

    guard.unlock().await.unwrap();
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner)), "twice");
}

#[tokio::test]
async fn another_task_may_give_back_what_it_was_handed() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("handed").lock().await.unwrap();
    tokio::spawn(guard.unlock()).await.unwrap().unwrap();
    assert!(is_free(&client, "handed").await);
}

#[tokio::test]
async fn lock_and_unlock_in_different_places() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("apart");
    lock.lock()
        .await
        .unwrap()
        .detach()
        .expect("it has an owner");
    assert!(lock.is_held());
    lock.unlock().await.unwrap();
    assert!(is_free(&client, "apart").await);
}

#[tokio::test]
async fn anybody_may_release_by_force_and_the_holder_learns_it() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    assert!(!other.get_lock("force").force_unlock().await.unwrap());
    let old = one.get_lock("force").lock().await.unwrap();

    assert!(other.get_lock("force").force_unlock().await.unwrap());

    let new = other.get_lock("force").lock().await.unwrap();
    assert!(old.unlock().await.unwrap_err().is_lost());
    new.check().unwrap();
    assert!(
        other.get_lock("force").is_locked().await.unwrap(),
        "the late unlock harmed it"
    );
    new.unlock().await.unwrap();
}

#[tokio::test]
async fn a_forced_release_by_its_own_client_is_told_at_once() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("force").lock().await.unwrap();
    assert!(client.get_lock("force").force_unlock().await.unwrap());
    tokio::time::timeout(LONG, guard.lost())
        .await
        .expect("told");
    assert!(!guard.is_valid());
}
