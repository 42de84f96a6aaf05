//! F12, F20 and F21: keys that are something else, names, leases and waits of every sort. Each is a clear error at
//! once, with nothing left in Redis, or works as any other.

use std::time::{Duration, Instant};

use watchlock::{Client, Error, Lease, Lock, Ttl};
use watchlock_support::eventually;
use watchlock_support::server::in_cluster;

use crate::common::{LONG, ms, soon};
use crate::scene::Scene;
use crate::table::Kind;

for_every_kind! {
    f12_a_key_that_is_no_lock_is_reported_by_every_verb_and_left_alone,
    f12_i5_a_lock_without_a_lease_is_busy_and_waited_for_by_polls,
    f20_an_invalid_name_is_refused_by_every_verb_before_anything_is_sent,
    f20_odd_names_are_legal_and_work,
    f21_i4_a_lease_out_of_bounds_is_refused_before_anything_is_sent,
    f21_the_shortest_and_the_longest_wait_are_waits,
}

async fn f12_a_key_that_is_no_lock_is_reported_by_every_verb_and_left_alone(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for put in kind.foreign {
        scene.put(put, "key").await;
        let before = scene.dump("key").await;
        let lock = scene.lock("key");
        let owner = scene.client.new_owner();
        let owned = scene.owned(&owner, "key");
        let errors = [
            soon(lock.lock()).await.err(),
            soon(lock.lock_with_lease(LONG)).await.err(),
            lock.try_lock(LONG, Lease::Fixed(LONG)).await.err(),
            lock.try_lock(Duration::ZERO, Lease::Watchdog).await.err(),
            owned.try_lock(Duration::ZERO, Lease::Watchdog).await.err(),
            lock.force_unlock().await.err(),
        ];
        for error in errors {
            let reported = matches!(error, Some(Error::WrongType { .. }));
            assert!(reported, "{put:?}: {error:?}");
        }
        assert!(scene.dump("key").await == before, "{put:?}");
        assert_eq!(scene.server.keys().await, ["key"], "{put:?}");
        assert_eq!(scene.server.pttl("key").await, -1, "{put:?}");
        scene.server.cmd(&["DEL", "key"]).await;
        let guard = scene.try_once(&scene.client, "key").await.unwrap();
        guard.expect("it is free").unlock().await.unwrap();
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

async fn f12_i5_a_lock_without_a_lease_is_busy_and_waited_for_by_polls(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let lock = scene.lock("endless");
    let endless = async || {
        scene.put_stranger("endless", LONG).await;
        scene.server.cmd(&["PERSIST", "endless"]).await;
    };
    endless().await;
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::NoExpiry);
    let started = Instant::now();
    let waited = soon(lock.try_lock(ms(200), Lease::Watchdog)).await;
    assert!(waited.unwrap().is_none());
    assert!(started.elapsed() >= ms(200));
    assert_eq!(scene.server.pttl("endless").await, -1, "not ours to set");
    let rival = scene.rival(&scene.client, "endless");
    assert!(rival.is_locked().await.unwrap());
    assert!(rival.force_unlock().await.unwrap());
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::Free);

    endless().await;
    let waiter = tokio::spawn({
        let lock = scene.lock("endless");
        async move { lock.lock().await }
    });
    scene.waited_for(1).await;
    scene.server.cmd(&["DEL", "endless"]).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    scene.clean().await;
}

/// Every call of a handle that goes to Redis.
async fn everything(lock: &dyn Lock) -> Vec<Option<Error>> {
    vec![
        lock.lock().await.err(),
        lock.lock_with_lease(LONG).await.err(),
        lock.try_lock(Duration::ZERO, Lease::Watchdog).await.err(),
        lock.try_lock(LONG, Lease::Fixed(LONG)).await.err(),
        lock.is_locked().await.err(),
        lock.remain_time_to_live().await.err(),
        lock.force_unlock().await.err(),
        lock.unlock().await.err(),
    ]
}

