//! A fenced lock does everything that a plain lock does, with a token.

use std::time::Duration;

use watchlock::{Error, FencedGuard, Lease, Lock, LockGuard, LostReason, Ttl};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{stored, token_key};
use crate::common::{LONG, connect, connect_short, count, gone, ms, soon};

#[tokio::test]
async fn every_way_to_acquire_gives_a_token() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_fenced_lock("a");
    let mut tokens = Vec::new();
    let guard = lock.lock().await.unwrap();
    tokens.push(guard.token());
    guard.unlock().await.unwrap();
    let guard = lock.lock_with_lease(LONG).await.unwrap();
    tokens.push(guard.token());
    guard.unlock().await.unwrap();
    let guard = lock.try_lock(Duration::ZERO, LONG).await.unwrap();
    let guard: FencedGuard = guard.expect("free");
    tokens.push(guard.token());
    drop(guard);
    gone(&server, "a").await;
    tokens.push(lock.run(async |guard| guard.token()).await.unwrap());
    let ran = lock.try_run(ms(100), LONG, async |guard| guard.token());
    tokens.push(ran.await.unwrap().expect("free"));
    let dynamic: &dyn Lock = &lock;
    for way in 0..3 {
        let guard: LockGuard = match way {
            0 => dynamic.lock().await.unwrap(),
            1 => dynamic.lock_with_lease(LONG).await.unwrap(),
            _ => dynamic
                .try_lock(ms(100), LONG.into())
                .await
                .unwrap()
                .expect("free"),
        };
        tokens.push(guard.fencing_token().expect("a token"));
        guard.unlock().await.unwrap();
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// Redisson's `lockAndGetToken(lease)` forgets the lease: the watchdog then keeps the lock.
#[tokio::test]
async fn t2_a_fixed_lease_is_kept_and_nothing_prolongs_it() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let lock = client.get_fenced_lock("a");
    let lease = ms(2_500);
    let guard = lock.lock_with_lease(lease).await.unwrap();
    assert!(matches!(lock.remain_time_to_live().await.unwrap(), Ttl::Left(left) if left <= lease));
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    gone(&server, "a").await;
    assert!(guard.unlock().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn t3_the_watchdog_keeps_it_beside_a_plain_lock() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let fenced = client.get_fenced_lock("a").lock().await.unwrap();
    let plain = client.get_lock("b").lock().await.unwrap();
    let token = fenced.token();
    let before = server.calls_of("pexpire").await;
    eventually(
        "each is renewed four times, for longer than its lease",
        LONG,
        async || server.calls_of("pexpire").await >= before + 8,
    )
    .await;
    fenced.check().unwrap();
    plain.check().unwrap();
    assert_eq!(fenced.token(), token);
    assert_eq!(stored(&server, "a").await, Some(token.to_string()));
    fenced.unlock().await.unwrap();
    plain.unlock().await.unwrap();
}

#[tokio::test]
async fn a_level_is_verified_extended_detached_and_left_to_expire() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_fenced_lock("a");
    let guard = lock.lock_with_lease(ms(5_000)).await.unwrap();
    let token = guard.token();
    guard.verify().await.unwrap();
    guard.extend(LONG).await.unwrap();
    assert!(guard.valid_for() > ms(10_000));
    assert_eq!((guard.hold_count(), lock.hold_count()), (1, 1));
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(inner.token(), token);
    inner.detach().unwrap();
    assert_eq!(count(&server, "a").await, 2);
    // A handle of the other kind gives it back: it is the same lock.
    owner.get_lock("a").unlock().await.unwrap();
    assert_eq!(count(&server, "a").await, 1);

    let refused = guard.let_expire();
    refused.unwrap();
    assert!(server.exists("a").await);
    assert!(!lock.is_held() && lock.is_locked().await.unwrap());
    assert_eq!(stored(&server, "a").await, Some(token.to_string()));
}

#[tokio::test]
async fn a_refused_detach_gives_the_guard_back_with_its_token() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_fenced_lock("a").lock().await.unwrap();
    let token = guard.token();
    let refused = guard.detach().unwrap_err();
    assert!(matches!(refused.error(), Error::NotOwner { .. }));
    let guard = refused.into_guard();
    assert_eq!(guard.fencing_token(), Some(token));
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_forced_release_loses_the_hold_and_leaves_the_token() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_fenced_lock("a");
    let guard = lock.lock().await.unwrap();
    // Through a plain handle as well: it is the same lock.
    assert!(client.get_lock("a").force_unlock().await.unwrap());
    assert_eq!(soon(guard.lost()).await, LostReason::Forced);
    assert_eq!(stored(&server, "a").await, Some(guard.token().to_string()));
    let next = lock.lock().await.unwrap();
    assert!(next.token() > guard.token());
    assert!(guard.unlock().await.unwrap_err().is_lost());
    assert!(lock.force_unlock().await.unwrap());
    assert!(!lock.is_locked().await.unwrap());
    drop(next);
}

#[tokio::test]
async fn handles_of_a_scope_enter_each_others_holds() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let (plain, fenced) = (client.get_lock("a"), client.get_fenced_lock("a"));
    client
        .scope(async {
            let outer = plain.lock().await.unwrap();
            let inner = fenced.lock().await.unwrap();
            assert_eq!(outer.fencing_token(), Some(inner.token()));
            assert_eq!((plain.hold_count(), fenced.hold_count()), (2, 2));
            outer.unlock().await.unwrap();
            // Now the hold has only the fenced level, under the id that it began with.
            inner.verify().await.unwrap();
            inner.unlock().await.unwrap();
        })
        .await;
    assert_eq!(count(&server, "a").await, 0);
}

/// One user of Redisson counted 25 million keys of tokens (#6510).
#[tokio::test]
async fn token_keys_end_by_themselves_where_that_was_asked_for() {
    let server = RedisServer::start();
    let builder = watchlock::Client::builder(&server.url());
    let client = builder
        .fencing_token_ttl(ms(1_000))
        .connect()
        .await
        .unwrap();
    let lock = client.get_fenced_lock("a");
    let first = lock.lock().await.unwrap();
    let token = first.token();
    let ttl = server.pttl(&token_key("a")).await;
    assert!((1..=1_000).contains(&ttl), "{ttl}");
    gone(&server, &token_key("a")).await;
    first.check().unwrap();
    first.unlock().await.unwrap();
    assert_eq!(server.keys().await, [] as [String; 0]);
    let next = lock.lock().await.unwrap();
    assert!(next.token() > token, "it grows all the same");
    next.unlock().await.unwrap();

    // A client without the setting makes it permanent.
    let other = connect(&server).await;
    let guard = other.get_fenced_lock("a").lock().await.unwrap();
    assert_eq!(server.pttl(&token_key("a")).await, -1);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn the_prefix_is_part_of_the_tokens_key() {
    let server = RedisServer::start();
    let builder = watchlock::Client::builder(&server.url()).key_prefix("app:");
    let client = builder.connect().await.unwrap();
    for (name, key) in [
        ("a", "redisson_lock_token:{app:a}"),
        ("{b}c", "redisson_lock_token:app:{b}c"),
    ] {
        let guard = client.get_fenced_lock(name).lock().await.unwrap();
        assert!(server.exists(key).await, "{:?}", server.keys().await);
        assert_eq!(guard.name(), name);
        guard.unlock().await.unwrap();
    }
}
