//! Servers that come back without their memory do not vote until everything is over that they may have forgotten.

use std::time::Duration;

use futures_util::future::join_all;
use watchlock::{Error, Lease, Quorum, QuorumBuilder};
use watchlock_support::eventually;

use crate::common::{LONG, ms, soon};
use crate::{Five, end, of, try_once};

/// A delay long enough for a test to do something in it, and short enough to wait for.
const DELAY: Duration = Duration::from_secs(4);

/// Waits until all servers have been up for that long.
async fn all_old(five: &Five) {
    for server in &five.0 {
        eventually("it is old enough", LONG, async || {
            let uptime = server.info("server", "uptime_in_seconds").await;
            uptime.is_some_and(|uptime| uptime.parse::<u64>().unwrap() >= DELAY.as_secs())
        })
        .await;
    }
}

async fn with_delay(five: &Five) -> Quorum {
    of(&five.urls())
        .restart_delay(DELAY)
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn servers_that_have_just_been_started_have_no_vote() {
    let five = Five::start();
    // The default: longer than its longest lease.
    let quorum = Quorum::builder(five.urls())
        .node_timeout(ms(1_000))
        .connect()
        .await
        .unwrap();
    let lock = quorum.get_lock("x");
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog);
    let error = tried.await.expect_err("nobody votes");
    assert!(
        matches!(
            error,
            Error::NoQuorum {
                reached: 0,
                needed: 3,
                ..
            }
        ),
        "{error}"
    );
    let said = std::error::Error::source(&error).unwrap().to_string();
    assert!(said.contains("no vote yet"), "{said}");
    // What they granted is given back.
    five.clean().await;
}

#[tokio::test]
async fn a_lock_that_restarted_servers_forgot_is_granted_to_nobody() {
    let five = Five::start();
    all_old(&five).await;
    let (quorum, other) = (with_delay(&five).await, with_delay(&five).await);
    // Nothing renews it, so nobody notices that they forgot.
    let guard = quorum
        .get_lock("x")
        .lock_with_lease(ms(3_000))
        .await
        .unwrap();
    five.until(5, "x").await;
    for server in [0, 1, 2] {
        five.0[server].restart();
    }
    let tried = other
        .get_lock("x")
        .try_lock(Duration::ZERO, Lease::Watchdog)
        .await;
    match tried {
        Err(Error::NoQuorum { .. }) => {}
        tried => panic!("{tried:?}"),
    }
    drop(guard);
    let got = soon(other.get_lock("x").try_lock(LONG, Lease::Watchdog)).await;
    end(got.unwrap().expect("all are old enough in the end")).await;

    // Without the delay they grant it at once, which the delay is there to prevent.
    let guard = quorum.get_lock("x").try_lock(LONG, ms(3_000)).await;
    let guard = guard.unwrap().expect("it is free");
    five.until(5, "x").await;
    for server in [0, 1, 2] {
        five.0[server].restart();
    }
    let hasty = five.connect().await;
    let stolen = try_once(&hasty.get_lock("x"))
        .await
        .expect("three forgot it");
    end(stolen).await;
    drop(guard);
}

#[tokio::test]
async fn a_young_servers_busy_counts() {
    let five = Five::start();
    all_old(&five).await;
    let (quorum, other) = (with_delay(&five).await, five.connect().await);
    for server in [0, 1] {
        five.0[server].restart();
    }
    // It may vote at once, so it has all servers.
    let guard = other.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    five.0[3].kill();
    five.0[4].kill();
    assert!(
        try_once(&quorum.get_lock("x")).await.is_none(),
        "it is busy"
    );
    drop(guard);
}

#[tokio::test]
async fn the_age_is_that_of_the_server_that_answers() {
    let five = Five::start();
    all_old(&five).await;
    let quorum = with_delay(&five).await;
    let lock = quorum.get_lock("x");
    end(lock.lock().await.unwrap()).await;
    // The restart cuts the connections to the old servers.
    for server in [0, 1, 2] {
        five.0[server].restart();
    }
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(matches!(tried, Err(Error::NoQuorum { .. })), "{tried:?}");
}

/// What so many waiters, each of its own quorum, send to the first server in two seconds.
async fn sent_by(waiters: usize, five: &Five, quorum: impl Fn() -> QuorumBuilder) -> u64 {
    let quorums = (0..waiters).map(|_| quorum().connect());
    let quorums = join_all(quorums).await.into_iter().map(Result::unwrap);
    let locks: Vec<_> = quorums.map(|quorum| quorum.get_lock("x")).collect();
    five.0[0].reset_calls().await;
    let waiting = locks.iter().map(async |lock| {
        let tried = lock.try_lock(Duration::from_secs(2), Lease::Watchdog).await;
        assert!(!matches!(tried, Ok(Some(_))), "{tried:?}");
    });
    join_all(waiting).await;
    five.0[0].calls_of("evalsha").await
}

#[tokio::test]
async fn waiters_do_not_wake_each_other_while_no_server_may_vote() {
    let five = Five::start();
    let young = || Quorum::builder(five.urls()).node_timeout(ms(1_000));
    // Each asks at most every half a second, and gives back what it got.
    let sent = sent_by(3, &five, young).await;
    assert!(sent <= 60, "{sent} scripts");
    five.clean().await;
}

#[tokio::test]
async fn waiters_do_not_wake_each_other_while_a_holder_lacks_servers() {
    let five = Five::start();
    for server in [2, 3, 4] {
        five.0[server].cmd(&["HSET", "x", "stranger:1", "1"]).await;
        five.0[server].cmd(&["PEXPIRE", "x", "30000"]).await;
    }
    // After four short pauses and four false alarms, each asks at most every half a second, and gives back what it got.
    let sent = sent_by(12, &five, || five.builder()).await;
    assert!(sent <= 12 * 28, "{sent} scripts");
}

#[tokio::test]
async fn a_hold_asks_a_server_that_has_no_vote_yet_once() {
    let five = Five::start();
    all_old(&five).await;
    let quorum = with_delay(&five).await;
    five.0[4].restart();
    for server in [3, 4] {
        five.0[server].cmd(&["HSET", "x", "stranger:1", "1"]).await;
        five.0[server].cmd(&["PEXPIRE", "x", "30000"]).await;
    }
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.0[4].reset_calls().await;
    five.0[4].cmd(&["DEL", "x"]).await;
    let given_back = async || five.0[4].calls_of("publish").await;
    eventually("its grant is given back", LONG, async || {
        given_back().await > 0
    })
    .await;
    // Any other server that the hold lacks is asked once a second.
    tokio::time::sleep(ms(2_500)).await;
    assert_eq!(given_back().await, 1, "it is asked once it may vote");
    five.0[3].cmd(&["DEL", "x"]).await;
    end(guard).await;
}
