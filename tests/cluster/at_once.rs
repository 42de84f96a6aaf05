//! Slots that move all at once, as on Valkey 9: a slot is never at two nodes, so there is no `ASK` and no `TRYAGAIN`.
//! From one moment on its node says `MOVED`, and ends the subscriptions.
//!
//! Without such a server these tests print that. `make cluster` runs them on one.

use std::time::Duration;

use watchlock::{Backoff, Client, Lock};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;

use crate::common::{LONG, SHORT, channel, ms, soon};
use crate::moving::NAME;
use crate::scene::Load;

/// A cluster, if its nodes can do it.
async fn cluster() -> Option<RedisCluster> {
    let cluster = RedisCluster::masters().await;
    let can = cluster.moves_at_once().await;
    if !can {
        println!("SKIPPED: this server does not move slots at once");
    }
    can.then_some(cluster)
}

async fn next(cluster: &RedisCluster) -> (u16, usize) {
    let slot = cluster.slot_of(NAME).await;
    let owner = cluster.owner(slot).await.expect("an owner");
    (slot, (owner + 1) % 3)
}

async fn nothing_fails(lock: impl Fn(&Client) -> Box<dyn Lock>) {
    let Some(cluster) = cluster().await else {
        return;
    };
    let mut locks = Vec::new();
    for _ in 0..2 {
        let client = Client::connect(&cluster.url()).await.unwrap();
        locks.extend([lock(&client), lock(&client)]);
    }
    let load = Load::start(locks);
    for _ in 0..6 {
        let (slot, to) = next(&cluster).await;
        cluster.move_at_once(slot, to).await;
        tokio::time::sleep(ms(200)).await;
    }
    let seen = load.stop().await;
    assert_eq!((seen.overlaps, seen.errors), (0, Vec::new()));
    assert!(seen.sections > 20, "{:?}", seen.sections);
    assert!(seen.longest < Duration::from_secs(5), "{:?}", seen.longest);
}

#[tokio::test]
async fn a_plain_lock_works_while_its_slot_moves_at_once() {
    nothing_fails(|client| Box::new(client.get_lock(NAME))).await;
}

/// Kinds with several keys need not wait here: their keys are never split.
#[tokio::test]
async fn locks_of_several_keys_work_while_their_slot_moves_at_once() {
    nothing_fails(|client| Box::new(client.get_fenced_lock(NAME))).await;
    nothing_fails(|client| Box::new(client.get_fair_lock(NAME))).await;
    nothing_fails(|client| Box::new(client.get_read_write_lock(NAME).write_lock())).await;
}

#[tokio::test]
async fn a_hold_and_its_waiter_go_along_when_their_slot_moves_at_once() {
    let Some(cluster) = cluster().await else {
        return;
    };
    let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = || Client::builder(&cluster.url()).backoff(minute);
    let holder = builder().watchdog_lease(SHORT).connect().await.unwrap();
    let waiter = builder().connect().await.unwrap();
    let guard = holder.get_lock(NAME).lock().await.unwrap();
    let lock = waiter.get_lock(NAME);
    let waits = tokio::spawn(async move { lock.lock().await });
    let channel = channel(NAME);
    let listens = async |node: usize| {
        eventually("somebody listens", LONG, async || {
            cluster.node(node).subscribers(&channel).await > 0
        })
        .await;
    };
    let (slot, to) = next(&cluster).await;
    listens((to + 2) % 3).await;
    cluster.move_at_once(slot, to).await;
    // No poll and no command of the waiter notices it, only the end of its subscription.
    listens(to).await;
    tokio::time::sleep(SHORT * 2).await;
    guard.check().expect("renewed at the new node");
    guard.unlock().await.unwrap();
    soon(waits).await.unwrap().unwrap().unlock().await.unwrap();
}
