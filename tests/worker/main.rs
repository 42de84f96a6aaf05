//! The worker process speaks its protocol: each request, each error, events, bad lines and the end of the input.

#[path = "../common/mod.rs"]
mod common;
mod latch;
mod permits;
mod quorum;
mod several;

use std::time::Duration;

use common::{LONG, channel, clean, gone, ms, soon, subscribed};
use serde_json::{Value, json};
use watchlock_support::campaign::kinds;
use watchlock_support::cluster::RedisCluster;
use watchlock_support::history::LockKind;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;
use watchlock_support::{eventually, now_ns};

/// A worker whose watchdog's lease is 900 ms.
async fn open(server: &RedisServer) -> Worker {
    open_at(&server.url()).await
}

async fn open_at(url: &str) -> Worker {
    let worker = Worker::rust();
    worker.open(url, Some(ms(900))).await.expect("a client");
    worker
}

fn of(owner: &str, name: &str) -> Value {
    json!({"owner": owner, "kind": "lock", "name": name})
}

fn named(name: &str) -> Value {
    json!({"kind": "lock", "name": name})
}

/// `fields` and one more.
fn with(mut fields: Value, field: &str, value: impl Into<Value>) -> Value {
    fields[field] = value.into();
    fields
}

/// The kind of the error that answers the request.
async fn refusal(worker: &Worker, op: &str, fields: Value) -> String {
    let answer = soon(worker.call(op, fields)).await;
    answer.expect_err("it is refused").kind
}

async fn lost(worker: &Worker) {
    eventually("the lost event", LONG, async || !worker.lost().is_empty()).await;
}

#[tokio::test]
async fn open_says_the_id_that_is_in_every_owner_field() {
    let server = RedisServer::start();
    let worker = Worker::rust();
    let id = worker.open(&server.url(), None).await.unwrap();
    worker.lock("a", "x", None).await.unwrap();
    let fields = server.hash("x").await;
    let (field, count) = fields.first_key_value().unwrap();
    assert!(field.starts_with(&format!("{id}:")), "{field} of {id}");
    assert_eq!(count, "1");
    assert!(server.pttl("x").await > 20_000, "the default lease is 30 s");
}

#[tokio::test]
async fn open_takes_a_prefix() {
    let server = RedisServer::start();
    let worker = Worker::rust();
    let fields = json!({"url": server.url(), "prefix": "p:", "command_timeout_ms": 2000,
        "backoff_cap_ms": 5, "unavailable_after_ms": 1000});
    worker.call("open", fields).await.unwrap();
    worker.lock("a", "x", None).await.unwrap();
    assert_eq!(server.keys().await, ["p:x"]);
}

#[tokio::test]
async fn open_takes_a_master_by_its_sentinels() {
    let deployment = SentinelDeployment::start().await;
    let worker = Worker::rust();
    let fields = json!({"sentinel": {"service": SERVICE, "urls": deployment.urls()}});
    worker.call("open", fields).await.unwrap();
    worker.lock("a", "x", None).await.unwrap();
    assert!(deployment.servers()[0].exists("x").await);
    let worker = Worker::rust();
    let unknown = json!({"sentinel": {"service": "another", "urls": deployment.urls()}});
    assert_eq!(refusal(&worker, "open", unknown).await, "invalid");
}

#[tokio::test]
async fn open_takes_a_cluster_by_its_nodes() {
    let cluster = RedisCluster::masters().await;
    let worker = Worker::rust();
    let fields = json!({"cluster": true, "urls": cluster.urls()});
    worker.call("open", fields).await.unwrap();
    for name in ["x", "y", "z"] {
        worker.lock("a", name, None).await.unwrap();
        assert!(cluster.server_of(name).await.exists(name).await);
    }
    let spread = json!({"owner": "a", "kind": "lock", "name": "a}b"});
    assert_eq!(refusal(&worker, "lock", spread).await, "invalid");
    let server = RedisServer::start();
    let alone = json!({"cluster": true, "urls": [server.url()]});
    assert_eq!(refusal(&Worker::rust(), "open", alone).await, "invalid");
}

