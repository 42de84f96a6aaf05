//! Java holds: Rust sees it, waits, wakes up, and gets in when Java is gone.

use std::time::{Duration, Instant};

use watchlock::{Error, Lease, Ttl};

use super::peer::count;
use super::{LATE, SHORT, WOKEN_MS, ms_since, now_ns, two, two_short, two_to_kill};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_sees_the_holds_of_java() {
    let Some(two) = two().await else { return };
    let lock = two.rust.get_lock("seen");
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::Free);

    two.java
        .lock_with_lease("a", "seen", Duration::from_secs(60))
        .await;

    assert!(lock.is_locked().await.unwrap());
    let Ttl::Left(left) = lock.remain_time_to_live().await.unwrap() else {
        panic!("Java's lease has an end");
    };
    assert!(
        left > Duration::from_secs(30) && left <= Duration::from_secs(60),
        "{left:?}"
    );
    assert!(
        lock.try_lock(Duration::ZERO, Lease::Watchdog)
            .await
            .unwrap()
            .is_none()
    );

    let started = Instant::now();
    let wait = Duration::from_millis(150);
    assert!(
        lock.try_lock(wait, Lease::Watchdog)
            .await
            .unwrap()
            .is_none()
    );
    assert!(started.elapsed() >= wait);

    two.java.unlock("a", "seen").await;
    assert!(!lock.is_locked().await.unwrap());
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::Free);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn javas_unlock_wakes_a_rust_waiter() {
    let Some(two) = two().await else { return };
    two.java.lock("a", "wake").await;
    let lock = two.rust.get_lock("wake");
    let waiter = tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        (guard, now_ns())
    });
    two.listening("wake", 1).await;

    let released = two.java.unlock("a", "wake").await;

    // Neither a poll (60 s) nor the holder's TTL (30 s) can have let it in by now.
    let (guard, entered) = waiter.await.unwrap();
    let took_ms = entered.saturating_sub(released.t_inv) / 1_000_000;
    assert!(took_ms < WOKEN_MS, "in after {took_ms} ms");
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_enters_again_and_rust_stays_out_until_the_last_level() {
    let Some(two) = two().await else { return };
    let lock = two.rust.get_lock("levels");
    for level in 1..=3 {
        assert_eq!(count(&two.java.lock("a", "levels").await), level);
        assert_eq!(two.counts("levels").await, [level.to_string()]);
    }
    for left in (0..3).rev() {
        assert!(
            lock.try_lock(Duration::ZERO, Lease::Watchdog)
                .await
                .unwrap()
                .is_none()
        );
        assert_eq!(count(&two.java.unlock("a", "levels").await), left);
    }
    let guard = lock
        .try_lock(Duration::ZERO, Lease::Watchdog)
        .await
        .unwrap();
    guard.expect("free").unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_enters_when_javas_fixed_lease_is_over() {
    let Some(two) = two().await else { return };
    let lease = Duration::from_millis(800);
    let held = two.java.lock_with_lease("a", "lease", lease).await;

    let guard = two.rust.get_lock("lease").lock().await.unwrap();

    let took_ms = u128::from(ms_since(held.t_inv));
    // Redis counts whole milliseconds of its own clock.
    assert!(took_ms + 2 >= lease.as_millis(), "in after {took_ms} ms");
    assert!(
        took_ms < (lease + LATE).as_millis(),
        "in after {took_ms} ms"
    );
    assert!(!two.java.is_held("a", "lease").await);
    assert_eq!(two.java.unlock_refused("a", "lease").await, "not_owner");
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_releases_javas_hold_by_force() {
    let Some(two) = two().await else { return };
    let lock = two.rust.get_lock("force");
    assert!(!lock.force_unlock().await.unwrap());
    two.java.lock("a", "force").await;
    two.java.lock("a", "force").await;

    assert!(lock.force_unlock().await.unwrap());

    assert!(!two.java.is_locked("force").await);
    assert!(!two.java.is_held("a", "force").await);
    assert_eq!(two.java.unlock_refused("a", "force").await, "not_owner");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rusts_forced_release_wakes_a_java_waiter() {
    let Some(two) = two().await else { return };
    two.java.lock("a", "force").await;
    let waiter = two.java.lock("b", "force");
    let force = async {
        two.listening("force", 1).await;
        let forced = now_ns();
        assert!(two.rust.get_lock("force").force_unlock().await.unwrap());
        forced
    };
    let (entered, forced) = tokio::join!(waiter, force);
    assert!(entered.t_ret.saturating_sub(forced) / 1_000_000 < WOKEN_MS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_cannot_release_a_hold_of_java() {
    let Some(two) = two().await else { return };
    two.java.lock("a", "owner").await;
    let before = two.server.hash("owner").await;

    let owner = two.rust.new_owner();
    let lock = owner.get_lock("owner");
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    assert!(!lock.is_held());
    assert_eq!(lock.hold_count(), 0);

    assert_eq!(two.server.hash("owner").await, before);
    assert!(two.java.is_held("a", "owner").await);
    two.java.unlock("a", "owner").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn javas_watchdog_keeps_rust_out_until_unlock() {
    let Some(two) = two_short().await else { return };
    two.java.lock("a", "kept").await;
    let lock = two.rust.get_lock("kept");

    assert!(
        lock.try_lock(SHORT * 3, Lease::Watchdog)
            .await
            .unwrap()
            .is_none()
    );

    assert!(two.java.is_held("a", "kept").await);
    two.java.unlock("a", "kept").await;
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_enters_within_the_lease_when_java_is_killed() {
    let Some(two) = two_to_kill().await else {
        return;
    };
    two.java.lock("a", "killed").await;
    let lock = two.rust.get_lock("killed");
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
    two.listening("killed", 1).await;

    two.java.kill();

    let killed = Instant::now();
    let guard = waiter.await.unwrap();
    assert!(
        killed.elapsed() < SHORT + LATE,
        "in after {:?}",
        killed.elapsed()
    );
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_enters_when_java_closes_its_client() {
    for release in [true, false] {
        let Some(two) = two_short().await else { return };
        two.java.lock("a", "closed").await;
        let lock = two.rust.get_lock("closed");
        let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
        two.listening("closed", 1).await;

        two.java.shutdown(release).await;

        // Redisson's own shutdown releases nothing: the lock is free when the lease ends.
        let closed = Instant::now();
        let guard = waiter.await.unwrap();
        assert!(
            closed.elapsed() < SHORT + LATE,
            "in after {:?}",
            closed.elapsed()
        );
        guard.unlock().await.unwrap();
    }
}
