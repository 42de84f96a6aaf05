//! F12, F20 and F21: keys that are something else, names and times of every sort.

use std::time::Duration;

use watchlock::{Client, Error, Lease, LostReason, Ttl};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{BEFORE_THE_LEASE, HALF_A_MINUTE};
use crate::common::{SHORT, clean, connect, connect_short, is_free, ms, soon};

#[tokio::test]
async fn f12_a_key_that_is_no_lock_is_told_and_left_alone() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    for make in [
        vec!["SET", "odd", "value"],
        vec!["LPUSH", "odd", "value"],
        vec!["SADD", "odd", "value"],
        vec!["HSET", "odd", "mode", "read"],
        vec!["HSET", "odd", "mode", "read", "a:1", "1"],
        vec!["HSET", "odd", "a:1", "1", "b:1", "1"],
        vec!["HSET", "odd", "name", "value"],
    ] {
        server.cmd(&make).await;
        let before: Vec<u8> = server.query(&["DUMP", "odd"]).await;
        let lock = client.get_lock("odd");
        let told = lock.try_lock(Duration::ZERO, SHORT).await.unwrap_err();
        assert!(matches!(told, Error::WrongType), "{make:?}: {told}");
        let told = soon(lock.lock()).await.unwrap_err();
        assert!(matches!(told, Error::WrongType), "{make:?}: {told}");
        let told = lock.force_unlock().await.unwrap_err();
        assert!(matches!(told, Error::WrongType), "{make:?}: {told}");
        let after: Vec<u8> = server.query(&["DUMP", "odd"]).await;
        assert_eq!(before, after, "{make:?}");
        server.cmd(&["DEL", "odd"]).await;
        assert!(is_free(&client, "odd").await, "{make:?}");
    }
}

#[tokio::test]
async fn f12_i5_a_foreign_hold_without_a_lease_is_waited_for_by_polls() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    server.cmd(&["HSET", "stuck", "stranger:1", "1"]).await;
    let lock = client.get_lock("stuck");
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::NoExpiry);
    assert!(lock.try_lock(ms(50), SHORT).await.unwrap().is_none());
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    crate::common::subscribed(&server, "stuck").await;
    server.cmd(&["DEL", "stuck"]).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// A lease that somebody took away is given back by the renewal, and the waiters' patience with it.
#[tokio::test]
async fn f12_i4_a_hold_that_lost_its_lease_gets_it_again() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("persisted").lock().await.unwrap();
    server.cmd(&["PERSIST", "persisted"]).await;
    eventually("it has a lease again", BEFORE_THE_LEASE, async || {
        server.pttl("persisted").await > 0
    })
    .await;
    guard.unlock().await.unwrap();
    clean(&server).await;
}

/// One bad key in a call that renews many.
#[tokio::test]
async fn f12_one_bad_key_does_not_cost_the_others_their_renewal() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let mut guards = Vec::new();
    for i in 0..20 {
        guards.push(client.get_lock(&format!("hold-{i}")).lock().await.unwrap());
    }
    // The first in the call, whichever order it has, and some in between.
    for bad in [0, 7, 19] {
        let key = format!("hold-{bad}");
        server.cmd(&["DEL", &key]).await;
        server.cmd(&["SET", &key, "no lock"]).await;
    }
    for bad in [0, 7, 19] {
        assert_eq!(soon(guards[bad].lost()).await, LostReason::Missing);
    }
    let before = server.calls_of("pexpire").await;
    eventually("the others are renewed", BEFORE_THE_LEASE, async || {
        server.calls_of("pexpire").await >= before + 17 * 6
    })
    .await;
    for (i, guard) in guards.into_iter().enumerate() {
        let bad = matches!(i, 0 | 7 | 19);
        assert_eq!(guard.unlock().await.is_err(), bad, "hold-{i}");
    }
}

#[tokio::test]
async fn f20_every_name_up_to_the_bound_works_and_no_other_leaves_a_trace() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let long = "n".repeat(512);
    for name in [
        "\0",
        "a\r\nb",
        "{",
        "}",
        "{}",
        "{}x",
        "a{b}c",
        "a{",
        " ",
        "ä€𝄞",
        &long,
    ] {
        let guard = client.get_lock(name).lock().await.unwrap();
        assert_eq!(server.keys().await, [name]);
        guard.unlock().await.unwrap();
    }
    server.reset_calls().await;
    for name in ["", &"n".repeat(513), &"n".repeat(1 << 20)] {
        let lock = client.get_lock(name);
        let bad = lock.lock().await.unwrap_err();
        assert!(matches!(bad, Error::InvalidName { bytes } if bytes == name.len()));
        assert!(matches!(
            lock.is_locked().await,
            Err(Error::InvalidName { .. })
        ));
        assert!(matches!(
            lock.unlock().await,
            Err(Error::InvalidName { .. })
        ));
    }
    assert_eq!(server.calls_of("evalsha").await, 0);
    clean(&server).await;
}

#[tokio::test]
async fn f21_leases_out_of_bounds_are_refused_before_anything_is_sent() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("lease");
    let day = Duration::from_secs(24 * 3600);
    let one = Duration::from_nanos(1);
    for lease in [
        Duration::ZERO,
        one,
        Duration::from_nanos(9_999_999),
        day + one,
        ms(u64::MAX),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ] {
        let bad = lock.lock_for(lease).await.unwrap_err();
        assert!(matches!(bad, Error::InvalidLease), "{lease:?}");
        let bad = lock.try_lock(Duration::ZERO, lease).await.unwrap_err();
        assert!(matches!(bad, Error::InvalidLease), "{lease:?}");
    }
    assert_eq!(server.calls_of("evalsha").await, 0);
    let guard = lock.lock_for(day).await.unwrap();
    assert!(server.pttl("lease").await > 86_000_000);
    guard.unlock().await.unwrap();
    let shortest = lock.lock_for(ms(10)).await;
    assert!(shortest.is_ok() || shortest.unwrap_err().is_transient());
    clean(&server).await;
}

#[tokio::test]
async fn f21_waits_of_every_length_neither_hang_nor_overflow() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("wait");
    let guard = lock.lock_for(HALF_A_MINUTE).await.unwrap();
    for wait in [Duration::ZERO, Duration::from_nanos(1), ms(1)] {
        let busy = soon(lock.try_lock(wait, Lease::Watchdog)).await;
        assert!(busy.unwrap().is_none(), "{wait:?}");
    }
    let mut waiters = Vec::new();
    for wait in [Duration::from_secs(u64::MAX), Duration::MAX] {
        let lock = lock.clone();
        waiters.push(tokio::spawn(async move {
            lock.try_lock(wait, Lease::Watchdog).await
        }));
    }
    guard.unlock().await.unwrap();
    for waiter in waiters {
        let got = soon(waiter).await.unwrap().unwrap();
        got.expect("in the end").unlock().await.unwrap();
    }
    let never: Result<Client, _> = Client::builder(&server.url())
        .watchdog_lease(Duration::MAX)
        .connect()
        .await;
    assert!(never.is_err());
    clean(&server).await;
}
