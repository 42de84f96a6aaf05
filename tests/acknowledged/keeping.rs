//! What keeps a hold, and what does not.

use watchlock::{Error, LostReason};

use crate::Pair;
use crate::common::{SHORT, ms, soon, try_once};

/// A master that was cut off from its replicas goes on to answer, and its holders must not believe it.
#[tokio::test]
async fn a_renewal_that_no_replica_has_keeps_nothing() {
    let pair = Pair::start().await;
    let client = pair
        .builder()
        .watchdog_lease(SHORT)
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    pair.replica.freeze();
    let reason = soon(guard.lost()).await;
    pair.replica.resume();
    assert_eq!(reason, LostReason::Expired);
    assert!(matches!(guard.unlock().await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn a_hold_lives_as_long_as_replicas_have_its_renewals() {
    let pair = Pair::start().await;
    let client = pair
        .builder()
        .watchdog_lease(SHORT)
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    tokio::time::sleep(SHORT * 2).await;
    guard.check().unwrap();
    assert!(pair.replica.pttl("x").await > 0);
    guard.unlock().await.unwrap();
}

/// Shorter than the lease.
#[tokio::test]
async fn a_replica_that_stalls_for_a_moment_costs_no_hold() {
    let pair = Pair::start().await;
    let client = pair
        .builder()
        .watchdog_lease(ms(6000))
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    pair.replica.freeze();
    tokio::time::sleep(ms(3000)).await;
    pair.replica.resume();
    tokio::time::sleep(ms(5000)).await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}
