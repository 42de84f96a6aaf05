//! The operations on latches.

use serde_json::json;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use crate::common::soon;
use crate::{open, refusal};

async fn answer(worker: &Worker, op: &str, fields: serde_json::Value) -> serde_json::Value {
    soon(worker.call(op, fields)).await.expect("an answer")
}

#[tokio::test]
async fn a_latch_is_set_counted_down_awaited_and_deleted() {
    let server = RedisServer::start();
    let (one, other) = (open(&server).await, open(&server).await);
    let of = || json!({"name": "x"});
    let counts = |count: u64| json!({"name": "x", "count": count});
    let within = |ms: u64| json!({"name": "x", "wait_ms": ms});
    let set = answer(&one, "latch_set", counts(2)).await;
    assert_eq!(set, json!({"set": true}));
    let set = answer(&other, "latch_set", counts(9)).await;
    assert_eq!(set, json!({"set": false}));
    let waited = answer(&one, "latch_await", within(30)).await;
    assert_eq!(waited, json!({"reached": false}));
    let waits = other.request("latch_await", within(20_000));
    assert_eq!(answer(&one, "latch_down", of()).await, json!({}));
    let count = answer(&other, "latch_count", of()).await;
    assert_eq!(count, json!({"count": 1}));
    assert_eq!(answer(&one, "latch_down", of()).await, json!({}));
    let waited = soon(waits).await.outcome.expect("an answer");
    assert_eq!(waited, json!({"reached": true}));
    for deleted in [true, false] {
        if deleted {
            answer(&one, "latch_set", counts(1)).await;
        }
        let answered = answer(&one, "latch_delete", of()).await;
        assert_eq!(answered, json!({"deleted": deleted}));
    }
    for count in [json!(0), json!(-1), json!(1_u64 << 31)] {
        let fields = json!({"name": "x", "count": count});
        assert_eq!(refusal(&one, "latch_set", fields).await, "invalid");
    }
    server.cmd(&["HSET", "x", "a", "1"]).await;
    assert_eq!(refusal(&one, "latch_down", of()).await, "wrong_type");
}
