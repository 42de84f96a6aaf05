//! Kinds `red` and `red_fenced`: a worker that is opened with the `urls` of independent servers.

use serde_json::{Value, json};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use crate::common::{LONG, clean, ms};
use crate::{open, refusal, with};

async fn answered(worker: &Worker, op: &str, fields: Value) -> Value {
    let asked = format!("{op} {fields}");
    let answer = worker.call(op, fields).await;
    answer.unwrap_or_else(|error| panic!("{asked}: {error}"))
}

fn five() -> Vec<RedisServer> {
    (0..5).map(|_| RedisServer::start()).collect()
}

fn opening(servers: &[RedisServer]) -> Value {
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    json!({"urls": urls, "restart_delay_ms": 0, "watchdog_ms": 2_000})
}

async fn opened(servers: &[RedisServer]) -> Worker {
    let worker = Worker::rust();
    answered(&worker, "open", opening(servers)).await;
    worker
}

fn of(owner: &str) -> Value {
    json!({"owner": owner, "kind": "red", "name": ["x"]})
}

#[tokio::test]
async fn a_red_lock_is_held_on_all_servers() {
    let servers = five();
    let (worker, other) = (opened(&servers).await, opened(&servers).await);
    assert_eq!(answered(&worker, "lock", of("a")).await["count"], 1);
    let again = answered(&worker, "try_lock", with(of("a"), "wait_ms", 0)).await;
    assert_eq!(
        (&again["acquired"], &again["count"]),
        (&json!(true), &json!(2))
    );
    for client in [&worker, &other] {
        let busy = answered(client, "try_lock", with(of("b"), "wait_ms", 0)).await;
        assert_eq!(busy["acquired"], false);
    }
    assert_eq!(answered(&worker, "hold_count", of("a")).await["count"], 2);
    assert_eq!(answered(&other, "is_locked", of("b")).await["locked"], true);
    servers[0].kill();
    servers[1].kill();
    let busy = answered(&other, "try_lock", with(of("b"), "wait_ms", 0)).await;
    assert_eq!(busy["acquired"], false, "three say so");
    assert_eq!(answered(&worker, "unlock", of("a")).await["count"], 1);
    assert_eq!(answered(&worker, "unlock", of("a")).await["count"], 0);
    assert_eq!(refusal(&worker, "unlock", of("a")).await, "not_owner");
    servers[2].kill();
    let wait = with(of("b"), "wait_ms", 0);
    assert_eq!(refusal(&other, "try_lock", wait).await, "quorum");
    assert!(worker.lost().is_empty());
}

#[tokio::test]
async fn a_majority_that_dies_is_reported_as_a_loss() {
    let servers = five();
    let worker = opened(&servers).await;
    answered(&worker, "lock", of("a")).await;
    for server in &servers[..3] {
        server.kill();
    }
    eventually("the lost event", LONG, async || !worker.lost().is_empty()).await;
    assert_eq!(worker.events()[0]["name"], json!(["x"]));
    assert_eq!(worker.events()[0]["kind"], "red");
    assert_eq!(refusal(&worker, "unlock", of("a")).await, "lost");
}

#[tokio::test]
async fn tokens_of_a_fenced_one_grow() {
    let servers = five();
    let (worker, other) = (opened(&servers).await, opened(&servers).await);
    let of = |owner: &str| json!({"owner": owner, "kind": "red_fenced", "name": ["x"]});
    let mut last = 0;
    for (round, client) in [&worker, &other, &worker, &other].into_iter().enumerate() {
        let got = answered(client, "lock", of("a")).await;
        let token = got["token"].as_u64().expect("a token");
        assert!(token > last, "{round}: {token} after {last}");
        last = token;
        answered(client, "unlock", of("a")).await;
    }
}

#[tokio::test]
async fn a_list_that_is_no_quorum_is_refused_at_open() {
    let servers = five();
    let replica = RedisServer::options().replica_of(&servers[0]).start();
    replica.synced().await;
    let url = |server: &RedisServer| server.url();
    for urls in [
        vec![],
        vec![url(&servers[0]), url(&servers[1])],
        vec![url(&servers[0]), url(&servers[1]), url(&servers[0])],
        vec![url(&servers[0]), url(&servers[1]), url(&replica)],
    ] {
        let worker = Worker::rust();
        let fields = json!({"urls": urls, "restart_delay_ms": 0});
        assert_eq!(
            refusal(&worker, "open", fields).await,
            "invalid",
            "{urls:?}"
        );
    }
    let worker = opened(&servers).await;
    for names in [json!([]), json!(["x", "y"])] {
        let fields = json!({"owner": "a", "kind": "red", "name": names, "wait_ms": 0});
        assert_eq!(refusal(&worker, "try_lock", fields).await, "invalid");
    }
    let plain = json!({"owner": "a", "kind": "lock", "name": "x", "wait_ms": 0});
    assert_eq!(refusal(&worker, "try_lock", plain).await, "unsupported");
    let single = open(&servers[0]).await;
    assert_eq!(refusal(&single, "lock", of("a")).await, "unsupported");
}

#[tokio::test]
async fn without_a_word_on_it_servers_that_were_just_started_have_no_vote() {
    let servers = five();
    let worker = Worker::rust();
    let mut fields = opening(&servers);
    fields.as_object_mut().unwrap().remove("restart_delay_ms");
    answered(&worker, "open", fields).await;
    let wait = with(of("a"), "wait_ms", 0);
    assert_eq!(refusal(&worker, "try_lock", wait).await, "quorum");
    // 3 s and 2 s.
    let wait = with(of("a"), "wait_ms", u64::try_from(LONG.as_millis()).unwrap());
    assert_eq!(answered(&worker, "try_lock", wait).await["acquired"], true);
    answered(&worker, "unlock", of("a")).await;
    tokio::time::sleep(ms(1)).await;
    for server in &servers {
        clean(server).await;
    }
}
