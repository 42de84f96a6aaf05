//! Levels of one hold on different servers: one was entered while some of them did not answer.

use std::time::Duration;

use watchlock::{Error, LockGuard, Quorum};
use watchlock_support::eventually;

use crate::common::{LONG, ms, poll_once, soon};
use crate::{Five, end};

const LEASE: Duration = Duration::from_secs(20);

/// A level under the watchdog on all five, and one of a fixed lease that only the first three have.
async fn entered(five: &Five) -> (Quorum, LockGuard, LockGuard) {
    let quorum = five.connect().await;
    let outer = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    for server in [3, 4] {
        five.0[server].freeze();
    }
    let fixed = soon(outer.reenter(LEASE)).await.unwrap();
    assert!(fixed.valid_for() > ms(10_000));
    (quorum, outer, fixed)
}

/// Somebody else has it there, so it is not taken back.
async fn lose(five: &Five, server: usize) {
    five.0[server].cmd(&["DEL", "x"]).await;
    five.0[server].cmd(&["HSET", "x", "stranger:1", "1"]).await;
}

#[tokio::test]
async fn a_level_that_lost_its_majority_ends_well_while_the_hold_has_another() {
    let five = Five::start();
    let (_quorum, outer, fixed) = entered(&five).await;
    for server in [3, 4] {
        five.0[server].resume();
    }
    lose(&five, 1).await;
    // Four have the hold, and two of them this lease.
    outer.verify().await.unwrap();
    fixed.verify().await.unwrap();
    let error = fixed.extend(ms(30_000)).await.expect_err("two of three");
    assert!(
        matches!(error, Error::NoQuorum { reached: 2, .. }),
        "{error:?}"
    );
    end(fixed).await;
    assert!(outer.is_valid());
    end(outer).await;
}

#[tokio::test]
async fn a_hold_whose_servers_were_given_back_with_a_level_is_lost_with_the_next() {
    let five = Five::start();
    let (_quorum, outer, fixed) = entered(&five).await;
    // Two do not answer: the hold has only the fixed level's three servers.
    end(outer).await;
    fixed.check().unwrap();
    let lost = fixed.lost();
    lose(&five, 1).await;
    assert!(fixed.verify().await.expect_err("two have it").is_lost());
    soon(lost).await;
    assert!(fixed.check().expect_err("it is lost").is_lost());
    assert!(fixed.unlock().await.expect_err("it was lost").is_lost());
}

#[tokio::test]
async fn a_level_has_all_servers_that_answer_in_time() {
    // A tenth of the leases is longer than a server has to answer.
    let (node_timeout, lease) = (ms(10_000), ms(200_000));
    let five = Five::start();
    let builder = five.builder().watchdog_lease(lease);
    let quorum = builder.node_timeout(node_timeout).connect().await.unwrap();
    let outer = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    for server in [3, 4] {
        five.0[server].freeze();
    }
    let mut entering = Box::pin(outer.reenter(lease));
    let entered_by_the_majority = eventually("a majority has it twice", LONG, async || {
        let mut levels = 0;
        for server in &five.0[..3] {
            let counts = server.hash("x").await;
            levels += counts.values().filter(|count| *count == "2").count();
        }
        levels == 3
    });
    tokio::select! {
        biased;
        entered = &mut entering => panic!("two have time to answer: {entered:?}"),
        () = entered_by_the_majority => {}
    }
    let early = tokio::time::timeout(ms(300), &mut entering).await;
    assert!(early.is_err(), "two have time to answer: {early:?}");
    for server in [3, 4] {
        five.0[server].resume();
    }
    let fixed = soon(entering).await.unwrap();
    end(outer).await;
    assert_eq!(five.have(&[0, 1, 2, 3, 4], "x").await, 5);
    for server in [0, 1] {
        lose(&five, server).await;
    }
    fixed.verify().await.unwrap();
    end(fixed).await;
}

#[tokio::test]
async fn the_last_level_ends_well_while_the_owner_enters_the_hold_again() {
    let five = Five::start();
    let quorum = five.builder().max_lease(3 * LEASE).connect();
    let quorum = quorum.await.unwrap();
    let owner = quorum.new_owner();
    let lock = owner.get_lock("x");
    let outer = soon(lock.lock()).await.unwrap();
    five.until(5, "x").await;
    let mut entering = Box::pin(lock.lock_with_lease(3 * LEASE));
    assert!(poll_once(&mut entering).await.is_none(), "it asks all five");
    end(outer).await;
    end(soon(entering).await.unwrap()).await;
    five.clean().await;
}
