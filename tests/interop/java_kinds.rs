//! The Java peer by itself: each kind of lock answers as Redisson's does, so that tests of both sides can rely on it.

use std::time::Duration;

use serde_json::{Value, json};
use watchlock_support::campaign::kinds;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use crate::LONG;

/// A server, and two clients in Java on it.
async fn java() -> Option<(RedisServer, Worker, Worker)> {
    let server = RedisServer::start();
    let (one, other) = (Worker::java()?, Worker::java()?);
    for worker in [&one, &other] {
        worker.open(&server.url(), None).await.expect("a client");
    }
    Some((server, one, other))
}

async fn ask(worker: &Worker, op: &str, kind: &str, more: Value) -> Value {
    let mut fields = json!({"owner": "a", "kind": kind, "name": "x"});
    for (field, value) in more.as_object().into_iter().flatten() {
        fields[field] = value.clone();
    }
    let answer = worker.call(op, fields).await;
    answer.unwrap_or_else(|error| panic!("{op} of {kind}: {error}"))
}

async fn acquires(worker: &Worker, kind: &str) -> bool {
    let tried = ask(worker, "try_lock", kind, json!({"wait_ms": 0})).await;
    tried["acquired"] == true
}

#[tokio::test]
async fn campaigns_mix_the_kinds_that_java_has_and_no_others() {
    let Some((_server, java, _)) = java().await else {
        return;
    };
    let mut listed = kinds::JAVA.to_vec();
    listed.sort_unstable();
    assert_eq!(java.kinds().await, listed);
}

#[tokio::test]
async fn each_kind_of_java_is_taken_asked_for_and_given_back() {
    let Some((server, java, _)) = java().await else {
        return;
    };
    for kind in kinds::JAVA.iter().map(|kind| kind.word()) {
        let got = ask(&java, "lock", kind, json!({"lease_ms": 30_000})).await;
        assert_eq!(got["count"], 1, "{kind}");
        assert_eq!(got["token"].is_i64(), kind == "fenced", "{kind}: {got}");
        assert_eq!(
            ask(&java, "is_locked", kind, Value::Null).await["locked"],
            true
        );
        assert_eq!(ask(&java, "is_held", kind, Value::Null).await["held"], true);
        let ttl = ask(&java, "ttl", kind, Value::Null).await["ms"].as_i64();
        assert!((1..=30_000).contains(&ttl.expect("an integer")), "{kind}");
        assert!(acquires(&java, kind).await, "{kind} is entered again");
        assert_eq!(
            ask(&java, "hold_count", kind, Value::Null).await["count"],
            2
        );
        assert_eq!(ask(&java, "unlock", kind, Value::Null).await["count"], 1);
        let forced = ask(&java, "force_unlock", kind, Value::Null).await;
        assert_eq!(forced["released"], true, "{kind}");
        assert_eq!(
            ask(&java, "is_locked", kind, Value::Null).await["locked"],
            false
        );
        assert!(!server.exists("x").await, "{kind}");
    }
}

#[tokio::test]
async fn readers_of_java_share_and_a_writer_of_java_excludes() {
    let Some((_server, one, other)) = java().await else {
        return;
    };
    assert!(acquires(&one, "read").await);
    assert!(acquires(&other, "read").await, "readers share");
    assert!(
        !acquires(&other, "write").await,
        "a reader keeps writers out"
    );
    ask(&one, "unlock", "read", Value::Null).await;
    ask(&other, "unlock", "read", Value::Null).await;
    assert!(acquires(&one, "write").await);
    assert!(acquires(&one, "read").await, "under the own write");
    assert!(
        !acquires(&other, "read").await,
        "a writer keeps readers out"
    );
    assert!(!acquires(&other, "write").await);
}

#[tokio::test]
async fn tokens_of_java_grow_by_one_with_every_acquire() {
    let Some((_server, one, other)) = java().await else {
        return;
    };
    let mut tokens = Vec::new();
    for worker in [&one, &other, &one] {
        for op in ["lock", "try_lock"] {
            let got = ask(worker, op, "fenced", json!({"wait_ms": 0})).await;
            tokens.push(got["token"].as_i64().expect("a token"));
        }
        ask(worker, "unlock", "fenced", Value::Null).await;
        ask(worker, "unlock", "fenced", Value::Null).await;
    }
    assert_eq!(tokens, [1, 2, 3, 4, 5, 6], "re-entries burn one each");
}

