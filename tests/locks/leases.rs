//! What a lease promises, and who keeps it.

use std::time::Duration;

use watchlock::{Client, Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, connect, connect_short, gone, ms, soon, try_once};

const RENEW: &str = include_str!("../../lua/lock/renew.lua");

#[tokio::test]
async fn a_fixed_hold_is_never_renewed_and_ends_with_its_lease() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("fixed").lock_for(SHORT).await.unwrap();
    server.reset_calls().await;
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(!guard.is_valid());
    let calls = server.calls_of("evalsha").await;
    assert!(calls <= 1, "at most the release behind it: {calls}");
    assert!(guard.unlock().await.unwrap_err().is_lost());
    let guard = soon(client.get_lock("fixed").lock()).await.unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn the_watchdog_keeps_a_hold_while_a_level_of_its_is_alive_and_only_then() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("mixed");
    let fixed = lock.lock_for(ms(200)).await.unwrap();
    let watched = lock.lock().await.unwrap();
    let lost = tokio::time::timeout(SHORT * 2, watched.lost()).await;
    assert!(lost.is_err() && fixed.is_valid(), "kept for both levels");
    watched.unlock().await.unwrap();
    server.reset_calls().await;
    assert_eq!(soon(fixed.lost()).await, LostReason::Expired);
    let calls = server.calls_of("evalsha").await;
    assert!(calls <= 1, "at most the release behind it: {calls}");
}

#[tokio::test]
async fn a_watchdog_level_that_comes_late_has_a_fixed_hold_kept() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("late");
    let fixed = lock.lock_for(SHORT * 2).await.unwrap();
    let watched = lock.lock().await.unwrap();
    fixed.unlock().await.unwrap();
    let lost = tokio::time::timeout(SHORT * 4, watched.lost()).await;
    assert!(lost.is_err() && watched.is_valid());
    watched.unlock().await.unwrap();
}

#[tokio::test]
async fn a_fixed_level_outlives_the_watchdog_level_around_it() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("inner");
    let watched = lock.lock().await.unwrap();
    let fixed = lock.lock_for(Duration::from_secs(60)).await.unwrap();
    watched.unlock().await.unwrap();
    assert!(fixed.valid_for() > Duration::from_secs(50));
    assert!(server.pttl("inner").await > 50_000);
    fixed.unlock().await.unwrap();
}

#[tokio::test]
async fn t1_a_shorter_lease_inside_cuts_nothing_short() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("short");
    let outer = lock.lock_for(Duration::from_secs(60)).await.unwrap();
    let inner = lock.lock_for(ms(20)).await.unwrap();
    inner.unlock().await.unwrap();
    assert!(outer.valid_for() > Duration::from_secs(50));
    assert!(server.pttl("short").await > 50_000);
    outer.unlock().await.unwrap();
}

#[tokio::test]
async fn t1_a_renewal_overtaken_by_a_longer_reentry_shortens_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url())
        .watchdog_lease(SHORT * 2)
        .connect()
        .await
        .unwrap();
    let owner = client.new_owner();
    let lock = owner.get_lock("overtaken");
    let outer = lock.lock().await.unwrap();
    let renewal = proxy
        .inject(Fault::DelayRequest(ms(400)))
        .on(Match::script(RENEW))
        .arm();
    eventually("a renewal is under way", LONG, async || {
        renewal.fired() == 1
    })
    .await;
    let inner = lock.lock_for(Duration::from_secs(60)).await.unwrap();
    // It arrives after the re-entry, on a connection of its own.
    let arrived = server.calls_of("evalsha").await + server.calls_of("eval").await;
    eventually("the renewal came", LONG, async || {
        server.calls_of("evalsha").await + server.calls_of("eval").await > arrived
    })
    .await;
    assert!(server.pttl("overtaken").await > 50_000);
    assert!(outer.valid_for() > Duration::from_secs(50));
    drop((outer, inner));
    gone(&server, "overtaken").await;
}

#[tokio::test]
async fn extend_raises_a_fixed_promise_and_never_lowers_it() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("more");
    let guard = lock.lock_for(Duration::from_secs(10)).await.unwrap();
    guard.extend(Duration::from_secs(60)).await.unwrap();
    assert!(guard.valid_for() > Duration::from_secs(50));
    assert!(server.pttl("more").await > 50_000);
    guard.extend(Duration::from_secs(1)).await.unwrap();
    assert!(guard.valid_for() > Duration::from_secs(50));
    assert!(server.pttl("more").await > 50_000);
    assert_eq!(guard.hold_count(), 1);
    for bad in [Duration::ZERO, ms(9), Duration::MAX] {
        assert!(matches!(
            guard.extend(bad).await,
            Err(Error::InvalidLease { .. })
        ));
    }
    guard.unlock().await.unwrap();

    let watched = lock.lock().await.unwrap();
    let extended = watched.extend(Duration::from_secs(60)).await;
    assert!(matches!(extended, Err(Error::InvalidLease { .. })));
    watched.unlock().await.unwrap();
}

#[tokio::test]
async fn extending_a_lost_hold_says_so() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("gone").lock_for(LONG).await.unwrap();
    server.cmd(&["DEL", "gone"]).await;
    assert!(guard.extend(LONG).await.unwrap_err().is_lost());
    assert!(!server.exists("gone").await && !guard.is_valid());
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(guard.extend(LONG).await.unwrap_err().is_lost());
}

#[tokio::test]
async fn let_expire_leaves_the_key_to_its_lease_as_a_strangers() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("interval");
    let guard = lock.lock_for(ms(1_000)).await.unwrap();
    let view = guard.hold();
    guard.let_expire().unwrap();
    assert!(!view.is_valid() && matches!(view.check(), Err(Error::NotOwner { .. })));
    assert!(!lock.is_held() && server.exists("interval").await);
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    let busy = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(busy.unwrap().is_none());
    // It is waited for as any other.
    let guard = soon(lock.lock()).await.unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn let_expire_is_refused_where_others_need_the_hold() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let watched = client.get_lock("kept").lock().await.unwrap();
    let (watched, error) = watched.let_expire().unwrap_err().into_parts();
    assert!(matches!(error, Error::InvalidLease { .. }) && watched.is_valid());
    watched.unlock().await.unwrap();

    let fixed = client.get_lock("kept").lock_for(LONG).await.unwrap();
    let other = fixed.reenter(Lease::Watchdog).await.unwrap();
    let (fixed, error) = fixed.let_expire().unwrap_err().into_parts();
    assert!(matches!(error, Error::InvalidLease { .. }) && fixed.is_valid());
    other.unlock().await.unwrap();
    assert!(try_once(&client, "kept").await.unwrap().is_none());
    fixed.let_expire().unwrap();
    assert!(server.exists("kept").await);
}

#[tokio::test]
async fn let_expire_of_a_lost_hold_says_so() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("past").lock_for(ms(30)).await.unwrap();
    soon(guard.lost()).await;
    let (guard, error) = guard.let_expire().unwrap_err().into_parts();
    assert!(error.is_lost());
    assert!(guard.unlock().await.unwrap_err().is_lost());
}