#[tokio::test]
async fn too_few_acknowledgements_are_not_replicated() {
    let server = RedisServer::start();
    let worker = Worker::rust();
    let fields = json!({"url": server.url(), "acks": 1});
    worker.call("open", fields).await.unwrap();
    let fields = json!({"owner": "a", "kind": "lock", "name": "x", "wait_ms": 0});
    let refused = refusal(&worker, "try_lock", fields.clone()).await;
    assert_eq!(refused, "not_replicated");
    assert!(!server.exists("x").await, "it has been given back");
    let replica = RedisServer::options().replica_of(&server).start();
    replica.synced().await;
    let fields = with(fields, "wait_ms", json!(20_000));
    worker.call("try_lock", fields).await.unwrap();
    assert!(replica.exists("x").await);
}

#[tokio::test]
async fn in_a_cluster_the_replicas_of_a_lock_s_master_count() {
    let cluster = RedisCluster::start().await;
    let worker = Worker::rust();
    let fields = json!({"cluster": true, "urls": cluster.urls(), "acks": 1});
    worker.call("open", fields).await.unwrap();
    worker.lock("a", "x", None).await.unwrap();
    let master = cluster.owner_of("x").await;
    assert_eq!(cluster.replica_of(master).keys().await, ["x"]);
}

#[tokio::test]
async fn open_is_refused_with_the_cause() {
    let server = RedisServer::options().password("secret").start();
    let worker = Worker::rust();
    let wrong = format!("redis://:wrong@127.0.0.1:{}/", server.port());
    assert_eq!(
        refusal(&worker, "open", json!({"url": "http://x"})).await,
        "invalid"
    );
    let short = json!({"url": server.url(), "watchdog_ms": 1});
    assert_eq!(refusal(&worker, "open", short).await, "invalid");
    assert_eq!(
        refusal(&worker, "open", json!({"url": wrong})).await,
        "denied"
    );
    for fields in [
        json!({"url": server.url(), "urls": [server.url()]}),
        json!({"urls": [server.url()], "acks": 1}),
    ] {
        assert_eq!(refusal(&worker, "open", fields).await, "unsupported");
    }
    let url = server.url();
    server.kill();
    assert_eq!(
        refusal(&worker, "open", json!({"url": url})).await,
        "unavailable"
    );
    server.launch();
    server.ready().await;
    worker
        .open(&url, None)
        .await
        .expect("a failed open does not spoil the next");
    assert_eq!(
        refusal(&worker, "open", json!({"url": url})).await,
        "bad_request"
    );
}

#[tokio::test]
async fn levels_are_counted_up_and_down() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    assert_eq!(worker.lock("a", "x", None).await, Ok(1));
    assert_eq!(worker.lock("a", "x", Some(ms(5000))).await, Ok(2));
    assert_eq!(
        worker.try_lock("a", "x", Duration::ZERO, None).await,
        Ok(Some(3))
    );
    assert_eq!(worker.hold_count("a", "x").await, Ok(3));
    assert_eq!(worker.hold_count("b", "x").await, Ok(0));
    let held = worker.call("is_held", of("a", "x")).await.unwrap();
    assert_eq!(held, json!({"held": true}));
    assert!(worker.is_locked("x").await.unwrap());
    for left in [2, 1, 0] {
        assert_eq!(worker.unlock("a", "x").await, Ok(left));
    }
    assert!(!worker.is_locked("x").await.unwrap());
    let held = worker.call("is_held", of("a", "x")).await.unwrap();
    assert_eq!(held, json!({"held": false}));
    clean(&server).await;
}

