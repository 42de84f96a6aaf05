//! Renewals of one node go together, and each is answered for itself.

use std::time::{Duration, Instant};

use watchlock::{Client, LockGuard, LostReason};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;

use crate::common::{LONG, SHORT, ms, soon};

/// Locks that the node `owner` has.
async fn held_at(
    cluster: &RedisCluster,
    client: &Client,
    owner: usize,
    count: usize,
) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for number in 0.. {
        let name = format!("job:{number}");
        if cluster.owner_of(&name).await == owner {
            guards.push(client.get_lock(&name).lock().await.expect("it is free"));
        }
        if guards.len() == count {
            break;
        }
    }
    guards
}

async fn stay_held(guards: &[LockGuard], time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        for guard in guards {
            guard
                .check()
                .expect("the trouble of another hold is not its own");
        }
        tokio::time::sleep(ms(20)).await;
    }
}

/// One of them is sent to a node that stands still, one has no key any more, one is of another type by now.
#[tokio::test]
async fn the_trouble_of_one_hold_is_not_that_of_its_neighbours() {
    let cluster = RedisCluster::with(3, 0, |options| {
        options.config("cluster-require-full-coverage", "no")
    });
    let cluster = cluster.await;
    let client = Client::builder(&cluster.url()).watchdog_lease(SHORT);
    let client = client.connect().await.unwrap();
    let mut guards = held_at(&cluster, &client, 0, 40).await;
    let (moved, gone, other) = (guards.remove(30), guards.remove(20), guards.remove(10));
    let node = cluster.node(0);
    node.cmd(&["DEL", gone.name()]).await;
    node.cmd(&["DEL", other.name()]).await;
    node.cmd(&["SET", other.name(), "a text"]).await;
    let slot = cluster.slot_of(moved.name()).await;
    cluster.node(1).freeze();
    node.cmd(&["DEL", moved.name()]).await;
    cluster.points_to(0, slot, 1).await;
    stay_held(&guards, SHORT * 3).await;
    assert_eq!(soon(gone.lost()).await, LostReason::Missing);
    assert_eq!(soon(other.lost()).await, LostReason::Missing);
    soon(moved.lost()).await;
    cluster.node(1).resume();
}

/// Their texts are sent, and nobody is lost, however often that happens.
#[tokio::test]
async fn a_node_that_forgets_scripts_costs_no_hold() {
    let cluster = RedisCluster::masters().await;
    let client = Client::builder(&cluster.url()).watchdog_lease(SHORT);
    let client = client.connect().await.unwrap();
    let guards = held_at(&cluster, &client, 0, 30).await;
    let end = Instant::now() + SHORT * 3;
    while Instant::now() < end {
        cluster.node(0).cmd(&["SCRIPT", "FLUSH"]).await;
        stay_held(&guards, ms(20)).await;
    }
}

/// The first call that is refused sends the text; the others go again behind it.
#[tokio::test]
async fn a_node_that_forgot_a_script_is_told_its_text_once() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let guards = held_at(&cluster, &client, 0, 30).await;
    let node = cluster.node(0);
    // The keeper asks for them when it first connects there.
    eventually("it asks", LONG, async || node.calls_of("eval").await > 0).await;
    node.cmd(&["SCRIPT", "FLUSH"]).await;
    node.reset_calls().await;
    node.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let known = guards.len() as u64 - 1;
    eventually("all are asked for", LONG, async || {
        node.calls_of("evalsha").await > known * 2
    })
    .await;
    assert_eq!(node.calls_of("eval").await, 1);
}

/// A long lease is renewed by nobody: that a connection to its node broke is the only reason to ask for it.
#[tokio::test]
async fn holds_are_asked_for_at_the_node_whose_connections_broke() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    for owner in 0..3 {
        let mut number = 0;
        while cluster.owner_of(&format!("long:{number}")).await != owner {
            number += 1;
        }
        let name = format!("long:{number}");
        let guard = client
            .get_lock(&name)
            .lock_with_lease(LONG * 20)
            .await
            .unwrap();
        let node = cluster.node(owner);
        node.cmd(&["DEL", &name]).await;
        guard.check().unwrap();
        node.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    }
}
