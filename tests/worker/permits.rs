//! Semaphores: grants are given back by handle, by id or by number, each once, and their losses are events.

use serde_json::{Value, json};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use super::{LONG, ms, open, refusal, soon};

const KINDS: [&str; 2] = ["semaphore", "permit"];

/// A request for the semaphore `x` of that kind.
fn of(kind: &str, fields: Value) -> Value {
    let mut request = json!({"kind": kind, "name": "x"});
    if let (Value::Object(request), Value::Object(fields)) = (&mut request, fields) {
        request.extend(fields);
    }
    request
}

async fn call(worker: &Worker, op: &str, fields: Value) -> Value {
    soon(worker.call(op, fields)).await.unwrap()
}

async fn available(worker: &Worker, kind: &str) -> Value {
    call(worker, "permits", of(kind, json!({}))).await["available"].clone()
}

#[tokio::test]
async fn permits_are_taken_and_given_back_by_handle_and_by_number() {
    for kind in KINDS {
        let server = RedisServer::start();
        let worker = open(&server).await;
        let request = |fields| of(kind, fields);
        let set = async |permits: u32| {
            call(&worker, "set_permits", request(json!({"permits": permits}))).await
        };
        assert_eq!(set(5).await, json!({"set": true}));
        assert_eq!(set(6).await, json!({"set": false}));
        let mut handles = Vec::new();
        for permits in [2, 1, 2] {
            let fields = request(json!({"permits": permits, "owner": "a"}));
            let got = call(&worker, "acquire", fields).await;
            let ids = if kind == "permit" { permits } else { 0 };
            assert_eq!(got["ids"].as_array().unwrap().len(), ids);
            handles.push(got["handle"].clone());
        }
        let busy = request(json!({"permits": 1, "wait_ms": 0}));
        let busy = call(&worker, "try_acquire", busy).await;
        assert_eq!(busy, json!({"acquired": false}));
        let by_handle = request(json!({"handle": handles[0]}));
        let released = call(&worker, "release", by_handle.clone()).await;
        assert_eq!(released, json!({"released": 2}));
        assert_eq!(refusal(&worker, "release", by_handle).await, "not_owner");
        // The oldest are of one and of two.
        let by_number = request(json!({"permits": 2}));
        assert_eq!(refusal(&worker, "release", by_number).await, "not_owner");
        let by_number = request(json!({"permits": 3}));
        let released = call(&worker, "release", by_number).await;
        assert_eq!(released, json!({"released": 3}));
        call(&worker, "add_permits", request(json!({"permits": -1}))).await;
        assert_eq!(available(&worker, kind).await, 4);
    }
}

#[tokio::test]
async fn permits_are_given_back_by_id_whoever_took_them() {
    let server = RedisServer::start();
    let (one, other) = (open(&server).await, open(&server).await);
    let fields = json!({"permits": 2, "with_permits": 3});
    let got = call(&one, "acquire", of("permit", fields)).await;
    let by_ids = of("permit", json!({"ids": got["ids"]}));
    for (worker, released) in [(&one, 2), (&other, 0)] {
        let answer = call(worker, "release", by_ids.clone()).await;
        assert_eq!(answer, json!({"released": released}));
    }
    let got = call(&one, "acquire", of("permit", json!({"permits": 1}))).await;
    let by_ids = of("permit", json!({"ids": got["ids"]}));
    let answer = call(&other, "release", by_ids).await;
    assert_eq!(answer, json!({"released": 1}));
    let counts = call(&other, "permits", of("permit", json!({}))).await;
    assert_eq!(counts, json!({"available": 3, "acquired": 0, "total": 3}));
}

#[tokio::test]
async fn a_lost_grant_is_an_event() {
    for kind in KINDS {
        let server = RedisServer::start();
        let worker = open(&server).await;
        let fields = json!({"permits": 1, "with_permits": 1, "wait_ms": 0, "lease_ms": 100});
        let got = call(&worker, "try_acquire", of(kind, fields)).await;
        eventually("the event", LONG, async || !worker.events().is_empty()).await;
        let event = &worker.events()[0];
        for (field, value) in [
            ("event", &json!("lost")),
            ("kind", &json!(kind)),
            ("name", &json!("x")),
            ("handle", &got["handle"]),
        ] {
            assert_eq!(&event[field], value);
        }
        let by_handle = of(kind, json!({"handle": got["handle"]}));
        assert_eq!(refusal(&worker, "release", by_handle).await, "lost");
    }
}

#[tokio::test]
async fn bad_numbers_of_permits_are_invalid() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    for (op, fields) in [
        ("acquire", json!({"permits": 0})),
        ("acquire", json!({"permits": 1025})),
        ("acquire", json!({"permits": -1})),
        ("acquire", json!({"permits": 1_u64 << 40})),
        ("acquire", json!({"permits": 1, "with_permits": 0})),
        ("set_permits", json!({"permits": 1_u64 << 31})),
        ("add_permits", json!({"permits": 1_u64 << 31})),
    ] {
        let refused = refusal(&worker, op, of("semaphore", fields.clone())).await;
        assert_eq!(refused, "invalid", "{op} {fields}");
    }
    server.cmd(&["SET", "x", "many"]).await;
    let fields = of("semaphore", json!({"permits": 1}));
    assert_eq!(refusal(&worker, "acquire", fields).await, "wrong_type");
    let unknown = of("lock", json!({"permits": 1}));
    assert_eq!(refusal(&worker, "acquire", unknown).await, "unsupported");
    let none = of("semaphore", json!({}));
    worker.send_line(&json!({"id": 77, "op": "acquire", "kind": "semaphore"}).to_string());
    assert_eq!(refusal(&worker, "drain_permits", none).await, "unsupported");
    eventually("a bad line is answered", LONG, async || {
        !worker.strays().is_empty()
    })
    .await;
}

#[tokio::test]
async fn the_end_of_the_input_gives_permits_back() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    let fields = json!({"permits": 2, "with_permits": 2});
    call(&worker, "acquire", of("permit", fields)).await;
    worker.close_stdin();
    assert!(worker.wait_exit(ms(10_000)).await.success());
    assert_eq!(server.keys().await, ["x"]);
}
