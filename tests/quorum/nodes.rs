//! Servers that die, stand still and come back, before, during and after an acquire.

use std::time::Duration;

use watchlock::{Error, Lease, Quorum};
use watchlock_support::eventually;
use watchlock_support::proxy::{Match, Proxy};

use crate::common::{LONG, ms, soon};
use crate::{Five, end, of, try_once};

#[tokio::test]
async fn a_minority_may_be_dead_or_stand_still_during_an_acquire() {
    let five = Five::start();
    let (quorum, other) = (five.connect().await, five.connect().await);
    five.0[0].kill();
    five.0[4].freeze();
    for round in 0..3 {
        let guard = soon(quorum.get_lock("x").lock()).await.unwrap();
        assert!(try_once(&other.get_lock("x")).await.is_none(), "{round}");
        guard.verify().await.unwrap();
        end(guard).await;
    }
    five.0[4].resume();
    five.0[0].restart();
    five.clean().await;
}

/// The third of the servers behind a proxy, and a quorum with this `node_timeout`.
async fn third_behind_a_proxy(five: &Five, node_timeout: Duration) -> (Proxy, Quorum) {
    let third = Proxy::to(&five.0[2]);
    let mut urls = five.urls();
    urls[2] = third.url();
    let builder = of(&urls).node_timeout(node_timeout);
    (third, builder.connect().await.unwrap())
}

#[tokio::test]
async fn a_server_that_was_silent_is_not_asked_again_until_it_answers() {
    let five = Five::start();
    let (third, quorum) = third_behind_a_proxy(&five, ms(200)).await;
    let asked = third.count(Match::command("EVALSHA"));
    end(quorum.get_lock("x").lock().await.unwrap()).await;
    five.0[2].freeze();
    // The first acquire that it does not answer in time finds it out. Each acquire has its own name: a try that is
    // under way for a name keeps others for it from being sent.
    let mut names = 0..;
    let mut lock_another = async || {
        let lock = quorum.get_lock(&format!("x{}", names.next().unwrap()));
        end(lock.lock().await.unwrap()).await;
    };
    eventually("thirty are taken without it", LONG, async || {
        let before = asked.seen();
        for _ in 0..30 {
            lock_another().await;
        }
        asked.seen() == before
    })
    .await;
    five.0[2].resume();
    // The quorum asks it in the background, and it votes again.
    let before = asked.seen();
    eventually("it is asked again", LONG, async || {
        lock_another().await;
        asked.seen() > before
    })
    .await;
    five.clean().await;
}

#[tokio::test]
async fn with_two_of_five_there_is_no_quorum_and_with_three_it_is_busy() {
    let five = Five::start();
    let (quorum, other) = (five.connect().await, five.connect().await);
    let lock = other.get_lock("x");
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    five.0[0].kill();
    five.0[1].kill();
    assert!(try_once(&lock).await.is_none(), "three say that it is busy");
    five.0[2].kill();
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    let error = tried.expect_err("two cannot say");
    match &error {
        Error::NoQuorum {
            reached, needed, ..
        } => assert_eq!((*reached, *needed), (2, 3)),
        error => panic!("{error}"),
    }
    assert_eq!(error.lock(), Some("x"));
    let said = std::error::Error::source(&error)
        .expect("what each said")
        .to_string();
    assert!(
        said.contains("server 4: busy") && !said.contains("redis://"),
        "{said}"
    );
    let error = lock.is_locked().await.expect_err("two cannot say");
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    drop(guard);
}

#[tokio::test]
async fn a_waiter_without_a_quorum_gets_an_error_after_a_while_or_the_lock_once_there_is_one() {
    let five = Five::start();
    let quorum = five
        .builder()
        .unavailable_after(ms(300))
        .connect()
        .await
        .unwrap();
    for down in [0, 1, 2] {
        five.0[down].kill();
    }
    let lock = quorum.get_lock("x");
    let error = soon(lock.lock()).await.expect_err("for too long");
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    let waiting = lock.try_lock(LONG, Lease::Watchdog);
    let restart = async {
        five.0[1].restart();
    };
    let (got, ()) = tokio::join!(waiting, restart);
    end(got.unwrap().expect("three are there")).await;
}

#[tokio::test]
async fn grants_without_a_majority_are_given_back_and_the_holder_has_them_again() {
    let five = Five::start();
    let quorum = five.connect_for(ms(1_200)).await;
    let other = five.connect().await;
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    // Two are free, three are not.
    for server in [0, 1] {
        five.0[server].cmd(&["DEL", "x"]).await;
    }
    assert!(try_once(&other.get_lock("x")).await.is_none());
    guard.check().unwrap();
    // The other's watchdog would keep its keys.
    tokio::time::sleep(ms(1_300)).await;
    five.until(5, "x").await;
    end(guard).await;
    five.clean().await;
}

#[tokio::test]
async fn a_try_that_a_frozen_server_runs_late_is_undone() {
    let five = Five::start();
    // A waiter that heeds only the time-out of commands is too late for the test.
    let quorum = five
        .builder()
        .node_timeout(ms(100))
        .command_timeout(2 * LONG)
        .connect()
        .await
        .unwrap();
    for server in [0, 1] {
        five.0[server].freeze();
    }
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.0[2].freeze();
    let lock = quorum.get_lock("y");
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog);
    let error = soon(tried).await.expect_err("two answered");
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    for server in [0, 1, 2] {
        five.0[server].resume();
    }
    for server in &five.0 {
        crate::common::gone(server, "y").await;
    }
    end(guard).await;
    five.clean().await;
}

#[tokio::test]
async fn a_hold_outlives_a_minority_and_nobody_else_gets_in() {
    let five = Five::start();
    let quorum = five.connect_for(ms(1_200)).await;
    let other = five.connect().await;
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    five.0[0].kill();
    five.0[1].freeze();
    // Longer than a lease: three renew it.
    let end_of_watch = std::time::Instant::now() + ms(3_000);
    while std::time::Instant::now() < end_of_watch {
        assert!(try_once(&other.get_lock("x")).await.is_none());
        guard.check().unwrap();
        tokio::time::sleep(ms(100)).await;
    }
    five.0[1].resume();
    five.0[0].restart();
    end(guard).await;
    end(soon(other.get_lock("x").lock()).await.unwrap()).await;
    five.clean().await;
}