#[tokio::test]
async fn owners_exclude_each_other_and_wait_for_each_other() {
    let server = RedisServer::start();
    let (worker, other) = (open(&server).await, open(&server).await);
    worker.lock("a", "x", None).await.unwrap();
    assert_eq!(
        worker.try_lock("b", "x", Duration::ZERO, None).await,
        Ok(None)
    );
    assert_eq!(other.try_lock("a", "x", ms(30), None).await, Ok(None));
    let asked = server.calls_of("evalsha").await;
    let waiting = other.request("lock", of("a", "x"));
    // Earlier waiters may still be subscribed.
    eventually("it is asked for", LONG, async || {
        server.calls_of("evalsha").await > asked
    })
    .await;
    let released = worker.request("unlock", of("a", "x")).await;
    let entered = soon(waiting).await;
    assert_eq!(entered.outcome, Ok(json!({"count": 1})));
    assert!(entered.t_inv < released.t_inv && released.t_inv < entered.t_ret);
    assert!(entered.t_ret <= now_ns(), "times of all processes compare");
}

#[tokio::test]
async fn requests_of_one_owner_keep_their_order() {
    let server = RedisServer::start();
    let (worker, other) = (open(&server).await, open(&server).await);
    other.lock("z", "x", None).await.unwrap();
    let waits = worker.request("lock", of("a", "x"));
    let unlocks = worker.request("unlock", of("a", "x"));
    let counts = worker.request("hold_count", of("a", "x"));
    subscribed(&server, "x").await;
    assert_eq!(
        worker.lock("b", "y", None).await,
        Ok(1),
        "other owners go on"
    );
    other.unlock("z", "x").await.unwrap();
    assert_eq!(soon(waits).await.outcome, Ok(json!({"count": 1})));
    assert_eq!(soon(unlocks).await.outcome, Ok(json!({"count": 0})));
    assert_eq!(soon(counts).await.outcome, Ok(json!({"count": 0})));
}

#[tokio::test]
async fn questions_and_force_unlock_need_no_owner() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    let ttl = async |name| {
        worker.call("ttl", named(name)).await.unwrap()["ms"]
            .as_i64()
            .unwrap()
    };
    assert_eq!(ttl("x").await, -2);
    worker.lock("a", "x", Some(ms(60_000))).await.unwrap();
    assert!((1..=60_000).contains(&ttl("x").await));
    server.cmd(&["HSET", "bare", "somebody:1", "1"]).await;
    assert_eq!(ttl("bare").await, -1);
    let released = worker.call("force_unlock", named("x")).await.unwrap();
    assert_eq!(released, json!({"released": true}));
    let released = worker.call("force_unlock", named("x")).await.unwrap();
    assert_eq!(released, json!({"released": false}));
    lost(&worker).await;
    assert_eq!(refusal(&worker, "unlock", of("a", "x")).await, "lost");
}

#[tokio::test]
async fn errors_have_their_kinds() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    assert_eq!(refusal(&worker, "unlock", of("a", "x")).await, "not_owner");
    worker.lock("b", "x", None).await.unwrap();
    assert_eq!(refusal(&worker, "unlock", of("a", "x")).await, "not_owner");
    server.cmd(&["SET", "text", "1"]).await;
    assert_eq!(
        refusal(&worker, "lock", of("a", "text")).await,
        "wrong_type"
    );
    assert_eq!(refusal(&worker, "lock", of("a", "")).await, "invalid");
    for lease in [json!(0), json!(-1), json!(u64::MAX)] {
        let fields = with(of("a", "y"), "lease_ms", lease);
        assert_eq!(refusal(&worker, "lock", fields).await, "invalid");
    }
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let fields = with(of("a", "y"), "wait_ms", 0);
    assert_eq!(refusal(&worker, "try_lock", fields).await, "refused");
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(worker.unlock("b", "x").await, Ok(0));
}

#[tokio::test]
async fn other_kinds_and_requests_are_unsupported() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    let missing = LockKind::ALL
        .iter()
        .filter(|kind| !kinds::RUST.contains(kind));
    for kind in missing.map(|kind| kind.word()).chain(["red", "dance"]) {
        let fields = with(of("a", "x"), "kind", kind);
        assert_eq!(refusal(&worker, "lock", fields).await, "unsupported");
    }
    let red = json!({"owner": "a", "kind": "red", "name": ["x"]});
    assert_eq!(refusal(&worker, "lock", red).await, "unsupported");
    for op in ["drain_permits", "dance"] {
        assert_eq!(
            refusal(&worker, op, json!({"name": "x"})).await,
            "unsupported"
        );
    }
    clean(&server).await;
}

