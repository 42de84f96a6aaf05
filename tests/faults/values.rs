//! F12, F20 and F21: keys that are something else, names and times of every sort. Each is a clear error, at once, with
//! nothing left in Redis, or works as any other.

use std::time::{Duration, Instant};

use watchlock::{Client, Error, Lease, Lock, LostReason, Ttl};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::BEFORE_THE_LEASE;
use crate::common::{LONG, clean, connect, connect_short, is_free, ms, soon, subscribed};

#[tokio::test]
async fn f12_a_key_that_is_no_lock_is_told_by_every_verb_and_left_alone() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let foreign: [&[&str]; 8] = [
        &["SET", "key", "x"],
        &["LPUSH", "key", "x"],
        &["SADD", "key", "x"],
        &["XADD", "key", "*", "a", "b"],
        &["HSET", "key", "mode", "write"],
        &["HSET", "key", "name", "Ada"],
        &["HSET", "key", "mode", "read", "a:1", "1"],
        &["HSET", "key", "a:1", "1", "b:2", "1"],
    ];
    for write in foreign {
        server.cmd(write).await;
        let before = server.query::<Vec<u8>>(&["DUMP", "key"]).await;
        let lock = client.get_lock("key");
        let errors = [
            soon(lock.lock()).await.err(),
            lock.try_lock(LONG, LONG).await.err(),
            lock.try_lock(Duration::ZERO, LONG).await.err(),
            lock.force_unlock().await.err(),
        ];
        for error in errors {
            assert!(
                matches!(error, Some(Error::WrongType { .. })),
                "{write:?}: {error:?}"
            );
        }
        assert!(lock.is_locked().await.unwrap());
        let after = server.query::<Vec<u8>>(&["DUMP", "key"]).await;
        assert_eq!(before, after);
        server.cmd(&["DEL", "key"]).await;
        assert!(is_free(&client, "key").await);
    }
}

#[tokio::test]
async fn f12_i5_a_lock_without_a_lease_is_busy_and_waited_for_by_polls() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    server.cmd(&["HSET", "endless", "somebody:1", "1"]).await;
    let lock = client.get_lock("endless");
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::NoExpiry);
    assert!(lock.is_locked().await.unwrap());
    let started = Instant::now();
    assert!(soon(lock.try_lock(ms(200), LONG)).await.unwrap().is_none());
    assert!(started.elapsed() >= ms(200));
    assert_eq!(server.pttl("endless").await, -1);
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::Free);

    server.cmd(&["HSET", "endless", "somebody:1", "1"]).await;
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    subscribed(&server, "endless").await;
    server.cmd(&["DEL", "endless"]).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    let guard = lock.lock_for(LONG).await.unwrap();
    let left = lock.remain_time_to_live().await.unwrap();
    assert!(matches!(left, Ttl::Left(left) if left <= LONG && left > ms(1_000)));
    guard.unlock().await.unwrap();
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

/// All that a handle can be asked that goes to Redis.
async fn everything(lock: &dyn Lock) -> Vec<Option<Error>> {
    vec![
        lock.lock().await.err(),
        lock.lock_for(LONG).await.err(),
        lock.try_lock(Duration::ZERO, Lease::Watchdog).await.err(),
        lock.try_lock(LONG, Lease::Fixed(LONG)).await.err(),
        lock.is_locked().await.err(),
        lock.remain_time_to_live().await.err(),
        lock.force_unlock().await.err(),
        lock.unlock().await.err(),
    ]
}

