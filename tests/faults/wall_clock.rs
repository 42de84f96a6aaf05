//! F13, by hand: the wall clock of the Redis host steps. Redis counts leases by it, so a client can only limit its
//! waits to the poll's cap, and the documents can only warn: never step the clock of a Redis host, slew it.
//!
//! `tests/faults/wall_clock.sh` runs these tests with a server whose clock can be set.

use std::fs;

use watchlock::{LostReason, Ttl};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{BEFORE_THE_LEASE, HALF_A_MINUTE};
use crate::common::{SHORT, connect, connect_short, soon, subscribed};

const HOUR_MS: i64 = 3_600_000;

/// Sets the server's clock ahead or back, and waits until the server sees it.
async fn step(server: &RedisServer, hours: i64) {
    let file = std::env::var_os("FAKED_CLOCK").expect("FAKED_CLOCK names the file");
    let before: (i64, i64) = server.query(&["TIME"]).await;
    fs::write(file, format!("{:+}", hours * 3600)).expect("the clock can be set");
    eventually("the clock stepped", BEFORE_THE_LEASE, async || {
        let now: (i64, i64) = server.query(&["TIME"]).await;
        (now.0 - before.0).abs() > 1800
    })
    .await;
}

/// What no client can prevent: all leases are over at once. The holder learns of it at its next renewal.
#[tokio::test]
#[ignore = "needs a faked clock: run wall_clock.sh beside this file"]
async fn f13_a_step_ahead_frees_every_lock_and_its_holder_learns_it() {
    let server = RedisServer::start();
    step(&server, -1).await;
    let client = connect_short(&server).await;
    let guard = client.get_lock("ahead").lock().await.unwrap();
    step(&server, 0).await;
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(guard.unlock().await.unwrap_err().is_lost());
}

/// A dead holder's key outlives its lease by the step; waiters still sleep no longer than the cap.
#[tokio::test]
#[ignore = "needs a faked clock: run wall_clock.sh beside this file"]
async fn f13_a_step_back_lengthens_leases_and_no_waiter_sleeps_for_that() {
    let server = RedisServer::start();
    step(&server, 1).await;
    let stranger = connect(&server).await;
    let held = stranger
        .get_lock("back")
        .lock_with_lease(HALF_A_MINUTE)
        .await
        .unwrap();
    step(&server, 0).await;
    let client = connect(&server).await;
    let lock = client.get_lock("back");
    let ttl = lock.remain_time_to_live().await.unwrap();
    assert!(
        matches!(ttl, Ttl::Left(left) if left.as_secs() > 3_600),
        "{ttl:?}"
    );
    assert!(server.pttl("back").await > HOUR_MS);
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "back").await;
    // No message announces this: a poll finds it.
    server.cmd(&["DEL", "back"]).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    drop(held);
    let kept = client
        .get_lock("kept")
        .lock_with_lease(SHORT)
        .await
        .unwrap();
    assert_eq!(soon(kept.lost()).await, LostReason::Expired);
}