#[tokio::test]
async fn campaigns_mix_the_kinds_that_the_worker_has_and_no_others() {
    let server = RedisServer::start();
    let mut listed = kinds::RUST.to_vec();
    listed.sort_unstable();
    assert_eq!(open(&server).await.kinds().await, listed);
}

/// A lock of a kind, on names that locks of no other kind have.
fn of_kind(owner: &str, kind: LockKind) -> Value {
    let name = format!("{kind}{}{kind}:2", LockKind::BETWEEN);
    let name = kind
        .names(&name)
        .take(2)
        .collect::<Vec<_>>()
        .join(LockKind::BETWEEN);
    json!({"owner": owner, "kind": kind.word(), "name": kind.called(&name)})
}

#[tokio::test]
async fn each_kind_is_taken_entered_asked_for_and_given_back() {
    let server = RedisServer::start();
    let (worker, other) = (open(&server).await, open(&server).await);
    for kind in kinds::RUST {
        let word = kind.word();
        let of = |owner| of_kind(owner, *kind);
        let tries = |owner| with(of(owner), "wait_ms", 0);
        let ask = async |op, fields| worker.call(op, fields).await.expect(word);
        let got = ask("lock", of("a")).await;
        assert_eq!(got["count"], 1, "{kind}");
        assert_eq!(got["token"].is_u64(), *kind == LockKind::Fenced, "{kind}");
        let again = ask("try_lock", tries("a")).await;
        assert_eq!(
            (&again["count"], &again["token"]),
            (&json!(2), &got["token"])
        );
        assert_eq!(ask("is_held", of("a")).await["held"], true);
        assert_eq!(ask("is_held", of("b")).await["held"], false);
        assert_eq!(ask("is_locked", of("b")).await["locked"], true);
        assert!(ask("ttl", of("b")).await["ms"].as_i64() > Some(0), "{kind}");
        let shared = *kind == LockKind::Read;
        for worker in [&worker, &other] {
            let tried = worker.call("try_lock", tries("b")).await.expect(word);
            assert_eq!(tried["acquired"], shared, "{kind}");
        }
        for left in [1, 0] {
            assert_eq!(ask("unlock", of("a")).await["count"], left, "{kind}");
        }
        for worker in [&worker, &other].into_iter().filter(|_| shared) {
            worker.call("unlock", of("b")).await.expect(word);
        }
        assert_eq!(ask("is_locked", of("a")).await["locked"], false, "{kind}");
    }
}

#[tokio::test]
async fn a_lost_hold_of_each_kind_is_reported_with_its_kind() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    for kind in kinds::RUST {
        let word = kind.word();
        let fields = with(of_kind("a", *kind), "lease_ms", 200);
        worker.call("lock", fields).await.expect(word);
    }
    let all = kinds::RUST.len();
    eventually("all are reported", LONG, async || {
        worker.lost().len() == all
    })
    .await;
    for event in worker.lost() {
        assert!(event.name.starts_with(&event.kind), "{event:?}");
    }
}

#[tokio::test]
async fn each_kind_measures_itself() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    for kind in kinds::RUST {
        let word = kind.word();
        let plan = json!({"kind": kind.word(), "prefix": format!("{kind}:"), "tasks": 2, "ms": 50});
        let pairs = worker.call("bench_pairs", plan).await.expect(word);
        assert!(pairs["pairs"].as_u64() > Some(1), "{kind}: {pairs}");
        let plan = json!({"kind": kind.word(), "name": of_kind("", *kind)["name"], "tasks": 3, "ms": 100,
            "hold_us": 100, "pause_us": 100});
        let measured = worker.call("bench_contended", plan).await.expect(word);
        assert!(
            measured["sections"].as_u64() > Some(2),
            "{kind}: {measured}"
        );
        assert_eq!(measured["overlaps"], 0, "{kind}: {measured}");
    }
}

