//! Renewals, on time and no more than needed, and losses, which are final.

use std::time::{Duration, Instant};

use watchlock::{Client, Clock, Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, connect, connect_short, count, gone, soon};

async fn scripts(server: &RedisServer) -> u64 {
    server.calls_of("evalsha").await + server.calls_of("eval").await
}

#[tokio::test]
async fn a_hold_is_renewed_every_third_of_its_lease() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("period").lock().await.unwrap();
    let (started, before) = (Instant::now(), scripts(&server).await);
    eventually("six renewals", LONG, async || {
        scripts(&server).await >= before + 6
    })
    .await;
    // The look may come a tenth of a period early, or the renewal by it.
    let earliest = SHORT / 3 * 6 * 7 / 10;
    assert!(started.elapsed() > earliest, "{:?}", started.elapsed());
    assert!(guard.is_valid() && count(&server, "period").await == 1);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn t3_a_renewal_writes_the_watchdogs_lease() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("lease").lock().await.unwrap();
    let before = scripts(&server).await;
    eventually("a renewal", LONG, async || scripts(&server).await > before).await;
    let ttl = server.pttl("lease").await;
    let lease = i64::try_from(SHORT.as_millis()).unwrap();
    assert!(ttl <= lease && ttl > 0, "{ttl}");
    assert!(guard.valid_for() <= SHORT);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn i7_nothing_is_renewed_after_the_last_release() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    for how in 0..3 {
        let guard = client.get_lock("over").lock().await.unwrap();
        match how {
            0 => guard.unlock().await.unwrap(),
            1 => drop(guard),
            _ => assert!(client.get_lock("over").force_unlock().await.unwrap()),
        }
        gone(&server, "over").await;
    }
    let quiet = Duration::from_millis(50);
    tokio::time::sleep(quiet).await;
    server.reset_calls().await;
    tokio::time::sleep(SHORT).await;
    assert_eq!(scripts(&server).await, 0);
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

fn is_lost<T>(result: &Result<T, Error>, expected: LostReason) -> bool {
    matches!(result, Err(Error::Lost { reason, .. }) if *reason == expected)
}

#[tokio::test]
async fn a_release_of_a_deleted_lock_says_lost() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("unlock").lock().await.unwrap();
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    server.cmd(&["DEL", "unlock"]).await;
    assert!(is_lost(&inner.unlock().await, LostReason::Missing));
    assert!(is_lost(&guard.unlock().await, LostReason::Missing));
    let guard = client.get_lock("unlock").lock().await.unwrap();
    server.cmd(&["DEL", "unlock"]).await;
    assert!(is_lost(&guard.unlock().await, LostReason::Missing));
    assert!(!server.exists("unlock").await);
}

#[tokio::test]
async fn i8_a_loss_is_final_whatever_the_server_says_later() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).watchdog_lease(SHORT);
    let client = builder.connect().await.unwrap();
    let guard = client.get_lock("final").lock().await.unwrap();
    // Kept alive by hand, so that the late renewals find it.
    proxy.hold(Direction::Both);
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    server.cmd(&["PERSIST", "final"]).await;
    proxy.heal();
    assert!(!guard.is_valid());
    assert!(is_lost(&guard.check(), LostReason::Expired));
    assert!(is_lost(&guard.unlock().await, LostReason::Expired));
    // The release behind the loss still ends what is ours.
    assert!(soon(client.get_lock("final").lock()).await.is_ok());
}
