//! Rust holds: Java sees it, waits, wakes up, and gets in when Rust is gone.

use std::time::{Duration, Instant};

use serde_json::json;
use watchlock::Error;
use watchlock_support::worker::Worker;

use super::{LATE, LONG, SHORT, WOKEN_MS, ms_since, now_ns, two, two_short};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_sees_the_holds_of_rust() {
    let Some(two) = two().await else { return };
    assert_eq!(two.java.ttl("seen").await, -2);

    let lock = two.rust.get_lock("seen");
    let guard = lock.lock_with_lease(Duration::from_secs(60)).await.unwrap();

    assert!(two.java.is_locked("seen").await);
    let ttl = two.java.ttl("seen").await;
    assert!((30_000..=60_000).contains(&ttl), "{ttl}");
    assert!(!two.java.is_held("a", "seen").await);
    assert!(!two.java.try_lock("a", "seen", Duration::ZERO).await);
    assert!(
        !two.java
            .try_lock("a", "seen", Duration::from_millis(150))
            .await
    );

    guard.unlock().await.unwrap();
    assert!(!two.java.is_locked("seen").await);
    assert_eq!(two.java.ttl("seen").await, -2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rusts_unlock_wakes_a_java_waiter() {
    let Some(two) = two().await else { return };
    let guard = two.rust.get_lock("wake").lock().await.unwrap();
    let release = async {
        two.listening("wake", 1).await;
        let released = now_ns();
        guard.unlock().await.unwrap();
        released
    };
    // Java sleeps for the TTL that it read, 30 s, unless a message comes.
    let (entered, released) = tokio::join!(two.java.lock("a", "wake"), release);
    let took_ms = entered.t_ret.saturating_sub(released) / 1_000_000;
    assert!(took_ms < WOKEN_MS, "in after {took_ms} ms");
    two.java.unlock("a", "wake").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_guard_wakes_a_java_waiter() {
    let Some(two) = two().await else { return };
    let guard = two.rust.get_lock("drop").lock().await.unwrap();
    let release = async {
        two.listening("drop", 1).await;
        let released = now_ns();
        drop(guard);
        released
    };
    let (entered, released) = tokio::join!(two.java.lock("a", "drop"), release);
    let took_ms = entered.t_ret.saturating_sub(released) / 1_000_000;
    assert!(took_ms < WOKEN_MS, "in after {took_ms} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_enters_again_and_java_stays_out_until_the_last_level() {
    let Some(two) = two().await else { return };
    let owner = two.rust.new_owner();
    let lock = owner.get_lock("levels");
    let mut guards = Vec::new();
    for level in 1..=3 {
        guards.push(lock.lock().await.unwrap());
        assert_eq!(lock.hold_count(), level);
        assert_eq!(two.counts("levels").await, [level.to_string()]);
    }
    for guard in guards {
        assert!(!two.java.try_lock("a", "levels", Duration::ZERO).await);
        guard.unlock().await.unwrap();
    }
    assert!(two.counts("levels").await.is_empty());
    assert!(two.java.try_lock("a", "levels", Duration::ZERO).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_enters_when_rusts_fixed_lease_is_over() {
    let Some(two) = two().await else { return };
    let lease = Duration::from_millis(800);
    let asked = now_ns();
    let guard = two
        .rust
        .get_lock("lease")
        .lock_with_lease(lease)
        .await
        .unwrap();

    let entered = two.java.lock("a", "lease").await;

    let took_ms = u128::from((entered.t_ret - asked) / 1_000_000);
    // Rust gives the lease up 1 % and some milliseconds before its end.
    let early_ms = 5 + lease.as_millis() / 100;
    assert!(
        took_ms + early_ms >= lease.as_millis(),
        "in after {took_ms} ms"
    );
    assert!(
        took_ms < (lease + LATE).as_millis(),
        "in after {took_ms} ms"
    );
    assert!(!guard.is_valid());
    assert!(guard.unlock().await.unwrap_err().is_lost());
    assert!(two.java.is_held("a", "lease").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_releases_rusts_hold_by_force_and_rust_learns_it() {
    let Some(two) = two_short().await else { return };
    assert!(!two.java.force_unlock("force").await);
    let guard = two.rust.get_lock("force").lock().await.unwrap();

    assert!(two.java.force_unlock("force").await);

    // The next renewal, due after a third of the lease, finds nothing.
    let forced = Instant::now();
    guard.lost().await;
    assert!(
        forced.elapsed() < SHORT / 3 + LATE,
        "notified after {:?}",
        forced.elapsed()
    );
    assert!(!guard.is_valid());
    assert!(matches!(guard.unlock().await, Err(Error::Lost { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn javas_forced_release_wakes_a_rust_waiter() {
    let Some(two) = two().await else { return };
    let guard = two.rust.get_lock("force").lock().await.unwrap();
    let lock = two.rust.get_lock("force");
    let waiter = tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        (guard, now_ns())
    });
    two.listening("force", 1).await;

    let forced = now_ns();
    assert!(two.java.force_unlock("force").await);

    let (entered_guard, entered) = waiter.await.unwrap();
    let took_ms = entered.saturating_sub(forced) / 1_000_000;
    assert!(took_ms < WOKEN_MS, "in after {took_ms} ms");
    assert!(guard.unlock().await.unwrap_err().is_lost());
    entered_guard.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_cannot_release_a_hold_of_rust() {
    let Some(two) = two().await else { return };
    let guard = two.rust.get_lock("owner").lock().await.unwrap();
    let before = two.server.hash("owner").await;

    assert_eq!(two.java.unlock_refused("a", "owner").await, "not_owner");

    assert_eq!(two.server.hash("owner").await, before);
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rusts_watchdog_keeps_java_out_until_unlock() {
    let Some(two) = two_short().await else { return };
    let guard = two.rust.get_lock("kept").lock().await.unwrap();

    assert!(!two.java.try_lock("a", "kept", SHORT * 3).await);

    guard.check().unwrap();
    guard.unlock().await.unwrap();
    assert!(two.java.try_lock("a", "kept", Duration::ZERO).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_enters_within_the_lease_when_rust_is_killed() {
    let Some(two) = two_short().await else { return };
    let rust = Worker::rust();
    let lease_ms = u64::try_from(SHORT.as_millis()).unwrap();
    rust.call(
        "open",
        json!({ "url": two.server.url(), "watchdog_ms": lease_ms }),
    )
    .await
    .unwrap();
    rust.call(
        "lock",
        json!({ "owner": "r", "kind": "lock", "name": "killed" }),
    )
    .await
    .unwrap();
    assert!(!two.java.try_lock("a", "killed", SHORT * 2).await);

    rust.kill();

    let killed = now_ns();
    two.java.lock("a", "killed").await;
    let took_ms = u128::from(ms_since(killed));
    assert!(
        took_ms < (SHORT + LATE).as_millis(),
        "in after {took_ms} ms"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_enters_when_rust_closes_its_client() {
    let Some(two) = two().await else { return };
    let guard = two.rust.get_lock("closed").lock().await.unwrap();
    let close = async {
        two.listening("closed", 1).await;
        let closed = now_ns();
        two.rust.shutdown(Duration::ZERO).await;
        closed
    };
    let (entered, closed) = tokio::join!(two.java.lock("a", "closed"), close);
    let took_ms = entered.t_ret.saturating_sub(closed) / 1_000_000;
    assert!(took_ms < WOKEN_MS, "in after {took_ms} ms");
    assert!(guard.check().unwrap_err().is_lost());
    assert!(LONG > Duration::from_millis(took_ms));
}