async fn f20_an_invalid_name_is_refused_by_every_verb_before_anything_is_sent(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let prefixed = Client::builder(&scene.server.url()).key_prefix("p:");
    let prefixed = prefixed.connect().await.unwrap();
    scene.server.reset_calls().await;
    let (long, mega) = ("x".repeat(513), "x".repeat(1 << 20));
    let names: [(&Client, &str, usize); 5] = [
        (&scene.client, "", 0),
        (&scene.client, &long, 513),
        (&scene.client, &mega, 1 << 20),
        (&prefixed, "", 2),
        (&prefixed, &long[..511], 513),
    ];
    for (client, name, length) in names {
        let owner = client.new_owner();
        let (lock, owned) = (scene.of(client, name), scene.owned(&owner, name));
        for lock in [&lock, &owned] {
            assert_eq!(lock.name(), name);
            assert_eq!((lock.is_held(), lock.hold_count()), (false, 0));
            for error in everything(lock).await {
                let named =
                    matches!(error, Some(Error::InvalidName { bytes, .. }) if bytes == length);
                assert!(named, "{length} bytes: {error:?}");
            }
        }
    }
    assert_eq!(scene.calls().await, 0);
    assert!(scene.server.keys().await.is_empty());
}

async fn f20_odd_names_are_legal_and_work(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let other = scene.listener().await;
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
        "%d %s",
        "\u{feff}",
        "'\"\\",
        &longest,
    ];
    for name in names {
        let locked = scene.lock(name).lock().await;
        if in_cluster() && ["{", "}", "{}", "a{", "{}x", "a}b"].contains(&name) {
            assert!(matches!(locked, Err(Error::CrossSlot { .. })), "{name:?}");
            continue;
        }
        let guard = locked.unwrap();
        assert_eq!(guard.name(), name);
        assert!(scene.server.exists(name).await, "{name:?}");
        scene.assert_leased(name).await;
        let before = scene.server.channels().await;
        let waiter = tokio::spawn({
            let rival = scene.rival(&other, name);
            async move { rival.lock().await }
        });
        if kind.differs(kind.deaf) {
            scene.waited_for(1).await;
        } else {
            eventually("somebody listens", LONG, async || {
                let channels = scene.server.channels().await;
                channels.iter().any(|channel| !before.contains(channel))
            })
            .await;
        }
        guard.unlock().await.unwrap();
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        let outer = scene.of(&other, name).lock().await.unwrap();
        let inner = outer.reenter(Lease::Watchdog).await.unwrap();
        inner.verify().await.unwrap();
        inner.unlock().await.unwrap();
        outer.unlock().await.unwrap();
        assert!(scene.keys().await.is_empty(), "{name:?}");
    }
    scene.clean().await;
}

async fn f21_i4_a_lease_out_of_bounds_is_refused_before_anything_is_sent(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let held = scene.lock("held").lock_with_lease(LONG).await.unwrap();
    scene.server.reset_calls().await;
    let year = Duration::from_secs(365 * 24 * 3600);
    let lock = scene.lock("lease");
    for lease in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_nanos(9_999_999),
        year + Duration::from_nanos(1),
        ms(u64::MAX),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ] {
        let refused = [
            lock.lock_with_lease(lease).await.err(),
            lock.try_lock(Duration::ZERO, lease.into()).await.err(),
            lock.try_lock(Duration::MAX, lease.into()).await.err(),
            held.reenter(lease).await.err(),
            held.extend(lease).await.err(),
        ];
        for error in refused {
            let reported = matches!(error, Some(Error::InvalidLease { .. }));
            assert!(reported, "{lease:?}: {error:?}");
        }
    }
    assert_eq!(scene.calls().await, 0);
    held.unlock().await.unwrap();
    for lease in [ms(10), year] {
        let guard = lock.lock_with_lease(lease).await.unwrap();
        scene.assert_leased("a legal lease").await;
        drop(guard);
        scene.clean().await;
    }
}

async fn f21_the_shortest_and_the_longest_wait_are_waits(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let rival = scene.rival(&scene.client, "wait");
    for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let lock = scene.lock("wait");
        let guard = soon(lock.try_lock(wait, Lease::Watchdog)).await.unwrap();
        let guard = guard.expect("it is free");
        if wait < ms(1) {
            let busy = soon(rival.try_lock(wait, Lease::Watchdog)).await.unwrap();
            assert!(busy.is_none());
        }
        guard.unlock().await.unwrap();
    }
}
