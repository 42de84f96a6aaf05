//! Wake-ups survive subscriptions that come and go: other waiters give up, and connections are cut.

use std::time::Duration;

use watchlock::Lease;

use super::{LONG, Two, WOKEN_MS, eventually, now_ns, two};

const BRIEFLY: Duration = Duration::from_millis(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_waiter_is_woken_after_others_have_given_up() {
    let Some(two) = two().await else { return };
    for round in 0..3 {
        let name = format!("rust-{round}");
        two.java.lock("a", &name).await;
        let lock = two.rust.get_lock(&name);
        let waiter = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            (guard, now_ns())
        });
        two.listening(&name, 1).await;
        give_up_waiting(&two, &name).await;

        let released = two.java.unlock("a", &name).await;

        let (guard, entered) = waiter.await.unwrap();
        assert!(entered.saturating_sub(released.t_inv) / 1_000_000 < WOKEN_MS);
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_waiter_is_woken_after_others_have_given_up() {
    let Some(two) = two().await else { return };
    for round in 0..3 {
        let name = format!("java-{round}");
        let guard = two.rust.get_lock(&name).lock().await.unwrap();
        let release = async {
            two.listening(&name, 1).await;
            give_up_waiting(&two, &name).await;
            let released = now_ns();
            guard.unlock().await.unwrap();
            released
        };
        let (entered, released) = tokio::join!(two.java.lock("b", &name), release);
        assert!(entered.t_ret.saturating_sub(released) / 1_000_000 < WOKEN_MS);
        two.java.unlock("b", &name).await;
    }
}

/// One more waiter on each side, which subscribes, or joins a subscription, and leaves it again.
async fn give_up_waiting(two: &Two, name: &str) {
    for _ in 0..3 {
        assert!(!two.java.try_lock("c", name, BRIEFLY).await);
        let lock = two.rust.get_lock(name);
        assert!(
            lock.try_lock(BRIEFLY, Lease::Watchdog)
                .await
                .unwrap()
                .is_none()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_waiter_is_woken_after_its_subscription_was_cut() {
    let Some(two) = two().await else { return };
    two.java.lock("a", "cut").await;
    let lock = two.rust.get_lock("cut");
    let waiter = tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        (guard, now_ns())
    });
    two.listening("cut", 1).await;
    cut_subscriptions(&two, "cut", 1).await;

    let released = two.java.unlock("a", "cut").await;

    let (guard, entered) = waiter.await.unwrap();
    assert!(entered.saturating_sub(released.t_inv) / 1_000_000 < WOKEN_MS);
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_waiter_is_woken_after_its_subscription_was_cut() {
    let Some(two) = two().await else { return };
    let guard = two.rust.get_lock("cut").lock().await.unwrap();
    let release = async {
        two.listening("cut", 1).await;
        cut_subscriptions(&two, "cut", 1).await;
        let released = now_ns();
        guard.unlock().await.unwrap();
        released
    };
    let (entered, released) = tokio::join!(two.java.lock("b", "cut"), release);
    assert!(entered.t_ret.saturating_sub(released) / 1_000_000 < WOKEN_MS);
}

/// Cuts every subscriber's connection and waits until they are back on new ones.
async fn cut_subscriptions(two: &Two, name: &str, waiters: u64) {
    let killed: u64 = two
        .server
        .query(&["CLIENT", "KILL", "TYPE", "pubsub"])
        .await;
    assert!(killed >= waiters);
    eventually("subscribers are back", LONG, async || {
        two.server.subscribers(&super::channel(name)).await == waiters
    })
    .await;
}