#[tokio::test]
async fn a_line_that_is_no_request_is_answered_without_an_id() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    let lines = [
        "nonsense",
        "",
        "[]",
        r#"{"op":"lock"}"#,
        r#"{"id":"7","op":"shutdown"}"#,
        r#"{"id":7}"#,
        r#"{"id":7,"op":"lock","kind":"lock","name":"x"}"#,
        r#"{"id":7,"op":"lock","owner":"a","kind":"lock","name":3}"#,
        r#"{"id":7,"op":"try_lock","owner":"a","kind":"lock","name":"x"}"#,
        r#"{"id":7,"op":"lock","owner":"a","kind":"lock","name":"x","lease_ms":"long"}"#,
    ];
    for line in lines {
        worker.send_line(line);
    }
    eventually("all are answered", LONG, async || {
        worker.strays().len() == lines.len()
    })
    .await;
    for stray in worker.strays() {
        let answer: Value = serde_json::from_str(&stray).unwrap();
        assert_eq!(answer["id"], Value::Null, "{stray}");
        assert_eq!(answer["error"]["kind"], "bad_request", "{stray}");
    }
    assert_eq!(
        worker.lock("a", "x", None).await,
        Ok(1),
        "nothing else has happened"
    );
}

#[tokio::test]
async fn a_lost_hold_is_reported_once() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    worker.lock("a", "x", Some(ms(300))).await.unwrap();
    worker.lock("a", "x", Some(ms(200))).await.unwrap();
    worker.lock("a", "kept", None).await.unwrap();
    let before = now_ns();
    lost(&worker).await;
    let event = &worker.lost()[0];
    assert_eq!(
        (&*event.owner, &*event.kind, &*event.name),
        ("a", "lock", "x")
    );
    assert!(event.t >= before, "its time is that of the loss");
    assert!(!event.reason.is_empty());
    assert_eq!(refusal(&worker, "unlock", of("a", "x")).await, "lost");
    assert_eq!(refusal(&worker, "unlock", of("a", "x")).await, "lost");
    assert_eq!(refusal(&worker, "unlock", of("a", "x")).await, "not_owner");
    assert_eq!(worker.lock("a", "x", None).await, Ok(1), "a fresh hold");
    assert_eq!(worker.unlock("a", "x").await, Ok(0));
    assert_eq!(worker.unlock("a", "kept").await, Ok(0));
    assert_eq!(worker.lost().len(), 1);
}

/// The level that is asked for counts as held until it is answered, and nobody has it yet.
#[tokio::test]
async fn a_reader_that_loses_a_level_it_only_asks_for_is_reported() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let worker = open_at(&proxy.url()).await;
    let read = |owner| json!({"owner": owner, "kind": "read", "name": "x"});
    worker.call("lock", read("other")).await.unwrap();
    let first = with(read("a"), "lease_ms", 300);
    let first = worker.answer("lock", first).await;
    first.outcome.unwrap();
    let asks = Match::key("5000");
    let unanswered = proxy.inject(Fault::SwallowReply).on(asks).arm();
    let second = worker.request("lock", with(read("a"), "lease_ms", 5000));
    eventually("it is asked for", LONG, async || unanswered.fired() == 1).await;
    let ends = first.t_ret + 300_000_000;
    eventually("the first is over", LONG, async || now_ns() > ends).await;
    server.cmd(&["DEL", "x"]).await;
    let is_lost = |owner: &str| worker.lost().into_iter().find(|lost| lost.owner == owner);
    eventually("both are lost", LONG, async || {
        is_lost("other").is_some() && is_lost("a").is_some()
    })
    .await;
    let answered = soon(second).await;
    assert_eq!(answered.outcome.unwrap_err().kind, "lost");
    let event = is_lost("a").unwrap();
    assert!(event.t < answered.t_ret, "the event waited for the answer");
}

