//! A renewal that is due when the machine wakes up.

use std::time::Duration;

use watchlock::{Client, Clock};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::LONG;

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
