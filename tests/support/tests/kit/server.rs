//! The kit's server does what tests rely on.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use watchlock_support::server::{RedisServer, connection};
use watchlock_support::{eventually, process};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_server_is_private_and_can_be_looked_into() {
    let one = RedisServer::start();
    let two = RedisServer::start();
    one.cmd(&["HSET", "lock", "field", "1"]).await;
    one.cmd(&["PEXPIRE", "lock", "30000"]).await;
    assert_eq!(one.keys().await, ["lock"]);
    assert_eq!(one.hash("lock").await["field"], "1");
    assert!((1..=30_000).contains(&one.pttl("lock").await));
    assert_eq!(one.pttl("absent").await, -2);
    assert!(one.exists("lock").await);
    assert!(two.keys().await.is_empty());
    assert!(one.try_cmd(&["GET", "lock"]).await.is_err());
    assert!(RedisServer::version().contains("v="));
}

#[tokio::test]
async fn the_kits_own_connection_is_not_counted() {
    let server = RedisServer::start();
    assert_eq!(server.connections().await, 0);
    let mut client = connection(&server.url()).await;
    assert_eq!(server.connections().await, 1);
    server.reset_calls().await;
    let _: () = redis::cmd("SET")
        .arg("a")
        .arg("b")
        .query_async(&mut client)
        .await
        .unwrap();
    assert_eq!(server.calls_of("set").await, 1);
    drop(client);
    eventually("the client is gone", SOON, async || {
        server.connections().await == 0
    })
    .await;
}

#[tokio::test]
async fn channels_are_seen() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut pubsub = client.get_async_pubsub().await.unwrap();
    pubsub.subscribe("news").await.unwrap();
    assert_eq!(server.channels().await, ["news"]);
    assert_eq!(server.subscribers("news").await, 1);
}

#[tokio::test]
async fn a_restart_without_aof_forgets() {
    let server = RedisServer::start();
    let port = server.port();
    server.cmd(&["SET", "a", "1"]).await;
    server.restart();
    assert_eq!(server.port(), port);
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_restart_with_aof_remembers() {
    let server = RedisServer::options().aof().start();
    server.cmd(&["SET", "a", "1", "PX", "60000"]).await;
    server.kill();
    assert!(server.try_cmd(&["PING"]).await.is_err());
    server.launch();
    server.ready().await;
    assert_eq!(server.keys().await, ["a"]);
    assert!(server.pttl("a").await > 0);
}

#[tokio::test]
async fn a_frozen_server_answers_later() {
    let server = RedisServer::start();
    server.cmd(&["PING"]).await;
    server.freeze();
    let ping = server.cmd(&["PING"]);
    tokio::pin!(ping);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut ping).await;
    assert!(early.is_err());
    server.resume();
    ping.await;
}

#[tokio::test]
async fn a_dropped_server_is_gone_even_when_frozen() {
    let server = RedisServer::start();
    let pid = server.pid();
    server.freeze();
    drop(server);
    assert!(!process::is_alive(pid));
}

#[test]
fn servers_and_workers_die_with_their_owner_even_when_frozen() {
    // The last one is what a terminal that is closed sends to all at once, those that hold the leashes among them.
    for signal in ["-KILL", "-TERM", "-HUP"] {
        // The owner cannot clear away what it leaves.
        let dir = tempfile::tempdir().unwrap();
        let mut owner = Command::new(env!("CARGO_BIN_EXE_kit-child"))
            .arg("owner")
            .env("TMPDIR", dir.path())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(owner.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let pids: [u32; 2] = serde_json::from_str(&line).unwrap();
        assert!(pids.into_iter().all(process::is_alive));
        process::freeze(pids[0]);
        if signal == "-KILL" {
            owner.kill().unwrap();
        } else {
            let group = format!("-{}", owner.id());
            let killed = Command::new("kill").args([signal, "--", &group]).status();
            assert!(killed.unwrap().success());
        }
        owner.wait().unwrap();
        watchlock_support::wait_until(&format!("both are gone by {signal}"), SOON, || {
            !pids.into_iter().any(process::is_alive)
        });
    }
}

#[tokio::test]
async fn a_replica_follows() {
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    replica.synced().await;
    master.cmd(&["SET", "a", "1"]).await;
    eventually("the key arrives", SOON, async || replica.exists("a").await).await;
    let refused = replica.try_cmd(&["SET", "a", "2"]).await.unwrap_err();
    assert_eq!(refused.code(), Some("READONLY"));
}

#[tokio::test]
async fn passwords_sockets_and_options() {
    let server = RedisServer::options()
        .password("secret1")
        .unix_socket()
        .config("maxmemory", "20mb")
        .start();
    let memory: (String, String) = server.query(&["CONFIG", "GET", "maxmemory"]).await;
    assert_eq!(memory.1, "20971520");
    let stranger = format!("redis://127.0.0.1:{}/", server.port());
    let mut client = connection(&stranger).await;
    let refused = redis::cmd("PING")
        .query_async::<String>(&mut client)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some("NOAUTH"));
    connection(&server.url()).await;
    assert!(server.socket_url().ends_with("redis.sock"));
}

#[test]
fn works_outside_a_runtime() {
    let server = RedisServer::start();
    server.restart();
    assert!(server.log().contains("Ready to accept connections"));
}
