//! The driver of workers, with a worker that holds no locks.

use std::time::Duration;

use serde_json::{Value, json};
use watchlock_support::worker::Worker;
use watchlock_support::{eventually, now_ns, process};

const SOON: Duration = Duration::from_secs(10);

fn start() -> Worker {
    Worker::spawn(&[env!("CARGO_BIN_EXE_kit-child"), "worker"])
}

#[tokio::test]
async fn an_answer_has_its_result_and_its_times() {
    let worker = start();
    let before = now_ns();
    let reply = worker.request("echo", json!({"say": [1, "ä"]})).await;
    assert_eq!(reply.outcome, Ok(json!([1, "ä"])));
    assert!(before <= reply.t_inv && reply.t_inv <= reply.t_ret && reply.t_ret <= now_ns());
}

#[tokio::test]
async fn an_error_has_its_kind() {
    let worker = start();
    let error = worker.call("sing", Value::Null).await.unwrap_err();
    assert_eq!(error.kind, "unsupported");
    assert_eq!(error.to_string(), "unsupported: no such op");
}

#[tokio::test]
async fn answers_are_matched_by_id_and_not_by_order() {
    let worker = start();
    let first = worker.request("late", Value::Null);
    let second = worker.request("echo", Value::Null);
    assert!(first.id() < second.id());
    assert_eq!(first.await.outcome, Ok(json!("first")));
    assert_eq!(second.await.outcome, Ok(json!("second")));
}

#[tokio::test]
async fn events_come_unasked() {
    let worker = start();
    worker.call("lose", Value::Null).await.unwrap();
    let [lost] = &worker.lost()[..] else {
        panic!("one lost hold");
    };
    assert_eq!(
        (&*lost.owner, &*lost.name, &*lost.reason),
        ("a", "x", "expired")
    );
    assert_eq!(worker.new_events().len(), 1);
    assert!(worker.new_events().is_empty());
    assert_eq!(worker.events().len(), 1);
}

#[tokio::test]
async fn a_line_for_nobody_is_a_stray() {
    let worker = start();
    worker.send_line("no request");
    worker.call("echo", Value::Null).await.unwrap();
    assert!(worker.strays()[0].contains("bad_request"));
}

#[tokio::test]
async fn a_killed_worker_answers_nothing_more() {
    let worker = start();
    worker.call("echo", Value::Null).await.unwrap();
    worker.freeze();
    let call = worker.request("echo", Value::Null);
    assert!(worker.is_alive());
    worker.kill();
    assert!(!worker.is_alive());
    assert_eq!(call.await.outcome.unwrap_err().kind, "dead");
    let late = worker.call("echo", Value::Null).await;
    assert_eq!(late.unwrap_err().kind, "dead");
}

#[tokio::test]
async fn a_frozen_worker_answers_when_resumed() {
    let worker = start();
    worker.call("echo", Value::Null).await.unwrap();
    worker.freeze();
    let frozen_at = now_ns();
    // More than a pipe holds: sending must not block.
    let long = "x".repeat(1_000);
    let calls: Vec<_> = (0..200)
        .map(|_| worker.request("echo", json!({"say": long})))
        .collect();
    worker.resume();
    for call in calls {
        let reply = call.await;
        assert!(reply.t_inv > frozen_at);
        assert!(reply.outcome.is_ok());
    }
}

#[tokio::test]
async fn a_worker_ends_with_its_input() {
    let worker = start();
    let call = worker.request("echo", json!({"say": 1}));
    worker.close_stdin();
    assert_eq!(call.await.outcome, Ok(json!(1)));
    assert!(worker.wait_exit(SOON).await.success());
    assert!(!worker.is_alive());
}

#[tokio::test]
async fn a_dropped_worker_is_gone_even_when_frozen() {
    let worker = start();
    let pid = worker.pid();
    worker.freeze();
    drop(worker);
    eventually("the process is gone", SOON, async || {
        !process::is_alive(pid)
    })
    .await;
}
