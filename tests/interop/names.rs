//! Both sides use one lock under one name, whatever characters are in it, and wake each other on one channel.

use std::time::Duration;

use watchlock::Lease;

use super::peer::Options;
use super::{Two, WOKEN_MS, now_ns, two, two_with};

const NAMES: [&str; 10] = [
    "plain",
    "with a space",
    "ключ-é-漢字-🔒",
    "{tag}:rest",
    "a{b}c",
    "a{",
    "}a{",
    "{}",
    "a:b/c?d*e[f]",
    "line\r\nbreak\tand \"quotes\"",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_name_is_one_lock_on_both_sides() {
    let Some(two) = two().await else { return };
    for name in NAMES {
        java_holds(&two, name, name).await;
        rust_holds(&two, name, name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_key_prefix_is_redissons_name_mapper() {
    for prefix in ["app:", "{app}:"] {
        let options = Options {
            prefix: Some(prefix),
            ..Options::default()
        };
        let Some(two) = two_with(options, Duration::from_secs(30)).await else {
            return;
        };
        let key = format!("{prefix}orders");
        java_holds(&two, "orders", &key).await;
        rust_holds(&two, "orders", &key).await;
    }
}

async fn java_holds(two: &Two, name: &str, key: &str) {
    two.java.lock("a", name).await;
    assert_eq!(two.counts(key).await, ["1"], "{name:?}");
    let lock = two.rust.get_lock(name);
    assert!(
        lock.try_lock(Duration::ZERO, Lease::Watchdog)
            .await
            .unwrap()
            .is_none(),
        "{name:?}"
    );
    let waiter = tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        (guard, now_ns())
    });
    two.listening(key, 1).await;

    let released = two.java.unlock("a", name).await;

    let (guard, entered) = waiter.await.unwrap();
    assert!(
        entered.saturating_sub(released.t_inv) / 1_000_000 < WOKEN_MS,
        "{name:?}"
    );
    guard.unlock().await.unwrap();
    two.listening(key, 0).await;
}

async fn rust_holds(two: &Two, name: &str, key: &str) {
    let guard = two.rust.get_lock(name).lock().await.unwrap();
    assert_eq!(two.counts(key).await, ["1"], "{name:?}");
    assert!(
        !two.java.try_lock("a", name, Duration::ZERO).await,
        "{name:?}"
    );
    let release = async {
        two.listening(key, 1).await;
        let released = now_ns();
        guard.unlock().await.unwrap();
        released
    };

    let (entered, released) = tokio::join!(two.java.lock("a", name), release);

    assert!(
        entered.t_ret.saturating_sub(released) / 1_000_000 < WOKEN_MS,
        "{name:?}"
    );
    two.java.unlock("a", name).await;
    two.listening(key, 0).await;
}
