//! `once_per`: whoever comes first in an interval runs, and nobody else.

use std::time::Duration;

use tokio::sync::oneshot::{self, Receiver};
use tokio::task::JoinHandle;
use watchlock::{Client, Error, LeaseError, LostReason, ReentrantLock};
use watchlock_support::eventually;
use watchlock_test::Redis;

use crate::common::{LONG, ms, soon};

const INTERVAL: Duration = Duration::from_secs(60);

/// A Redis whose clock stands still, and two clients of it.
async fn two() -> (Redis, Client, Client) {
    let redis = Redis::start();
    redis.stop_clock();
    let (one, two) = (redis.client().await.unwrap(), redis.client().await.unwrap());
    (redis, one, two)
}

async fn once(client: &Client) -> Option<&'static str> {
    let lock = client.get_lock("tick");
    let ran = lock.once_per(INTERVAL, async |_| "ran").await;
    ran.expect("no error")
}

/// A body that never ends, and when it begins.
fn stuck(lock: ReentrantLock) -> (JoinHandle<Result<Option<()>, Error>>, Receiver<()>) {
    let (begins, begun) = oneshot::channel();
    let body = async |_: &_| {
        begins.send(()).unwrap();
        std::future::pending::<()>().await;
    };
    let running = async move { lock.once_per(INTERVAL, body).await };
    (tokio::spawn(running), begun)
}

#[tokio::test]
async fn of_all_clients_one_runs_in_an_interval() {
    let (redis, one, two) = two().await;
    for client in [&one, &two, &one] {
        assert_eq!(once(client).await, Some("ran"));
        for late in [&one, &two] {
            assert_eq!(once(late).await, None);
        }
        redis.advance(ms(59_999));
        assert_eq!(once(&two).await, None, "the interval is not over");
        redis.advance(ms(2));
    }
    assert!(one.shutdown(LONG).await.is_clean(), "nobody holds it");
}

#[tokio::test]
async fn a_body_that_is_dropped_or_panics_gives_the_interval_back() {
    let (_redis, one, two) = two().await;
    let lock = one.get_lock("tick");
    let (stuck, begun) = stuck(lock);
    soon(begun).await.unwrap();
    assert_eq!(once(&two).await, None);
    stuck.abort();
    eventually("it is released", LONG, async || once(&two).await.is_some()).await;

    let (_redis, one, two) = self::two().await;
    let lock = one.get_lock("tick");
    let panics = tokio::spawn(async move {
        let body = async |_: &_| panic!("on purpose");
        lock.once_per(INTERVAL, body).await.map(|_: Option<()>| ())
    });
    assert!(panics.await.unwrap_err().is_panic());
    eventually("it is released", LONG, async || once(&two).await.is_some()).await;
}

#[tokio::test]
async fn the_end_of_the_interval_cancels_the_body() {
    let (redis, one, two) = two().await;
    let lock = one.get_lock("tick");
    let (stuck, begun) = stuck(lock);
    soon(begun).await.unwrap();
    redis.advance(INTERVAL + ms(1));
    let lost = soon(stuck).await.unwrap().unwrap_err();
    let expired = matches!(
        lost,
        Error::Lost {
            reason: LostReason::Expired,
            ..
        }
    );
    assert!(expired, "{lost:?}");
    assert_eq!(once(&two).await, Some("ran"));
}

#[tokio::test]
async fn a_hold_that_has_other_levels_is_not_left_to_its_lease() {
    let (redis, one, two) = two().await;
    let owner = one.new_owner();
    let lock = owner.get_lock("tick");
    let other_levels = |refused: Error| {
        let Error::InvalidLease { problem, .. } = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(problem, LeaseError::OtherLevels);
    };

    let outer = lock.lock().await.unwrap();
    let unused = lock.once_per(INTERVAL, async |_| panic!("it must not run"));
    other_levels(unused.await.map(|_: Option<()>| ()).unwrap_err());
    outer.unlock().await.unwrap();

    let nested = lock.once_per(INTERVAL, async |guard| guard.reenter(INTERVAL).await);
    other_levels(nested.await.map(|_| ()).unwrap_err());
    eventually("both are released", LONG, async || redis.is_clean()).await;
    assert_eq!(once(&two).await, Some("ran"));
    let refused = two.get_lock("tick").once_per(ms(9), async |_| ()).await;
    assert!(matches!(refused, Err(Error::InvalidLease { .. })));
}
