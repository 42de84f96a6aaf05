//! Ending somebody else's hold, and bodies that run under a lock.

use std::cell::Cell;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use watchlock::{Client, Clock, Error, Lease, LostReason};
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
    assert!(matches!(guard.check(), Err(Error::Lost { reason: r, .. }) if r == reason));
    let unlocked = guard.unlock().await;
    assert!(matches!(unlocked, Err(Error::Lost { reason: r, .. }) if r == reason));
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
    assert!(matches!(error, Error::Lost { reason: r, .. } if r == reason));
}

#[tokio::test]
async fn what_the_release_finds_after_a_body_counts() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("deleted");
    let body = async |_: &watchlock::LockGuard| {
        server.cmd(&["DEL", "deleted"]).await;
    };
    let reason = LostReason::Missing;
    let ran = lock.run(body).await;
    assert!(matches!(ran, Err(Error::Lost { reason: r, .. }) if r == reason));
    let ran = lock.try_run(Duration::ZERO, LONG, body).await;
    assert!(matches!(ran, Err(Error::Lost { reason: r, .. }) if r == reason));
}

/// The runtime has one thread: whoever blocks it keeps everything else from being polled.
#[tokio::test]
async fn a_body_takes_no_step_after_the_loss_though_its_runtime_was_blocked() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("stepping");
    let (steps, blocked) = (Cell::new(0), Notify::new());
    let body = lock.try_run(Duration::ZERO, ms(200), async |guard| {
        steps.set(1);
        blocked.notified().await;
        steps.set(2);
        guard.is_valid()
    });
    let blocking = async {
        eventually("the body runs", LONG, async || steps.get() == 1).await;
        blocked.notify_one();
        std::thread::sleep(ms(400));
    };
    let (ran, ()) = tokio::join!(body, blocking);
    let reason = LostReason::Expired;
    assert!(matches!(ran, Err(Error::Lost { reason: r, .. }) if r == reason));
    assert_eq!(steps.get(), 1);
}

#[tokio::test]
async fn a_body_takes_no_step_after_its_validity_though_nobody_told_of_the_loss() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock).connect().await;
    let lock = client.unwrap().get_lock("asleep");
    let steps = Cell::new(0);
    let ran = lock
        .run(async |_| {
            steps.set(1);
            ahead.advance(LONG * 60);
            tokio::task::yield_now().await;
            steps.set(2);
        })
        .await;
    let reason = LostReason::Expired;
    assert!(matches!(ran, Err(Error::Lost { reason: r, .. }) if r == reason));
    assert_eq!(steps.get(), 1);
}

#[tokio::test]
async fn a_body_that_blocks_past_its_lease_ran_without_the_lock() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("blocking");
    let body = async |_: &watchlock::LockGuard| std::thread::sleep(ms(400));
    let ran = lock.try_run(Duration::ZERO, ms(200), body).await;
    let reason = LostReason::Expired;
    assert!(matches!(ran, Err(Error::Lost { reason: r, .. }) if r == reason));
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
