//! Levels of one hold that are of different servers: one that was entered while some of them did not answer.

use std::time::Duration;

use watchlock::{Error, LockGuard, Quorum};

use crate::common::{ms, soon};
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
    // Two do not answer: the hold is the fixed level's three.
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
async fn a_level_has_all_servers_that_answer() {
    let five = Five::start();
    let quorum = five.connect().await;
    let outer = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    let fixed = outer.reenter(LEASE).await.unwrap();
    end(outer).await;
    assert_eq!(five.have(&[0, 1, 2, 3, 4], "x").await, 5);
    for server in [0, 1] {
        lose(&five, server).await;
    }
    fixed.verify().await.unwrap();
    end(fixed).await;
}
