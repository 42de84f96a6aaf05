//! Kind `multi`: a list of names is one lock.

use serde_json::{Value, json};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use crate::common::{LONG, clean, ms};
use crate::{open, refusal, with};

/// The result of a request that is not refused.
async fn answered(worker: &Worker, op: &str, fields: Value) -> Value {
    let asked = format!("{op} {fields}");
    let answer = worker.call(op, fields).await;
    answer.unwrap_or_else(|error| panic!("{asked}: {error}"))
}

#[tokio::test]
async fn several_names_are_one_lock() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    let of = |owner: &str| json!({"owner": owner, "kind": "multi", "name": ["x", "y"]});
    let got = answered(&worker, "lock", of("a")).await;
    assert_eq!(got["count"], 1);
    let again = answered(&worker, "try_lock", with(of("a"), "wait_ms", 0)).await;
    assert_eq!(
        (&again["acquired"], &again["count"]),
        (&json!(true), &json!(2))
    );
    let busy = answered(&worker, "try_lock", with(of("b"), "wait_ms", 0)).await;
    assert_eq!(busy["acquired"], false);
    let one = json!({"owner": "b", "kind": "lock", "name": "y", "wait_ms": 0});
    assert_eq!(answered(&worker, "try_lock", one).await["acquired"], false);
    let names = json!({"kind": "multi", "name": ["x", "y"]});
    assert_eq!(
        answered(&worker, "is_locked", names.clone()).await["locked"],
        true
    );
    assert_eq!(answered(&worker, "is_held", of("a")).await["held"], true);
    assert_eq!(answered(&worker, "unlock", of("a")).await["count"], 1);
    assert_eq!(answered(&worker, "unlock", of("a")).await["count"], 0);
    assert_eq!(refusal(&worker, "unlock", of("a")).await, "not_owner");
    assert_eq!(answered(&worker, "ttl", names.clone()).await["ms"], -2);
    answered(&worker, "lock", with(of("a"), "lease_ms", 60_000)).await;
    assert_eq!(
        answered(&worker, "force_unlock", names).await["released"],
        true
    );
    clean(&server).await;
}

#[tokio::test]
async fn a_lost_one_is_reported_by_the_list_it_is_in() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    let of = json!({"owner": "a", "kind": "multi", "name": ["x", "y"]});
    answered(&worker, "lock", of.clone()).await;
    server.cmd(&["DEL", "y"]).await;
    eventually("the lost event", LONG, async || !worker.lost().is_empty()).await;
    assert_eq!(worker.events()[0]["name"], json!(["x", "y"]));
    assert_eq!(
        (&*worker.lost()[0].kind, &*worker.lost()[0].name),
        ("multi", "x, y")
    );
    assert_eq!(refusal(&worker, "unlock", of.clone()).await, "lost");
    clean(&server).await;
    answered(&worker, "lock", of).await;
}

#[tokio::test]
async fn a_list_that_is_no_set_is_refused() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    for names in [json!([]), json!(["x"]), json!(["x", "y", "x"])] {
        let of = json!({"owner": "a", "kind": "multi", "name": names, "wait_ms": 0});
        for op in ["lock", "try_lock", "unlock", "is_locked"] {
            assert_eq!(
                refusal(&worker, op, of.clone()).await,
                "invalid",
                "{op} {names}"
            );
        }
    }
    assert_eq!(worker.strays().len(), 0);
    let of = json!({"owner": "a", "kind": "multi", "name": ["x", "y"]});
    answered(&worker, "lock", of).await;
}

/// What each of 16 owners in 4 processes does: its set so many times, in a section that excludes all others of the
/// names.
async fn sections(worker: &Worker, owner: String, names: &[&str], times: u32) {
    let of = json!({"owner": owner, "kind": "multi", "name": names});
    for _ in 0..times {
        answered(worker, "lock", of.clone()).await;
        tokio::time::sleep(ms(1)).await;
        answered(worker, "unlock", of.clone()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_sets_in_four_processes_finish() {
    let server = RedisServer::start();
    let sets: [&[&str]; 4] = [&["a", "b"], &["b", "c", "a"], &["c", "a"], &["d", "c", "b"]];
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(open(&server).await);
    }
    let tasks = workers.iter().enumerate().flat_map(|(number, worker)| {
        let sets = &sets;
        (0..4).map(move |task| {
            let names = sets[(number + task) % sets.len()];
            sections(worker, format!("{number}:{task}"), names, 8)
        })
    });
    let all = futures_util::future::join_all(tasks);
    tokio::time::timeout(LONG * 2, all)
        .await
        .expect("all finish");
    for worker in &workers {
        assert!(worker.lost().is_empty());
    }
    clean(&server).await;
}
