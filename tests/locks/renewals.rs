//! A renewal that is due when the machine wakes up, and a loss that is reported in time.

use std::time::Duration;

use futures_util::FutureExt;
use watchlock::{Client, Clock, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, ms, soon};

async fn scripts(server: &RedisServer) -> u64 {
    server.calls_of("evalsha").await + server.calls_of("eval").await
}

#[tokio::test]
async fn a_suspend_shorter_than_the_lease_is_followed_by_a_renewal_at_once() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock);
    let client = client.connect().await.unwrap();
    let guard = client.get_lock("nap").lock().await.unwrap();
    let before = scripts(&server).await;
    ahead.advance(Duration::from_secs(15));
    // Due after 10 s of 30 s: long before any timer of the system's clock.
    eventually("a renewal", Duration::from_secs(5), async || {
        scripts(&server).await > before
    })
    .await;
    assert!(guard.is_valid());
    eventually("valid for longer", LONG, async || {
        guard.valid_for() > Duration::from_secs(20)
    })
    .await;
    guard.unlock().await.unwrap();
}

/// Its holder is notified before it is over: the clock stands still with two milliseconds left.
#[tokio::test]
async fn i8_a_loss_is_reported_two_milliseconds_before_the_validity_ends() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock);
    let client = client.connect().await.unwrap();
    ahead.stop();
    let lock = client.get_lock("early");
    let guard = lock.lock_with_lease(Duration::from_secs(10)).await.unwrap();
    let end = guard.valid_for();
    ahead.advance(end.saturating_sub(ms(3)));
    assert_eq!(guard.valid_for(), ms(3));
    assert!(guard.lost().now_or_never().is_none());
    ahead.advance(ms(1));
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    drop(guard);
    client.shutdown(Duration::ZERO).await;
}