#[tokio::test]
async fn an_unreachable_server_is_reported_as_such() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let worker = Worker::rust();
    let fields =
        json!({"url": proxy.url(), "command_timeout_ms": 200, "unavailable_after_ms": 300});
    worker.call("open", fields).await.unwrap();
    server.kill();
    assert_eq!(refusal(&worker, "lock", of("a", "x")).await, "unavailable");
    assert_eq!(
        refusal(&worker, "is_locked", named("x")).await,
        "unavailable"
    );
}

#[tokio::test]
async fn a_blocked_runtime_answers_afterwards_and_is_not_deaf() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    worker.lock("a", "kept", None).await.unwrap();
    worker.lock("a", "short", Some(ms(200))).await.unwrap();
    let blocked = worker.request("block_runtime", json!({"ms": 2000}));
    let behind = worker.request("lock", of("b", "y"));
    lost(&worker).await;
    let event = worker.lost().remove(0);
    let unblocked = soon(blocked).await;
    assert!(unblocked.outcome.is_ok());
    assert!(unblocked.t_ret - unblocked.t_inv >= 2_000_000_000);
    assert!(
        event.t < unblocked.t_ret,
        "the event did not wait for the runtime"
    );
    assert_eq!(event.name, "short");
    assert!(soon(behind).await.t_ret >= unblocked.t_ret - 500_000_000);
    assert_eq!(worker.unlock("a", "kept").await, Ok(0), "renewed meanwhile");
}

#[tokio::test]
async fn benches_count_what_they_did() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    let plan = json!({"kind": "lock", "prefix": "own:", "tasks": 3, "ms": 200});
    let pairs = worker.call("bench_pairs", plan).await.unwrap();
    assert!(pairs["pairs"].as_u64().unwrap() >= 3, "{pairs}");
    assert!(
        pairs["p99_us"].as_u64() >= pairs["p50_us"].as_u64(),
        "{pairs}"
    );
    let plan = json!({"kind": "lock", "name": "one", "tasks": 3, "ms": 200,
        "hold_us": 1000, "pause_us": 2000, "busy": true});
    let measured = worker.call("bench_contended", plan).await.unwrap();
    assert!(measured["sections"].as_u64().unwrap() >= 3, "{measured}");
    assert_eq!(measured["overlaps"], 0, "{measured}");
    assert!(measured["cross"].as_f64().unwrap() > 0.0, "{measured}");
    for field in ["handoff_p50_us", "handoff_p99_us", "worst_wait_ms"] {
        assert!(measured[field].is_u64(), "{measured}");
    }
}

#[tokio::test]
async fn shutdown_gives_back_ends_waits_and_closes() {
    let server = RedisServer::start();
    let (worker, other) = (open(&server).await, open(&server).await);
    assert_eq!(
        refusal(&Worker::rust(), "lock", of("a", "x")).await,
        "closed"
    );
    other.lock("z", "busy", None).await.unwrap();
    worker.lock("a", "x", None).await.unwrap();
    worker.lock("a", "x", None).await.unwrap();
    let waiting = worker.request("lock", of("b", "busy"));
    subscribed(&server, "busy").await;
    soon(worker.call("shutdown", Value::Null)).await.unwrap();
    assert!(!server.exists("x").await, "given back before the answer");
    let waited = soon(waiting).await.outcome.unwrap_err();
    assert_eq!(waited.kind, "closed");
    assert_eq!(refusal(&worker, "lock", of("a", "x")).await, "closed");
    assert_eq!(refusal(&worker, "is_locked", named("x")).await, "closed");
    assert!(worker.lost().is_empty(), "an announcement is no loss");
    eventually("nobody listens any more", LONG, async || {
        server.subscribers(&channel("busy")).await == 0
    })
    .await;
}

#[tokio::test]
async fn the_end_of_the_input_gives_back_and_ends_well() {
    let server = RedisServer::start();
    let worker = open(&server).await;
    worker.lock("a", "x", None).await.unwrap();
    worker.lock("b", "y", Some(ms(60_000))).await.unwrap();
    worker.close_stdin();
    let status = worker.wait_exit(LONG).await;
    assert_eq!(status.code(), Some(0));
    gone(&server, "x").await;
    gone(&server, "y").await;
}
