//! The rights that the documents ask users to grant in a cluster, and what each is for.

use std::time::Duration;

use watchlock::{Client, ClientBuilder, Error};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;

use crate::common::{LONG, SHORT, ms, soon};

const PASSWORD: &str = "secret";

/// The rights of the plain lock's line and of the row for clusters.
fn rights() -> Vec<&'static str> {
    let document = include_str!("../../docs/acl.md");
    let line = |start: &str| {
        let mut lines = document.lines();
        lines.find(|line| line.starts_with(start)).expect("a line")
    };
    let mut rights: Vec<_> = line("ACL SETUSER ").split_whitespace().skip(5).collect();
    // Rights may have a bar of their own, which is escaped.
    let row = line("|cluster|`").trim_start_matches("|cluster|`");
    let cells = row.trim_end_matches("`|").split_once("`|`");
    let (needed, not_needed) = cells.expect("what it needs, and what it does not need");
    rights.extend(needed.split(' '));
    for needless in not_needed.split(' ') {
        rights.retain(|right| *right != needless);
    }
    rights
}

/// A client with all of them but one.
async fn client_without(cluster: &RedisCluster, missing: &str) -> ClientBuilder {
    let password = format!(">{PASSWORD}");
    let rights: Vec<_> = rights()
        .into_iter()
        .map(|right| right.replace("\\|", "|"))
        .collect();
    let less = format!("-{missing}");
    let mut command = vec!["ACL", "SETUSER", "app", "reset", "on", &password];
    command.extend(
        rights
            .iter()
            .map(String::as_str)
            .filter(|right| *right != format!("+{missing}")),
    );
    if !missing.is_empty() {
        command.push(&less);
    }
    for node in cluster.nodes() {
        node.cmd(&command).await;
    }
    let url = cluster.url().replace("//", &format!("//app:{PASSWORD}@"));
    Client::builder(&url)
        .key_prefix("app:")
        .watchdog_lease(SHORT)
}

/// One client has the lock, another waits for it and gets it; at every node.
async fn live(cluster: &RedisCluster, missing: &str) {
    let holder = client_without(cluster, missing)
        .await
        .connect()
        .await
        .unwrap();
    let waiter = client_without(cluster, missing)
        .await
        .connect()
        .await
        .unwrap();
    for name in ["a", "b", "c", "d"] {
        let guard = holder.get_lock(name).lock().await.unwrap();
        let lock = waiter.get_lock(name);
        let waits = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(ms(50)).await;
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
        let guard = soon(waits).await.unwrap().unwrap();
        tokio::time::sleep(SHORT / 2).await;
        guard.unlock().await.unwrap();
    }
    holder.shutdown(Duration::from_secs(5)).await;
    waiter.shutdown(Duration::from_secs(5)).await;
    eventually("nothing is left", LONG, async || {
        cluster.keys().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let cluster = RedisCluster::masters().await;
    live(&cluster, "").await;
    let moved = async || {
        let slot = cluster.slot_of("app:x").await;
        let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
        cluster.begin_move(slot, to).await;
        (slot, to)
    };
    let client = client_without(&cluster, "").await.connect().await.unwrap();
    let (slot, to) = moved().await;
    let guard = client.get_lock("x").lock().await.unwrap();
    cluster.finish_move(slot, to).await;
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn without_sharded_channels_waiters_poll() {
    let cluster = RedisCluster::masters().await;
    for missing in ["spublish", "ssubscribe", "sunsubscribe"] {
        live(&cluster, missing).await;
    }
}

#[tokio::test]
async fn without_the_slots_there_is_no_client() {
    let cluster = RedisCluster::masters().await;
    let client = client_without(&cluster, "cluster|slots")
        .await
        .connect()
        .await;
    assert!(matches!(client, Err(Error::Denied { .. })), "{client:?}");
}

#[tokio::test]
async fn without_asking_a_migration_is_waited_for() {
    let cluster = RedisCluster::masters().await;
    let client = client_without(&cluster, "asking")
        .await
        .connect()
        .await
        .unwrap();
    let slot = cluster.slot_of("app:x").await;
    let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
    cluster.begin_move(slot, to).await;
    let lock = client.get_lock("x");
    let tried = lock.try_lock(ms(300), watchlock::Lease::Watchdog).await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    let waits = tokio::spawn(async move { lock.lock().await });
    cluster.finish_move(slot, to).await;
    soon(waits).await.unwrap().unwrap().unlock().await.unwrap();
}
