//! What a client does when its clock is pushed ahead: at once what is due. A timer of the client would notice up to a second
//! later; here everything happens so many times that this would take longer than the limit.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use watchlock::{Client, Error, Lease, LostReason};
use watchlock_test::Redis;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: Duration = Duration::from_secs(20);

/// A Redis whose clock stands still, and two clients.
async fn scene() -> Result<(Redis, Client, Client), Error> {
    let redis = Redis::start();
    redis.stop_clock();
    let (client, other) = (redis.client().await?, redis.client().await?);
    Ok((redis, client, other))
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        sleep(MS).await;
    }
}

#[tokio::test]
async fn a_wait_whose_time_is_over_returns() -> Result<(), Error> {
    let (redis, client, other) = scene().await?;
    let waits = async {
        for round in 0..100 {
            let name = format!("import {round}");
            let _guard = other.get_lock(&name).lock_with_lease(2 * HOUR).await?;
            let lock = client.get_lock(&name);
            let waiting = tokio::spawn(async move { lock.try_lock(HOUR, Lease::Watchdog).await });
            until(|| redis.command_count("subscribe") > round).await;

            redis.advance(HOUR);

            assert!(waiting.await.unwrap()?.is_none());
        }
        Ok(())
    };
    timeout(LIMIT, waits).await.expect("each at once")
}

#[tokio::test]
async fn a_waiter_gets_the_lock_of_one_that_died_when_its_lease_is_over() -> Result<(), Error> {
    let (redis, client, _) = scene().await?;
    let waits = async {
        for round in 0..100 {
            let name = format!("import {round}");
            redis.held_by_stranger(&name).dies();
            let lock = client.get_lock(&name);
            let waiting = tokio::spawn(async move { lock.lock().await });
            until(|| redis.command_count("subscribe") > round).await;

            redis.advance(Duration::from_secs(31));

            waiting.await.unwrap()?.unlock().await?;
        }
        Ok(())
    };
    timeout(LIMIT, waits).await.expect("each at once")
}

#[tokio::test]
async fn a_lock_gives_up_on_a_redis_that_is_down_when_its_time_is_over() -> Result<(), Error> {
    let (redis, client, _) = scene().await?;
    let lock = client.get_lock("import");
    redis.stop();
    let waiting = tokio::spawn(async move { lock.lock().await });
    let given_up = async {
        while !waiting.is_finished() {
            // After a second at once the client takes it for a pause of its own process, and forgives the server.
            redis.advance(Duration::from_millis(500));
            sleep(MS).await;
        }
        waiting.await.unwrap()
    };
    let error = timeout(LIMIT, given_up).await.expect("it gives up");
    assert!(error.unwrap_err().is_transient());
    Ok(())
}

#[tokio::test]
async fn a_lost_hold_is_reported() -> Result<(), Error> {
    let (redis, client, _) = scene().await?;
    let lock = client.get_lock("import");
    let losses = async {
        for _ in 0..200 {
            let guard = lock.lock_with_lease(HOUR).await?;
            redis.advance(HOUR + MS);
            assert_eq!(guard.lost().await, LostReason::Expired);
        }
        Ok(())
    };
    timeout(LIMIT, losses).await.expect("each at once")
}

#[tokio::test]
async fn a_renewal_that_is_due_is_sent() -> Result<(), Error> {
    let (redis, client, _) = scene().await?;
    let guard = client.get_lock("import").lock().await?;
    let renewals = async {
        for _ in 0..200 {
            redis.advance(Duration::from_secs(20));
            until(|| guard.valid_for() > Duration::from_secs(20)).await;
        }
    };
    timeout(LIMIT, renewals).await.expect("each at once");
    guard.unlock().await
}

#[tokio::test]
async fn the_longest_span_passes() -> Result<(), Error> {
    let (redis, client, _) = scene().await?;
    let guard = client.get_lock("import").lock_with_lease(HOUR).await?;
    redis.advance(MS);
    redis.advance(Duration::MAX);
    assert!(!guard.is_valid(), "valid for {:?}", guard.valid_for());
    Ok(())
}

#[tokio::test]
async fn a_clock_that_is_stopped_again_stays_where_it_is() -> Result<(), Error> {
    let (redis, client, _) = scene().await?;
    let guard = client.get_lock("import").lock_with_lease(100 * MS).await?;
    sleep(200 * MS).await;
    // As for each server of a quorum: they share a clock.
    redis.start_another().stop_clock();
    assert!(guard.is_valid(), "time passes by `advance` alone");
    Ok(())
}
