//! Kinds of lock with several keys, while their slot migrates: no node runs their commands then, and callers wait.

use std::time::{Duration, Instant};

use watchlock::{Client, ClientBuilder, Error, Lock};
use watchlock_support::cluster::RedisCluster;

use crate::common::{LONG, SHORT, ms, soon};
use crate::moving::{NAME, to_and_fro};
use crate::scene::Load;

/// A client whose `unavailable_after` is longer than a move takes.
fn patient(cluster: &RedisCluster) -> ClientBuilder {
    let builder = Client::builder(&cluster.url()).unavailable_after(LONG);
    builder.command_timeout(Duration::from_secs(5))
}

async fn a_move_is_waited_for(lock: impl Fn(&Client) -> Box<dyn Lock>) {
    let cluster = RedisCluster::masters().await;
    let mut locks = Vec::new();
    for _ in 0..2 {
        let client = patient(&cluster).connect().await.unwrap();
        locks.extend([lock(&client), lock(&client)]);
    }
    let load = Load::start(locks);
    to_and_fro(&cluster, 4, ms(150)).await;
    let seen = load.stop().await;
    assert_eq!((seen.overlaps, seen.errors), (0, Vec::new()));
    assert!(seen.sections > 10, "{:?}", seen.sections);
}

#[tokio::test]
async fn a_fenced_lock_waits_for_a_move() {
    a_move_is_waited_for(|client| Box::new(client.get_fenced_lock(NAME))).await;
}

#[tokio::test]
async fn a_fair_lock_waits_for_a_move() {
    a_move_is_waited_for(|client| Box::new(client.get_fair_lock(NAME))).await;
}

#[tokio::test]
async fn a_write_lock_waits_for_a_move() {
    a_move_is_waited_for(|client| {
        let lock = client.get_read_write_lock(NAME);
        Box::new(lock.write_lock())
    })
    .await;
}

/// The client asks for a hold whose keys are at two nodes with calls of one key.
#[tokio::test]
async fn a_read_hold_outlives_a_move_that_takes_longer_than_its_lease() {
    for lock_goes_first in [true, false] {
        let cluster = RedisCluster::masters().await;
        let builder = Client::builder(&cluster.url()).watchdog_lease(SHORT);
        let client = builder.connect().await.unwrap();
        let read = client.get_read_write_lock(NAME).read_lock();
        let guard = read.lock().await.unwrap();
        let node = cluster.server_of(NAME).await;
        let keys = node.keys().await;
        let timeout = keys.iter().find(|key| key.contains("rwlock_timeout"));
        let timeout = timeout.expect("a read hold has a timeout key");
        let slot = cluster.slot_of(NAME).await;
        let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
        cluster.begin_move(slot, to).await;
        let first = if lock_goes_first { NAME } else { timeout };
        cluster.move_key(first, to).await;
        let end = Instant::now() + SHORT * 2;
        while Instant::now() < end {
            guard.check().unwrap();
            tokio::time::sleep(ms(50)).await;
        }
        cluster.move_keys(slot, to).await;
        cluster.finish_move(slot, to).await;
        for key in [NAME, timeout] {
            let left = cluster.node(to).pttl(key).await;
            assert!(left > 0, "{key}: {left}");
        }
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
        assert!(cluster.keys().await.is_empty());
    }
}

/// The wait ends as a lock that is not available, not as another error.
#[tokio::test]
async fn a_try_during_a_move_says_unavailable() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let lock = client.get_fenced_lock(NAME);
    let slot = cluster.slot_of(NAME).await;
    let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
    cluster.begin_move(slot, to).await;
    let tried = lock.try_lock(ms(300), watchlock::Lease::Watchdog).await;
    assert!(matches!(&tried, Err(error @ Error::Unavailable { .. }) if error.is_transient()));
    let waits = tokio::spawn(async move { lock.lock().await });
    cluster.finish_move(slot, to).await;
    soon(waits).await.unwrap().unwrap().unlock().await.unwrap();
}
