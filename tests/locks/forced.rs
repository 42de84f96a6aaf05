//! Ending somebody else's hold, and bodies that run under a lock.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Notify;
use watchlock::{Client, Clock, Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, connect, count, ms};

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

/// The runtime has one thread: a task that blocks it keeps everything else from being polled.
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
async fn a_body_takes_no_step_after_its_validity_though_nobody_reported_the_loss() {
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
