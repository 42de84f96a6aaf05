//! Losing one of several locks: the hold is lost with the first, for good, and all are given back.

use watchlock::{Client, Clock, Error, LockGuard, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{
    LONG, SHORT, clean, connect, connect_short, gone, is_free, ms, poll_once, soon,
};
use crate::{end, mixed, multi};

#[tokio::test]
async fn i8_it_is_lost_with_the_first_of_its_locks() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    for lost in ["a", "b", "c"] {
        let guard = multi(&client, &["a", "b", "c"]).lock().await.unwrap();
        let (view, nested) = (
            guard.hold(),
            guard.reenter(watchlock::Lease::Watchdog).await.unwrap(),
        );
        server.cmd(&["DEL", lost]).await;
        assert_eq!(soon(guard.lost()).await, LostReason::Missing);
        assert_eq!(soon(view.lost()).await, LostReason::Missing);
        assert!(!guard.is_valid() && !view.is_valid() && !nested.is_valid());
        for error in [
            guard.check(),
            view.check(),
            nested.check(),
            guard.verify().await,
            nested.unlock().await,
        ] {
            let error = error.expect_err("lost");
            assert!(error.is_lost(), "{error}");
            assert_eq!(error.lock(), Some(lost), "the one that was lost");
        }
        assert!(guard.reenter(watchlock::Lease::Watchdog).await.is_err());
        let error = guard.unlock().await.expect_err("lost");
        assert!(error.is_lost(), "{error}");
        clean(&server).await;
    }
}

#[tokio::test]
async fn i8_lost_is_final_though_the_lock_comes_back() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let owner = client.new_owner();
    let guard = crate::owned(&owner, &["a", "b"]).lock().await.unwrap();
    client.get_lock("b").force_unlock().await.unwrap();
    assert_eq!(soon(guard.lost()).await, LostReason::Forced);
    // Its owner has lost `b`, and must give it up before it can have it again.
    assert!(guard.check().is_err());
    let view = guard.hold();
    drop(guard);
    clean(&server).await;
    let again = crate::owned(&owner, &["a", "b"]).lock().await.unwrap();
    assert!(again.is_valid() && !view.is_valid());
    assert_eq!(soon(view.lost()).await, LostReason::Forced);
    end(again).await;
}

#[tokio::test]
async fn verify_asks_each_lock() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    for lost in ["a", "b"] {
        let guard = multi(&client, &["a", "b"]).lock().await.unwrap();
        guard.verify().await.unwrap();
        server.cmd(&["DEL", lost]).await;
        guard.check().expect("nobody has looked yet");
        let error = guard.verify().await.expect_err("it is gone");
        assert!(error.is_lost() && error.lock() == Some(lost), "{error}");
        assert!(guard.check().is_err());
        drop(guard);
        clean(&server).await;
    }
}

#[tokio::test]
async fn a_release_that_finds_one_missing_says_lost_and_frees_the_rest() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = multi(&client, &["a", "b", "c"]).lock().await.unwrap();
    server.cmd(&["DEL", "b"]).await;
    let error = guard.unlock().await.expect_err("one was gone");
    assert!(error.is_lost() && error.lock() == Some("b"), "{error}");
    clean(&server).await;
}

#[tokio::test]
async fn i8_a_server_that_is_out_of_reach_loses_it_on_time_and_the_rest_is_not_kept() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let link = Proxy::to(&two);
    let here = connect(&one).await;
    let builder = Client::builder(&link.url()).watchdog_lease(SHORT);
    let there = builder.command_timeout(ms(300)).connect().await.unwrap();
    let both = mixed([here.get_lock("a").into(), there.get_lock("b").into()]);
    let guard = both.lock().await.unwrap();
    assert!(guard.valid_for() <= SHORT, "the shorter watchdog's");
    link.black_hole(Direction::Both);
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(
        one.exists("a").await,
        "it is the guard's until that is gone"
    );
    let error = guard.unlock().await.expect_err("lost");
    assert!(error.is_lost() && error.lock() == Some("b"), "{error}");
    gone(&one, "a").await;
    link.heal();
    gone(&two, "b").await;
}

#[tokio::test]
async fn i8_a_client_that_slept_knows_by_its_own_clock() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let sleeper = Client::builder(&server.url())
        .clock(clock)
        .connect()
        .await
        .unwrap();
    let awake = connect(&server).await;
    let both = mixed([awake.get_lock("a").into(), sleeper.get_lock("b").into()]);
    let guard = both.lock().await.unwrap();
    ahead.advance(LONG * 2);
    assert!(!guard.is_valid());
    let error = guard.check().expect_err("it slept for too long");
    assert!(error.is_lost() && error.lock() == Some("b"), "{error}");
    drop(guard);
    clean(&server).await;
}

#[tokio::test]
async fn i8_run_cancels_its_body_when_one_is_lost() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let all = multi(&client, &["a", "b"]);
    let (started, runs) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(async move {
        let body = async move |_: &LockGuard| {
            started.send(()).expect("somebody listens");
            std::future::pending::<()>().await;
        };
        all.run(body).await
    });
    soon(runs).await.expect("it runs");
    client.get_lock("b").force_unlock().await.unwrap();
    let error = soon(running).await.unwrap().expect_err("cancelled");
    assert!(
        matches!(
            error,
            Error::Lost {
                reason: LostReason::Forced,
                ..
            }
        ),
        "{error}"
    );
    eventually("the rest is free", LONG, async || {
        is_free(&client, "a").await
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_of_one_client_is_announced_and_it_can_still_be_given_back() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let both = mixed([client.get_lock("a").into(), other.get_lock("b").into()]);
    let guard = both.lock().await.unwrap();
    let ending = other.clone();
    let closing = tokio::spawn(async move { ending.shutdown(LONG).await });
    soon(other.shutting_down()).await;
    assert!(poll_once(&mut Box::pin(guard.lost())).await.is_none());
    assert!(guard.is_valid(), "an announcement");
    end(guard).await;
    assert!(soon(closing).await.unwrap().is_clean());
}
