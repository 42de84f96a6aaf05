//! What a client does when its clock is pushed ahead: at once what is due. Without that each test here would take as long
//! as the timers that it skips, half a minute and more; so each has a limit.

use std::time::Duration;

use tokio::time::timeout;
use watchlock::{Error, LostReason};
use watchlock_test::Redis;

const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: Duration = Duration::from_secs(20);

/// Runs beside what waits, until it waits.
async fn until_somebody_listens(redis: &Redis) {
    while redis.command_count("SUBSCRIBE") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_wait_whose_time_is_over_returns() -> Result<(), Error> {
    let redis = Redis::start();
    let client = redis.client().await?;
    let _other = redis.held_by_stranger("import");
    let lock = client.get_lock("import");
    let waiting = tokio::spawn(async move { lock.try_lock(HOUR / 360, HOUR).await });
    until_somebody_listens(&redis).await;

    redis.advance(HOUR / 360);

    let busy = timeout(LIMIT / 4, waiting)
        .await
        .expect("it returns")
        .unwrap()?;
    assert!(busy.is_none());
    Ok(())
}

#[tokio::test]
async fn a_waiter_gets_the_lock_of_one_that_died_when_its_lease_is_over() -> Result<(), Error> {
    let redis = Redis::start();
    redis.stop_clock();
    let client = redis.client().await?;
    redis.held_by_stranger("import").dies();
    let lock = client.get_lock("import");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until_somebody_listens(&redis).await;

    redis.advance(Duration::from_secs(31));

    let guard = timeout(LIMIT, waiting).await.expect("it has it").unwrap()?;
    assert!(guard.is_valid());
    Ok(())
}

#[tokio::test]
async fn a_lock_gives_up_on_a_redis_that_is_down_when_its_time_is_over() -> Result<(), Error> {
    let redis = Redis::start();
    redis.stop_clock();
    let client = redis.client().await?;
    let lock = client.get_lock("import");
    redis.stop();
    let waiting = tokio::spawn(async move { lock.lock().await });
    let given_up = async {
        while !waiting.is_finished() {
            // After a second at once the client takes it for a pause of its own process, and forgives the server.
            redis.advance(Duration::from_millis(500));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        waiting.await.unwrap()
    };
    let error = timeout(LIMIT, given_up).await.expect("it gives up");
    assert!(error.unwrap_err().is_transient());
    Ok(())
}

#[tokio::test]
async fn a_lost_hold_is_reported() -> Result<(), Error> {
    let redis = Redis::start();
    redis.stop_clock();
    let client = redis.client().await?;
    let guard = client.get_lock("import").lock_with_lease(HOUR).await?;

    redis.advance(HOUR);

    let reason = timeout(LIMIT, guard.lost()).await.expect("it is reported");
    assert_eq!(reason, LostReason::Expired);
    Ok(())
}

#[tokio::test]
async fn a_renewal_that_is_due_is_sent() -> Result<(), Error> {
    let redis = Redis::start();
    redis.stop_clock();
    let client = redis.client().await?;
    let guard = client.get_lock("import").lock().await?;

    // An hour of a lease of 30 s.
    for _ in 0..180 {
        redis.advance(Duration::from_secs(20));
        let renewed = async {
            while guard.valid_for() < Duration::from_secs(20) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, renewed).await.expect("it is renewed");
    }
    guard.unlock().await
}
