//! OOM, MISCONF, NOREPLICAS and READONLY: the server answers, and does not write.

use watchlock::{Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{MINUTE, Story, one_try, patient};
use crate::common::{LONG, SHORT, clean, connect_short, count, soon};

/// A port on which nobody listens.
const NOBODY: &str = "1";

fn is_refused(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused {
            transient: true,
            ..
        }
    )
}

#[tokio::test]
async fn misconf_is_refused_and_passes() {
    let server = RedisServer::options()
        .config("enable-protected-configs", "yes")
        .config("save", "3600 1")
        .start();
    let story = Story::begin(patient(&server.url()).await).await;
    let gone = server.dir().join("gone");
    std::fs::create_dir(&gone).unwrap();
    server
        .cmd(&["CONFIG", "SET", "dir", gone.to_str().unwrap()])
        .await;
    std::fs::remove_dir(&gone).unwrap();
    let saved = async |status: &str| {
        let _ = server.try_cmd(&["BGSAVE"]).await;
        server
            .info("persistence", "rdb_last_bgsave_status")
            .await
            .as_deref()
            == Some(status)
    };
    eventually("saving fails", LONG, async || saved("err").await).await;
    let waiting = story.suffer(is_refused).await;
    assert!(!server.exists("new").await);
    server
        .cmd(&["CONFIG", "SET", "dir", server.dir().to_str().unwrap()])
        .await;
    eventually("saving works", LONG, async || saved("ok").await).await;
    waiting.recover(&server).await;
}

#[tokio::test]
async fn noreplicas_is_refused_and_passes() {
    let server = RedisServer::start();
    let story = Story::begin(patient(&server.url()).await).await;
    server
        .cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    let waiting = story.suffer(is_refused).await;
    assert!(!server.exists("new").await);
    server
        .cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;
    waiting.recover(&server).await;
}

#[tokio::test]
async fn readonly_is_refused_and_passes_with_a_new_connection() {
    let server = RedisServer::start();
    let story = Story::begin(patient(&server.url()).await).await;
    server.cmd(&["REPLICAOF", "127.0.0.1", NOBODY]).await;
    let connections: u64 = total_connections(&server).await;
    let waiting = story.suffer(is_refused).await;
    assert!(!server.exists("new").await);
    assert!(
        total_connections(&server).await > connections,
        "the master may be elsewhere"
    );
    server.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    waiting.recover(&server).await;
}

async fn total_connections(server: &RedisServer) -> u64 {
    let total = server.info("stats", "total_connections_received").await;
    total.unwrap().parse().unwrap()
}

/// What is refused for longer than a lease costs the hold, by its own clock.
#[tokio::test]
async fn i8_a_hold_whose_renewals_are_refused_is_lost_at_its_end() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("held").lock().await.unwrap();
    server
        .cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(guard.unlock().await.unwrap_err().is_lost());
    server
        .cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;
    soon(client.get_lock("held").lock())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}

/// F9: nothing new fits in, and what is there lives on and ends in order.
#[tokio::test]
async fn f9_out_of_memory_only_new_holds_are_refused() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let lock = client.get_lock("held");
    let guard = lock.lock().await.unwrap();
    let partial = guard.reenter(Lease::Watchdog).await.unwrap();
    let fixed = client.get_lock("fixed").lock_for(MINUTE).await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;

    let refused = one_try(&client, "new").await.unwrap_err();
    assert!(is_refused(&refused), "{refused:?}");
    assert!(!server.exists("new").await);
    let renewals = server.calls_of("pexpire").await;
    eventually("renewed", LONG, async || {
        server.calls_of("pexpire").await >= renewals + 6
    })
    .await;
    // The count cannot be written; the level is there all the same.
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(inner.hold_count(), 3);
    inner.unlock().await.unwrap();
    partial.unlock().await.unwrap();
    assert_eq!(guard.hold_count(), 1);
    assert!(count(&server, "held").await >= 1);
    fixed.extend(MINUTE * 2).await.unwrap();
    assert!(server.pttl("fixed").await > 60_000);
    fixed.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert!(server.keys().await.is_empty());

    let lock = client.get_lock("new");
    let waiter = tokio::spawn(async move { lock.lock().await });
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// `lock` puts up with refusals for so long and not longer.
#[tokio::test]
async fn a_lasting_refusal_ends_the_wait_with_what_the_server_said() {
    let server = RedisServer::start();
    let client = watchlock::Client::builder(&server.url()).unavailable_after(SHORT);
    let client = client.connect().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let began = std::time::Instant::now();
    let refused = soon(client.get_lock("full").lock()).await.unwrap_err();
    assert!(is_refused(&refused), "{refused:?}");
    assert!(began.elapsed() >= SHORT);
    let said = std::error::Error::source(&refused).unwrap().to_string();
    assert!(said.contains("OOM") || said.contains("maxmemory"), "{said}");
}

/// However long it waited for a stranger before: its patience begins with the trouble.
#[tokio::test]
async fn patience_with_a_server_begins_when_the_trouble_does() {
    let patience = SHORT * 3;
    let server = RedisServer::start();
    let client = crate::common::without_polls(&server).unavailable_after(patience);
    let client = client.connect().await.unwrap();
    let stranger = crate::common::connect(&server).await;
    let held = stranger.get_lock("long").lock().await.unwrap();
    let lock = client.get_lock("long");
    let waiter = tokio::spawn(async move { lock.lock().await });
    crate::common::subscribed(&server, "long").await;
    // A fixed lease tells when more than its patience has passed.
    let clock = stranger.get_lock("clock").lock_for(patience + SHORT).await;
    let clock = clock.unwrap();
    clock.lost().await;
    drop(clock);
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    held.unlock().await.unwrap();
    eventually("it was refused and tried again", LONG, async || {
        let refused = server.info("errorstats", "errorstat_OOM").await;
        refused.is_some_and(|refused| refused != "count=1")
    })
    .await;
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let guard = soon(waiter).await.unwrap();
    guard
        .expect("one refused try is no outage")
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}
