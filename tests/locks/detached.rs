//! Lock and unlock in different places, and what happens to the rest when the owner ends.

use watchlock::Error;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, connect, connect_short, count, gone, subscribed};

#[tokio::test]
async fn the_newest_detached_level_goes_first() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("newest");
    lock.lock().await.unwrap().detach().unwrap();
    let fixed = lock.lock_with_lease(SHORT).await.unwrap();
    let view = fixed.hold();
    fixed.detach().unwrap();
    lock.unlock().await.unwrap();

    // The remaining level is under the watchdog: the other one would end with its lease.
    let lost = tokio::time::timeout(SHORT * 2, view.lost()).await;
    assert!(lost.is_err() && view.is_valid());
    lock.unlock().await.unwrap();
    assert!(!server.exists("newest").await);
}

#[tokio::test]
async fn without_an_owner_nothing_is_detached_or_unlocked() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("nobody");
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    let guard = lock.lock().await.unwrap();
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    let (guard, error) = guard.detach().unwrap_err().into_parts();
    assert!(matches!(error, Error::NotOwner { .. }));
    assert!(guard.is_valid());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn only_detached_levels_are_given_back_by_the_handle() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let (owner, other) = (client.new_owner(), client.new_owner());
    let lock = owner.get_lock("attached");
    let guard = lock.lock().await.unwrap();
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    let theirs = other.get_lock("attached").unlock().await;
    assert!(matches!(theirs, Err(Error::NotOwner { .. })));
    let in_scope = client.scope(client.get_lock("attached").unlock()).await;
    assert!(matches!(in_scope, Err(Error::NotOwner { .. })));
    assert!(guard.is_valid());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn an_owner_that_ends_gives_back_its_detached_levels_and_nothing_else() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    owner
        .get_lock("left")
        .lock()
        .await
        .unwrap()
        .detach()
        .unwrap();
    let kept = owner.get_lock("kept").lock().await.unwrap();
    let level = owner.get_lock("kept").lock().await.unwrap();
    level.detach().unwrap();
    drop(owner);
    gone(&server, "left").await;
    eventually("one level is left", LONG, async || {
        count(&server, "kept").await == 1
    })
    .await;
    let (kept, error) = kept.detach().unwrap_err().into_parts();
    assert!(matches!(error, Error::NotOwner { .. }));
    kept.unlock().await.unwrap();
}

#[tokio::test]
async fn a_scope_that_ends_or_is_cancelled_gives_back_its_detached_levels() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("scoped");
    client
        .scope(async {
            lock.lock().await.unwrap().detach().unwrap();
            lock.unlock().await.unwrap();
            lock.lock().await.unwrap().detach().unwrap();
        })
        .await;
    gone(&server, "scoped").await;

    let endless = client.scope(async {
        lock.lock().await.unwrap().detach().unwrap();
        std::future::pending::<()>().await;
    });
    let mut endless = Box::pin(endless);
    tokio::select! {
        () = &mut endless => {}
        () = eventually("it holds", LONG, async || server.exists("scoped").await) => {}
    }
    drop(endless);
    gone(&server, "scoped").await;
}

#[tokio::test]
async fn a_guard_that_was_waited_for_is_not_detached_after_its_scope() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let lock = client.get_lock("carried");
    let held = lock.lock().await.unwrap();
    let waiting = tokio::spawn({
        let (client, lock) = (client.clone(), lock.clone());
        async move { client.scope(lock.lock()).await.unwrap() }
    });
    subscribed(&server, "carried").await;
    held.unlock().await.unwrap();
    let carried = waiting.await.unwrap();

    let (carried, error) = carried.detach().unwrap_err().into_parts();
    assert!(matches!(error, Error::NotOwner { .. }));
    assert!(carried.is_valid());
    drop(carried);
    gone(&server, "carried").await;
}
