//! `WAIT` counts the last write of its own connection only. Each of these would be granted although no replica has it, on
//! servers from Redis 7.2 on, if a command wrote nothing, or had its `WAIT` on another connection.

use std::time::Duration;

use watchlock::{Lease, Owner};
use watchlock_support::eventually;

use crate::common::{LONG, ms, try_once};
use crate::{Pair, few, of};

const LONG_LEASE: Duration = Duration::from_secs(60);

/// The trap itself: shows on which servers it exists.
#[tokio::test]
async fn behind_nothing_written_wait_says_yes_at_once() {
    let pair = Pair::start().await;
    pair.master.cmd(&["SET", "x", "1"]).await;
    let version = pair.master.info("server", "redis_version").await.unwrap();
    pair.replica.freeze();
    pair.master.cmd(&["SET", "x", "2"]).await;
    let url = pair.master.url();
    let waited = tokio::task::spawn_blocking(move || {
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_connection().unwrap();
        redis::cmd("GET")
            .arg("x")
            .query::<String>(&mut connection)
            .unwrap();
        let wait = redis::cmd("WAIT")
            .arg(1)
            .arg(50)
            .query::<u32>(&mut connection);
        wait.unwrap()
    });
    let got = waited.await.unwrap();
    pair.replica.resume();
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap());
    let bites = (numbers.next(), numbers.next()) >= (Some(7), Some(2));
    assert_eq!(got == 1, bites, "Redis {version}");
}

#[tokio::test]
async fn a_question_that_lengthens_nothing_is_written() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let lock = client.get_lock("x");
    let guard = lock.lock_with_lease(LONG_LEASE).await.unwrap();
    pair.replica.freeze();
    let error = guard.verify().await.unwrap_err();
    pair.replica.resume();
    of(&error);
    guard.check().unwrap();
}

/// The second level asks for less than the first has.
#[tokio::test]
async fn entering_a_hold_again_is_written() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let owner: Owner = client.new_owner();
    for fenced in [false, true] {
        let guard = if fenced {
            owner
                .get_fenced_lock("x")
                .lock_with_lease(LONG_LEASE)
                .await
                .unwrap()
                .into()
        } else {
            owner
                .get_lock("x")
                .lock_with_lease(LONG_LEASE)
                .await
                .unwrap()
        };
        pair.replica.freeze();
        let lock = owner.get_lock("x");
        let refused = lock.try_lock(Duration::ZERO, Lease::Fixed(ms(1000)));
        few(refused.await);
        pair.replica.resume();
        assert_eq!(guard.hold_count(), 1);
        // It may take a second to find out that the replica is back.
        eventually("it is asserted", LONG, async || {
            guard.verify().await.is_ok()
        })
        .await;
        guard.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn extending_is_written() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let guard = client
        .get_lock("x")
        .lock_with_lease(LONG_LEASE)
        .await
        .unwrap();
    pair.replica.freeze();
    let error = guard.extend(ms(1000)).await.unwrap_err();
    pair.replica.resume();
    of(&error);
}

/// The batch's `WAIT` would not cover a script that the server does not know and that is sent again.
#[tokio::test]
async fn a_script_that_is_sent_again_has_a_wait_of_its_own() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    pair.master.cmd(&["SCRIPT", "FLUSH"]).await;
    pair.replica.freeze();
    few(try_once(&client, "x").await);
    pair.replica.resume();
    assert!(!pair.master.exists("x").await);
    let lock = client.get_lock("x");
    for _ in 0..3 {
        pair.master.cmd(&["SCRIPT", "FLUSH"]).await;
        let guard = lock.try_lock(LONG, Lease::Watchdog).await.unwrap().unwrap();
        assert!(pair.replica.exists("x").await);
        guard.unlock().await.unwrap();
    }
}
