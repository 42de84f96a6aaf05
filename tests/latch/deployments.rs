//! Clusters, and masters that sentinels watch.

use watchlock::{Client, ClientBuilder, CountDownLatch, Error};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};

use crate::common::{LONG, ms, soon};
use crate::{CHANNEL, NAME, waits};

/// Latches of two clients.
async fn of_two(cluster: &RedisCluster) -> [CountDownLatch; 2] {
    let connect = async || {
        let builder = Client::builder(&cluster.url()).unavailable_after(LONG);
        let client = builder.connect().await.expect("a client");
        client.get_count_down_latch(NAME)
    };
    [connect().await, connect().await]
}

async fn listens(cluster: &RedisCluster, node: usize) {
    eventually("it listens there", LONG, async || {
        let channels = cluster.node(node).sharded_channels().await;
        channels.iter().any(|channel| channel == CHANNEL)
    })
    .await;
}

#[tokio::test]
async fn a_latch_works_in_a_cluster() {
    let cluster = RedisCluster::masters().await;
    let [one, other] = of_two(&cluster).await;
    one.try_set_count(2).await.unwrap();
    let waiters = [waits(&one), waits(&other)];
    listens(&cluster, cluster.owner_of(NAME).await).await;
    assert_eq!(other.count_down().await.unwrap(), 1);
    assert_eq!(one.count_down().await.unwrap(), 0);
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap();
    }
    assert!(!one.delete().await.unwrap());
}

/// Redisson's commands fail there, too.
#[tokio::test]
async fn in_a_cluster_names_with_braces_are_refused() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    for name in ["{a}", "a:{b}:c", "a}b", "{}x", "a{"] {
        let latch = client.get_count_down_latch(name);
        for refused in [
            soon(latch.wait()).await,
            latch.try_set_count(1).await.map(drop),
            latch.count_down().await.map(drop),
            latch.count().await.map(drop),
            latch.delete().await.map(drop),
        ] {
            assert!(matches!(refused, Err(Error::CrossSlot { .. })), "{name}");
        }
    }
    assert!(cluster.keys().await.is_empty());
}

#[tokio::test]
async fn those_who_wait_follow_the_slot() {
    let cluster = RedisCluster::masters().await;
    let [one, other] = of_two(&cluster).await;
    one.try_set_count(3).await.unwrap();
    other.count_down().await.unwrap();
    let waiter = waits(&one);
    let from = cluster.owner_of(NAME).await;
    listens(&cluster, from).await;
    let slot = cluster.slot_of(NAME).await;
    let to = (from + 1) % 3;
    cluster.move_slot(slot, to).await;
    assert_eq!(other.count_down().await.unwrap(), 1);
    listens(&cluster, to).await;
    assert!(!waiter.is_finished());
    assert_eq!(other.count_down().await.unwrap(), 0);
    soon(waiter).await.unwrap().unwrap();
}

/// No node has both keys then, so the count is repeated until the slot has moved.
#[tokio::test]
async fn a_count_waits_for_a_slot_that_migrates() {
    let cluster = RedisCluster::masters().await;
    let [one, other] = of_two(&cluster).await;
    one.try_set_count(3).await.unwrap();
    other.count_down().await.unwrap();
    let from = cluster.owner_of(NAME).await;
    let (slot, to) = (cluster.slot_of(NAME).await, (from + 1) % 3);
    cluster.begin_move(slot, to).await;
    cluster.move_key(NAME, to).await;
    assert_eq!(one.count().await.unwrap(), 2, "one key is enough");
    let waiter = waits(&one);
    let counts = tokio::spawn(async move { other.count_down().await });
    tokio::time::sleep(ms(300)).await;
    assert!(!counts.is_finished() && !waiter.is_finished());
    cluster.move_keys(slot, to).await;
    cluster.finish_move(slot, to).await;
    assert_eq!(soon(counts).await.unwrap().unwrap(), 1);
    one.count_down().await.unwrap();
    soon(waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_latch_outlives_a_fail_over_by_sentinels() {
    let deployment = SentinelDeployment::start().await;
    let connect = async || {
        let builder = ClientBuilder::sentinel(deployment.urls(), SERVICE);
        let builder = builder.server_url(&deployment.server_url());
        let client = builder.unavailable_after(LONG).connect().await;
        client.expect("a client").get_count_down_latch(NAME)
    };
    let (one, other) = (connect().await, connect().await);
    one.try_set_count(2).await.unwrap();
    let [old, replica] = [0, 1].map(|server| &deployment.servers()[server]);
    eventually("the replica has it", LONG, async || {
        replica.exists(NAME).await
    })
    .await;
    let waiter = waits(&one);
    eventually("it listens", LONG, async || {
        old.subscribers(CHANNEL).await == 1
    })
    .await;
    old.kill();
    assert_eq!(soon(other.count_down()).await.unwrap(), 1);
    assert!(!waiter.is_finished());
    assert_eq!(soon(other.count_down()).await.unwrap(), 0);
    soon(waiter).await.unwrap().unwrap();
}
