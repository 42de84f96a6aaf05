//! Several locks as one: ours and Java's `getMultiLock` on the same keys, in opposite orders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use watchlock::{Client, Lease, MultiLock};
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use super::{LONG, nothing_is_left};

struct Sides {
    server: RedisServer,
    java: Worker,
    rust: Client,
}

async fn sides() -> Option<Sides> {
    Some(with(Worker::java()?).await)
}

async fn with(java: Worker) -> Sides {
    let server = RedisServer::start();
    java.open(&server.url(), None).await.expect("a client");
    let rust = Client::connect(&server.url()).await.expect("a client");
    Sides { server, java, rust }
}

fn ours(client: &Client, names: &[&str]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| client.get_lock(name))).expect("a set")
}

async fn ask(java: &Worker, op: &str, owner: &str, names: &[&str], more: Value) -> Value {
    let mut fields = json!({"owner": owner, "kind": "multi", "name": names});
    for (field, value) in more.as_object().into_iter().flatten() {
        fields[field] = value.clone();
    }
    let answer = java.call(op, fields).await;
    answer.unwrap_or_else(|error| panic!("{op}: {error}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ours_and_javas_exclude_each_other_in_both_directions() {
    let Some(Sides { server, java, rust }) = sides().await else {
        return;
    };
    let all = ours(&rust, &["a", "b", "c"]);
    let reversed = ["c", "b", "a"];
    let guard = all.lock().await.unwrap();
    for names in [&reversed[..], &["b", "x"]] {
        let tried = ask(
            &java,
            "try_lock",
            "j",
            names,
            json!({"wait_ms": 100, "lease_ms": 5_000}),
        )
        .await;
        assert_eq!(tried["acquired"], false, "{names:?}");
    }
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();

    ask(&java, "lock", "j", &reversed, json!({"lease_ms": 60_000})).await;
    let got = all
        .try_lock(Duration::from_millis(200), Lease::Watchdog)
        .await
        .unwrap();
    assert!(got.is_none());
    assert!(all.is_locked().await.unwrap());
    let waiting = tokio::spawn({
        let all = all.clone();
        async move { all.lock().await }
    });
    ask(&java, "unlock", "j", &reversed, Value::Null).await;
    let guard = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
    guard.unlock().await.unwrap();
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_of_ours_and_javas_both_finish_and_never_meet() {
    let Some(Sides { server, java, rust }) = sides().await else {
        return;
    };
    let inside = Arc::new(AtomicU32::new(0));
    let theirs = {
        let inside = Arc::clone(&inside);
        async move {
            for _ in 0..15 {
                ask(&java, "lock", "j", &["b", "a"], Value::Null).await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "Java is alone");
                tokio::time::sleep(Duration::from_millis(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                ask(&java, "unlock", "j", &["b", "a"], Value::Null).await;
            }
        }
    };
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(theirs);
    for names in [["a", "b"], ["b", "a"]] {
        let (all, inside) = (ours(&rust, &names), Arc::clone(&inside));
        tasks.spawn(async move {
            for _ in 0..15 {
                let guard = all.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "Rust is alone");
                tokio::time::sleep(Duration::from_millis(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            }
        });
    }
    tokio::time::timeout(LONG * 3, tasks.join_all())
        .await
        .expect("all finish");
    nothing_is_left(&server).await;
}

/// Java first takes its locks for twice its wait, and sets the requested lease at the end, without checking whose they
/// are by then. Ours have the requested lease from the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_that_is_killed_on_its_way_leaves_a_lease_that_we_wait_out() {
    let Some(java) = Worker::java_alone() else {
        return;
    };
    let Sides { server, java, rust } = with(java).await;
    let held = rust.get_lock("b").lock().await.unwrap();
    // Java holds `a` while it waits for `b`.
    let tries = java.request(
        "try_lock",
        json!({"owner": "j", "kind": "multi", "name": ["a", "b"],
        "wait_ms": 4_000, "lease_ms": 1_000}),
    );
    watchlock_support::eventually("Java has the first", LONG, async || {
        server.exists("a").await
    })
    .await;
    assert!(
        server.pttl("a").await > 1_000,
        "longer than it was asked for"
    );
    java.kill();
    drop(tries);
    held.unlock().await.unwrap();
    let guard = tokio::time::timeout(LONG, ours(&rust, &["b", "a"]).lock())
        .await
        .expect("its lease ends");
    guard.unwrap().unlock().await.unwrap();
}