#[tokio::test]
async fn f20_a_name_that_is_none_is_refused_by_every_verb_without_a_word_to_redis() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let prefixed = Client::builder(&server.url()).key_prefix("p:");
    let prefixed = prefixed.connect().await.unwrap();
    server.reset_calls().await;
    let (long, mega) = ("x".repeat(513), "x".repeat(1 << 20));
    let names: [(&Client, &str, usize); 5] = [
        (&client, "", 0),
        (&client, &long, 513),
        (&client, &mega, 1 << 20),
        (&prefixed, "", 2),
        (&prefixed, &long[..511], 513),
    ];
    for (client, name, length) in names {
        let owner = client.new_owner();
        let (lock, owned) = (client.get_lock(name), owner.get_lock(name));
        for lock in [&lock as &dyn Lock, &owned] {
            assert_eq!((lock.is_held(), lock.hold_count()), (false, 0));
            for error in everything(lock).await {
                let named =
                    matches!(error, Some(Error::InvalidName { bytes, .. }) if bytes == length);
                assert!(named, "{length} bytes: {error:?}");
            }
        }
    }
    assert_eq!(server.calls_of("evalsha").await, 0);
    assert_eq!(server.calls_of("eval").await, 0);
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn f20_odd_names_are_legal_and_work() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let longest = "x".repeat(512);
    let names = [
        "with\0nul",
        "with\r\nline",
        "{tag}rest",
        "{",
        "}",
        "{}",
        "a{",
        "{}x",
        "a}b",
        "schlüssel-鍵-🔒",
        " ",
        "*",
        "\u{feff}",
        "'\"\\",
        &longest,
    ];
    for name in names {
        let guard = client.get_lock(name).lock().await.unwrap();
        assert_eq!(guard.name(), name);
        assert_eq!(server.keys().await, [name]);
        let lock = other.get_lock(name);
        let waiter = tokio::spawn(async move { lock.lock().await });
        if name.contains('{') {
            let channel = format!("redisson_lock__channel:{name}");
            watchlock_support::eventually("somebody listens", LONG, async || {
                server.subscribers(&channel).await > 0
            })
            .await;
        } else {
            subscribed(&server, name).await;
        }
        guard.unlock().await.unwrap();
        let level = soon(waiter).await.unwrap().unwrap();
        level
            .reenter(Lease::Watchdog)
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        level.unlock().await.unwrap();
        assert!(server.keys().await.is_empty(), "{name:?}");
    }
}

#[tokio::test]
async fn f21_i4_a_lease_out_of_bounds_is_refused_without_a_word_to_redis() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let bounded = Client::builder(&server.url()).lease_bounds(ms(100), ms(200));
    let bounded = bounded.connect().await.unwrap();
    server.reset_calls().await;
    let day = Duration::from_secs(24 * 3600);
    let leases = [
        (&client, Duration::ZERO),
        (&client, Duration::from_nanos(1)),
        (&client, Duration::from_nanos(9_999_999)),
        (&client, day + Duration::from_nanos(1)),
        (&client, ms(u64::MAX)),
        (&client, Duration::from_secs(u64::MAX)),
        (&client, Duration::MAX),
        (&bounded, ms(99)),
        (&bounded, ms(201)),
    ];
    for (client, lease) in leases {
        let lock = client.get_lock("lease");
        let refused = [
            lock.lock_for(lease).await.err(),
            lock.try_lock(Duration::ZERO, lease).await.err(),
            lock.try_lock(Duration::MAX, lease).await.err(),
            lock.try_run(LONG, lease, async |_| ()).await.err(),
        ];
        for error in refused {
            assert!(
                matches!(error, Some(Error::InvalidLease { .. })),
                "{lease:?}"
            );
        }
    }
    assert_eq!(server.calls_of("evalsha").await, 0);
    for (client, lease) in [(&client, ms(10)), (&client, day), (&bounded, ms(200))] {
        let guard = client.get_lock("lease").lock_for(lease).await.unwrap();
        assert!(server.pttl("lease").await != -1);
        drop(guard);
        clean(&server).await;
    }
}

#[tokio::test]
async fn f21_the_shortest_and_the_longest_wait_are_waits() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("wait");
    for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let guard = soon(lock.try_lock(wait, Lease::Watchdog)).await.unwrap();
        let guard = guard.expect("it is free");
        if wait < ms(1) {
            let busy = soon(lock.try_lock(wait, Lease::Watchdog)).await.unwrap();
            assert!(busy.is_none());
        }
        guard.unlock().await.unwrap();
    }
}
