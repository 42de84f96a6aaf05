//! Simple locks beside redsync, a real client of another library, on the same keys.

use std::time::Duration;

use serde_json::{Value, json};
use watchlock::{Client, Error, Lease, Ttl};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::{Worker, WorkerError};

use crate::{LONG, SHORT};

/// One server, a process with redsync and a client of ours on it.
struct Two {
    server: RedisServer,
    redsync: Worker,
    rust: Client,
}

async fn two() -> Option<Two> {
    let redsync = Worker::redsync()?;
    let server = RedisServer::start();
    let open = redsync.call("open", json!({ "url": server.url() })).await;
    open.expect("redsync connects");
    let rust = Client::builder(&server.url()).watchdog_lease(SHORT);
    let rust = rust.connect().await.expect("a client");
    Some(Two {
        server,
        redsync,
        rust,
    })
}

/// For the owner `go`, on the lock `x`.
fn ask(lease: Duration, wait: Duration) -> Value {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).expect("a short time");
    json!({ "owner": "go", "name": "x", "lease_ms": millis(lease), "wait_ms": millis(wait) })
}

impl Two {
    /// Whether redsync got the lock, within the wait.
    async fn try_lock(&self, lease: Duration, wait: Duration) -> bool {
        let answer = self.redsync.call("try_lock", ask(lease, wait)).await;
        answer.expect("an answer")["acquired"] == json!(true)
    }

    /// What redsync reports of the lock that it took.
    async fn call(&self, op: &str) -> Result<Value, WorkerError> {
        self.redsync.call(op, ask(LONG, Duration::ZERO)).await
    }

    async fn is_free_for_us(&self) -> bool {
        let lock = self.rust.get_simple_lock("x");
        let got = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        match got.expect("a clean answer") {
            Some(guard) => guard.unlock().await.is_ok(),
            None => false,
        }
    }
}

#[tokio::test]
async fn redsync_waits_for_a_hold_of_ours() {
    let Some(two) = two().await else { return };
    let guard = two.rust.get_simple_lock("x").lock().await.unwrap();
    assert!(!two.try_lock(LONG, Duration::ZERO).await);
    // The watchdog keeps it for longer than its lease.
    assert!(!two.try_lock(LONG, SHORT * 2).await);
    guard.verify().await.unwrap();
    let waiting = two.redsync.request("lock", ask(LONG, LONG));
    guard.unlock().await.unwrap();
    let got = waiting.await.outcome.expect("an answer");
    assert_eq!(got["acquired"], true);
    assert_eq!(
        got["token"],
        two.server.query::<String>(&["GET", "x"]).await
    );
    two.call("unlock").await.expect("it holds the lock");
    assert!(two.server.keys().await.is_empty());
}

#[tokio::test]
async fn a_hold_of_redsync_is_busy_here_and_waiters_outlast_it() {
    let Some(two) = two().await else { return };
    assert!(two.try_lock(LONG, Duration::ZERO).await);
    let lock = two.rust.get_simple_lock("x");
    assert!(!two.is_free_for_us().await);
    assert!(lock.is_locked().await.unwrap());
    assert!(matches!(lock.remain_time_to_live().await.unwrap(), Ttl::Left(left) if left <= LONG));
    two.call("extend").await.expect("it can still be extended");
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("it waits", LONG, async || {
        !two.server.channels().await.is_empty()
    })
    .await;
    two.call("unlock").await.expect("it holds the lock");
    // redsync publishes nothing: the next poll finds the lock free.
    let guard = tokio::time::timeout(LONG, waiter).await.unwrap().unwrap();
    guard.unwrap().unlock().await.unwrap();
    assert!(two.server.keys().await.is_empty());
}

#[tokio::test]
async fn a_lease_that_ends_on_one_side_lets_the_other_in_and_the_late_unlock_is_refused() {
    let Some(two) = two().await else { return };
    let lock = two.rust.get_simple_lock("x");
    let ours = lock.lock_with_lease(SHORT / 2).await.unwrap();
    assert!(two.try_lock(SHORT / 2, LONG).await);
    let late = ours.unlock().await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    let ours = lock.lock().await.unwrap();
    let late = two.call("unlock").await;
    assert!(late.is_err(), "redsync lost it: {late:?}");
    let late = two.call("extend").await;
    assert!(late.is_err(), "redsync lost it: {late:?}");
    ours.verify().await.unwrap();
    ours.unlock().await.unwrap();
}

#[tokio::test]
async fn the_lock_of_a_redsync_process_that_was_killed_can_be_forced_or_waited_for() {
    let Some(two) = two().await else { return };
    let lock = two.rust.get_simple_lock("x");
    assert!(two.try_lock(LONG * 10, Duration::ZERO).await);
    assert!(lock.force_unlock().await.unwrap());
    assert!(two.call("unlock").await.is_err(), "it was forced");
    assert!(two.try_lock(SHORT, Duration::ZERO).await);
    two.redsync.kill();
    let guard = tokio::time::timeout(LONG, lock.lock()).await.unwrap();
    guard.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn sections_of_both_never_overlap() {
    let Some(two) = two().await else { return };
    let two = &two;
    let inside = std::sync::atomic::AtomicU32::new(0);
    let section = async || {
        let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(others, 0, "somebody else is inside");
        tokio::task::yield_now().await;
        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    };
    let ours = async {
        for _ in 0..40 {
            two.rust
                .get_simple_lock("x")
                .run(async |_| section().await)
                .await
                .unwrap();
        }
    };
    let theirs = async {
        for _ in 0..40 {
            assert!(two.try_lock(LONG, LONG).await);
            section().await;
            two.call("unlock").await.unwrap();
        }
    };
    tokio::time::timeout(LONG * 3, async { tokio::join!(ours, theirs) })
        .await
        .expect("both come through");
    assert!(two.server.keys().await.is_empty());
}
