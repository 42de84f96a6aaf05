//! Ending somebody else's hold, and bodies that run under a lock.

use std::time::Duration;

use futures_util::FutureExt;
use watchlock::{Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{
    LONG, clean, connect, count, gone, is_free, ms, soon, subscribed, without_polls,
};

#[tokio::test]
async fn a_forced_hold_of_this_client_is_lost_at_once() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("mine");
    assert!(!lock.force_unlock().await.unwrap());
    let guard = lock.lock().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    assert!(!guard.is_valid() && guard.valid_for() == Duration::ZERO);
    assert_eq!(soon(guard.lost()).await, LostReason::Forced);
    let reason = LostReason::Forced;
    assert!(matches!(guard.check(), Err(Error::Lost { reason: r }) if r == reason));
    let unlocked = guard.unlock().await;
    assert!(matches!(unlocked, Err(Error::Lost { reason: r }) if r == reason));
    assert!(is_free(&client, "mine").await);
}

#[tokio::test]
async fn a_forced_release_lets_a_waiter_in() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let guard = holder.get_lock("wake").lock().await.unwrap();
    let lock = client.get_lock("wake");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "wake").await;
    let by_anybody = connect(&server).await.get_lock("wake").force_unlock().await;
    assert!(by_anybody.unwrap());
    let entered = soon(waiter).await.unwrap().unwrap();
    // The old holder's unlock is late and harms nobody.
    assert!(guard.unlock().await.unwrap_err().is_lost());
    assert_eq!(count(&server, "wake").await, 1);
    entered.unlock().await.unwrap();
}

#[tokio::test]
async fn i5_a_waiter_behind_a_hold_of_its_own_client_gets_in_when_that_is_forced() {
    let server = RedisServer::start();
    let client = without_polls(&server).connect().await.unwrap();
    let guard = client.get_lock("inside").lock().await.unwrap();
    let lock = client.get_lock("inside");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "inside").await;
    let stranger = connect(&server).await.get_lock("inside");
    assert!(stranger.force_unlock().await.unwrap());
    let entered = soon(waiter).await.unwrap().unwrap();
    assert!(!guard.is_valid());
    drop(guard);
    entered.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_body_runs_under_the_lock_and_its_value_comes_back() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("body");
    let seen = lock
        .run(async |guard| {
            let busy = lock.try_run(Duration::ZERO, Lease::Watchdog, async |_| ());
            assert!(busy.await.unwrap().is_none());
            (guard.hold_count(), count(&server, "body").await)
        })
        .await;
    assert_eq!(seen.unwrap(), (1, 1));
    assert!(!server.exists("body").await);
    let value = lock
        .try_run(Duration::ZERO, ms(5_000), async |guard| {
            guard.name().to_owned()
        })
        .await;
    assert_eq!(value.unwrap().as_deref(), Some("body"));
    assert!(!server.exists("body").await);
}

#[tokio::test]
async fn a_body_is_cancelled_when_the_hold_is_lost() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("cut");
    let body = lock.try_run(Duration::ZERO, ms(100), async |_| {
        std::future::pending::<()>().await;
    });
    let error = soon(body).await.unwrap_err();
    let reason = LostReason::Expired;
    assert!(matches!(error, Error::Lost { reason: r } if r == reason));
}

#[tokio::test]
async fn a_body_that_ended_is_no_loss_whatever_becomes_of_the_release() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("ended");
    let body = async |_: &watchlock::LockGuard| {
        server.cmd(&["DEL", "ended"]).await;
        7
    };
    assert_eq!(lock.run(body).await.unwrap(), 7);
}

#[tokio::test]
async fn a_panic_or_a_cancelled_body_gives_the_lock_back() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("panic");
    let panics = tokio::spawn(async move {
        lock.run(async |_| {
            std::panic::resume_unwind(Box::new("on purpose"));
        })
        .await
    });
    assert!(panics.await.unwrap_err().is_panic());
    gone(&server, "panic").await;

    let lock = client.get_lock("panic");
    let mut endless = Box::pin(lock.run(async |_| std::future::pending::<()>().await));
    eventually("it runs", LONG, async || {
        let _ = (&mut endless).now_or_never();
        server.exists("panic").await
    })
    .await;
    drop(endless);
    gone(&server, "panic").await;
}