#[tokio::test]
async fn waiters_of_the_fair_lock_of_java_come_in_the_order_of_their_arrival() {
    let Some((server, one, other)) = java().await else {
        return;
    };
    assert!(acquires(&one, "fair").await);
    let mut waiting = Vec::new();
    for (number, owner) in (0_i64..).zip(["b", "c", "d"]) {
        let worker = if number % 2 == 0 { &other } else { &one };
        let fields = json!({"owner": owner, "kind": "fair", "name": "x"});
        waiting.push((owner, worker, worker.request("lock", fields)));
        eventually("it is queued", LONG, async || {
            let length = server.cmd(&["LLEN", "redisson_lock_queue:{x}"]).await;
            length == redis::Value::Int(number + 1)
        })
        .await;
    }
    ask(&one, "unlock", "fair", Value::Null).await;
    let mut before = 0;
    for (owner, worker, waited) in waiting {
        let got = waited.await;
        assert!(got.t_ret > before, "{owner} comes in turn");
        before = got.t_ret;
        ask(worker, "unlock", "fair", json!({"owner": owner})).await;
    }
}

#[tokio::test]
async fn each_kind_of_java_measures_itself() {
    let Some((_server, java, _)) = java().await else {
        return;
    };
    for kind in kinds::JAVA.iter().map(|kind| kind.word()) {
        let plan = json!({"prefix": format!("own:{kind}:"), "tasks": 2, "ms": 100});
        // The first pairs of a JVM on a busy machine take longer than that.
        eventually("it makes pairs", LONG, async || {
            let pairs = ask(&java, "bench_pairs", kind, plan.clone()).await;
            pairs["pairs"].as_u64() > Some(1)
        })
        .await;
        let plan = json!({"name": format!("one:{kind}"), "tasks": 3, "ms": 200, "hold_us": 500, "pause_us": 500,
            "busy": true});
        eventually("it makes sections", LONG, async || {
            let measured = ask(&java, "bench_contended", kind, plan.clone()).await;
            assert_eq!(measured["overlaps"], 0, "{kind}: {measured}");
            measured["sections"].as_u64() > Some(2)
        })
        .await;
    }
}

#[tokio::test]
async fn the_lease_that_a_fenced_lock_of_java_is_asked_for_is_kept() {
    let Some((server, java, _)) = java().await else {
        return;
    };
    ask(&java, "lock", "fenced", json!({"lease_ms": 5_000})).await;
    let ttl = Duration::from_millis(u64::try_from(server.pttl("x").await).expect("a lease"));
    assert!(ttl <= Duration::from_secs(5), "{ttl:?}");
}

#[tokio::test]
async fn rust_shows_the_holders_of_java() {
    let Some((server, java, _)) = java().await else {
        return;
    };
    let rust = watchlock::Client::connect(&server.url()).await.unwrap();
    let both = rust.get_read_write_lock("x");
    for kind in ["lock", "fenced", "fair", "spin", "read", "write"] {
        let holders = async || match kind {
            "fenced" => rust.get_fenced_lock("x").holders().await,
            "fair" => rust.get_fair_lock("x").holders().await,
            "spin" => rust.get_spin_lock("x").holders().await,
            "read" => both.read_lock().holders().await,
            "write" => both.write_lock().holders().await,
            _ => rust.get_lock("x").holders().await,
        };
        ask(&java, "lock", kind, json!({"lease_ms": 30_000})).await;
        assert!(acquires(&java, kind).await, "{kind} is entered again");
        let shown = holders().await.unwrap();
        assert_eq!(shown.len(), 1, "{kind}: {shown:?}");
        let client = shown[0].client.expect("Redisson's id").to_string();
        assert!(
            shown[0].hold_id.starts_with(&format!("{client}:")),
            "{kind}"
        );
        assert!(!shown[0].hold_id.ends_with(":write"), "{kind}");
        assert_eq!((shown[0].hold_count, &shown[0].label), (2, &None), "{kind}");
        ask(&java, "force_unlock", kind, Value::Null).await;
        assert_eq!(holders().await.unwrap(), [], "{kind}");
    }
}
