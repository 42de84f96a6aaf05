//! Losses: told once, in time, with the reason, and for good.

use std::time::{Duration, Instant};

use watchlock::{Client, Clock, Error, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, connect, connect_short, count, is_free, ms, soon};

fn is_lost<T>(result: &Result<T, Error>, expected: LostReason) -> bool {
    matches!(result, Err(Error::Lost { reason }) if *reason == expected)
}

#[tokio::test]
async fn i8_a_deleted_lock_is_lost_at_the_next_renewal() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("deleted").lock().await.unwrap();
    let view = guard.hold();
    let other = client.get_lock("other").lock().await.unwrap();
    server.cmd(&["DEL", "deleted"]).await;
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(!guard.is_valid() && !view.is_valid());
    assert!(is_lost(&guard.check(), LostReason::Missing));
    assert!(is_lost(&view.check(), LostReason::Missing));
    assert_eq!(soon(view.lost()).await, LostReason::Missing);
    assert!(is_lost(&guard.unlock().await, LostReason::Missing));
    assert!(other.is_valid());
    other.unlock().await.unwrap();
    assert!(is_free(&client, "deleted").await);
}

#[tokio::test]
async fn i8_a_stolen_lock_is_lost_and_the_thief_keeps_it() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("stolen").lock().await.unwrap();
    server.cmd(&["DEL", "stolen"]).await;
    server.cmd(&["HSET", "stolen", "thief:1", "1"]).await;
    server.cmd(&["PEXPIRE", "stolen", "600000"]).await;
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(guard.unlock().await.unwrap_err().is_lost());
    assert!(!is_free(&client, "stolen").await);
    let hash = server.hash("stolen").await;
    assert_eq!(hash.into_keys().collect::<Vec<_>>(), ["thief:1"]);
    assert!(server.pttl("stolen").await > 500_000);
}

#[tokio::test]
async fn a_release_of_a_deleted_lock_says_lost() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("unlock").lock().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    server.cmd(&["DEL", "unlock"]).await;
    assert!(is_lost(&inner.unlock().await, LostReason::Missing));
    assert!(is_lost(&guard.unlock().await, LostReason::Missing));
    let guard = client.get_lock("unlock").lock().await.unwrap();
    server.cmd(&["DEL", "unlock"]).await;
    assert!(is_lost(&guard.unlock().await, LostReason::Missing));
    assert!(!server.exists("unlock").await);
}

#[tokio::test]
async fn i8_a_fixed_hold_learns_of_its_loss_when_its_validity_ends() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let started = Instant::now();
    let guard = client.get_lock("fixed").lock_for(ms(500)).await.unwrap();
    server.cmd(&["DEL", "fixed"]).await;
    assert!(guard.is_valid());
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(started.elapsed() >= ms(480), "{:?}", started.elapsed());
}

#[tokio::test]
async fn i8_with_redis_gone_a_hold_is_lost_when_its_validity_ends() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("gone").lock().await.unwrap();
    server.kill();
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(!guard.is_valid());
    assert!(is_lost(&guard.unlock().await, LostReason::Expired));
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

#[tokio::test]
async fn i8_after_a_suspend_beyond_the_lease_nothing_is_valid() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock);
    let client = client.connect().await.unwrap();
    let watched = client.get_lock("watched").lock().await.unwrap();
    let fixed = client.get_lock("fixed").lock_for(LONG * 2).await.unwrap();
    let longer = client.get_lock("longer").lock_for(LONG * 900).await;
    let longer = longer.unwrap();
    ahead.advance(Duration::from_secs(3_600));
    // At once, by the clock, before anybody looked.
    assert!(!watched.is_valid() && !fixed.is_valid());
    assert!(is_lost(&watched.check(), LostReason::Expired));
    assert!(longer.is_valid() && longer.valid_for() < LONG * 800);
    assert_eq!(soon(watched.lost()).await, LostReason::Expired);
    assert_eq!(soon(fixed.lost()).await, LostReason::Expired);
    assert!(watched.unlock().await.unwrap_err().is_lost());
    assert!(fixed.unlock().await.unwrap_err().is_lost());
    longer.unlock().await.unwrap();
}

#[tokio::test]
async fn i8_a_frozen_server_costs_the_hold_before_anybody_else_gets_in() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("frozen").lock().await.unwrap();
    server.freeze();
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    server.resume();
    let other = connect(&server).await;
    let taken = soon(other.get_lock("frozen").lock()).await.unwrap();
    assert!(!guard.is_valid() && taken.is_valid());
    assert!(is_lost(&guard.unlock().await, LostReason::Expired));
    assert_eq!(count(&server, "frozen").await, 1);
    taken.unlock().await.unwrap();
}

#[tokio::test]
async fn a_restart_without_data_is_noticed_on_reconnection() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("restart").lock().await.unwrap();
    let fixed = client.get_lock("too").lock_for(LONG * 10).await.unwrap();
    // Not by a renewal: the next one is 10 s away, and a fixed hold has none.
    let started = Instant::now();
    server.restart();
    eventually("it is noticed by a question", LONG, async || {
        client.get_lock("any").is_locked().await.is_ok()
    })
    .await;
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert_eq!(soon(fixed.lost()).await, LostReason::Missing);
    assert!(started.elapsed() < Duration::from_secs(9));
    assert!(is_free(&client, "restart").await);
    assert!(guard.unlock().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn a_restart_with_data_costs_nothing() {
    let server = RedisServer::options().aof().start();
    let client = connect_short(&server).await;
    let builder = Client::builder(&server.url()).watchdog_lease(LONG);
    let patient = builder.connect().await.unwrap();
    let kept = patient.get_lock("kept").lock().await.unwrap();
    let short = client.get_lock("short").lock().await.unwrap();
    server.restart();
    assert!(kept.is_valid());
    eventually("it works again", LONG, async || {
        client.get_lock("kept").is_locked().await.is_ok()
    })
    .await;
    let lost = tokio::time::timeout(SHORT, kept.lost()).await;
    assert!(lost.is_err() && kept.is_valid());
    kept.unlock().await.unwrap();
    // Whether a short lease survives is a matter of how fast the server came back.
    let _ = short.unlock().await;
    eventually("nothing is left", LONG, async || {
        server.keys().await.is_empty()
    })
    .await;
}
