//! The same in a cluster, where the replicas of each master count.

use std::time::Duration;

use watchlock::{Backoff, Client, Lease, LockGuard, LostReason};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;

use crate::common::{LONG, SHORT, ms, soon, try_once};
use crate::granting::kinds;
use crate::{WITHIN, few};

const NAME: &str = "job";

async fn connect(cluster: &RedisCluster) -> Client {
    let lease = Duration::from_secs(20);
    with_lease(cluster, lease).await
}

async fn with_lease(cluster: &RedisCluster, lease: Duration) -> Client {
    let client = Client::builder(&cluster.url())
        .acknowledged_by(1, WITHIN)
        .command_timeout(4 * WITHIN)
        .watchdog_lease(lease);
    client.connect().await.expect("a client")
}

/// A name of another master than that of [`NAME`].
async fn elsewhere(cluster: &RedisCluster) -> String {
    let master = cluster.owner_of(NAME).await;
    for number in 0.. {
        let name = format!("other:{number}");
        if cluster.owner_of(&name).await != master {
            return name;
        }
    }
    unreachable!("some name is elsewhere")
}

async fn replicas_keys(cluster: &RedisCluster) -> Vec<String> {
    let mut keys = Vec::new();
    for master in 0..3 {
        keys.extend(cluster.replica_of(master).keys().await);
    }
    keys
}

#[tokio::test]
async fn the_replica_of_its_master_has_every_grant() {
    let cluster = RedisCluster::start().await;
    let client = connect(&cluster).await;
    for (kind, lock) in kinds(&client) {
        let guard = lock.lock().await.unwrap();
        let there = replicas_keys(&cluster).await;
        let name = guard.name();
        let of_lock = there.iter().any(|key| name.contains(key.as_str()));
        assert!(of_lock, "{kind}: {name} is not among {there:?}");
        guard.unlock().await.unwrap();
    }
}

/// A node that was a master when somebody wrote the address down may be a replica now.
#[tokio::test]
async fn a_cluster_is_met_at_a_replica() {
    let cluster = RedisCluster::start().await;
    let replica = cluster.replica_of(0).url();
    let client = Client::builder(&replica).acknowledged_by(1, WITHIN);
    let client = client.command_timeout(4 * WITHIN).connect().await.unwrap();
    assert!(try_once(&client, NAME).await.unwrap().is_some());
}

#[tokio::test]
async fn a_replica_that_stalls_stops_the_locks_of_its_master_alone() {
    let cluster = RedisCluster::start().await;
    let client = with_lease(&cluster, SHORT).await;
    let (master, other) = (cluster.owner_of(NAME).await, elsewhere(&cluster).await);
    let here = try_once(&client, NAME).await.unwrap().unwrap();
    let there = try_once(&client, &other).await.unwrap().unwrap();
    cluster.replica_of(master).freeze();
    // Renewals that its replica does not acknowledge keep nothing.
    assert_eq!(soon(here.lost()).await, LostReason::Expired);
    there.check().unwrap();
    // The master has written them, and remembers them for another lease.
    eventually("it is free", LONG, async || {
        cluster.node(master).keys().await.is_empty()
    })
    .await;
    let shortfall = few(try_once(&client, NAME).await);
    assert_eq!((shortfall.wanted, shortfall.got), (1, 0));
    there.unlock().await.unwrap();
    assert!(try_once(&client, &other).await.unwrap().is_some());
    cluster.replica_of(master).resume();
    let lock = client.get_lock(NAME);
    let guard = lock.try_lock(LONG, Lease::Watchdog).await.unwrap();
    assert!(guard.is_some(), "its replica is back");
}

/// Too few acknowledge until the replica of `node` is back, although the other node's replica would.
async fn counts_at(cluster: &RedisCluster, client: &Client, node: usize) -> LockGuard {
    let replica = cluster.replica_of(node);
    replica.freeze();
    let shortfall = few(try_once(client, NAME).await);
    assert_eq!((shortfall.wanted, shortfall.got), (1, 0));
    assert_eq!(cluster.node(node).keys().await, Vec::<String>::new());
    replica.resume();
    let lock = client.get_lock(NAME);
    let granted = lock.try_lock(LONG, Lease::Watchdog).await.unwrap();
    assert_eq!(replica.keys().await, [NAME]);
    granted.expect("granted")
}

#[tokio::test]
async fn where_a_slot_is_on_its_way_to_is_where_it_is_acknowledged() {
    let cluster = RedisCluster::start().await;
    let client = connect(&cluster).await;
    let slot = cluster.slot_of(NAME).await;
    let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
    cluster.begin_move(slot, to).await;
    let guard = counts_at(&cluster, &client, to).await;
    cluster.finish_move(slot, to).await;
    guard.unlock().await.unwrap();
    let gone = || async { replicas_keys(&cluster).await.is_empty() };
    eventually("nothing is left", LONG, gone).await;
}

#[tokio::test]
async fn where_a_slot_went_is_where_it_is_acknowledged() {
    let cluster = RedisCluster::start().await;
    let client = connect(&cluster).await;
    // The node that the slot left knows the scripts.
    let guard = try_once(&client, NAME).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    let slot = cluster.slot_of(NAME).await;
    let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
    cluster.move_slot(slot, to).await;
    let guard = counts_at(&cluster, &client, to).await;
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_granted_lock_survives_a_fail_over() {
    let cluster = RedisCluster::start().await;
    let client = connect(&cluster).await;
    let second = Client::connect(&cluster.url()).await.unwrap();
    let master = cluster.owner_of(NAME).await;
    let guard = try_once(&client, NAME).await.unwrap().unwrap();
    cluster.node(master).kill();
    cluster.replaced(master).await;
    // What it knew of the slots may be older than the fail-over: then it asks the dead master first.
    eventually("the new master answers", LONG, async || {
        let answer = try_once(&second, NAME).await;
        assert!(!matches!(answer, Ok(Some(_))), "it is held");
        answer.is_ok()
    })
    .await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    // Nothing acknowledges there any more.
    let lock = client.get_lock(NAME);
    let shortfall = few(lock.try_lock(ms(100), Lease::Watchdog).await);
    assert_eq!((shortfall.wanted, shortfall.got), (1, 0));
}

/// A downgrade that waits for acknowledgements wakes waiting readers of other clients: here nobody polls.
#[tokio::test]
async fn an_acknowledged_downgrade_wakes_a_waiting_reader() {
    let cluster = RedisCluster::start().await;
    let client = connect(&cluster).await;
    let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let other = Client::builder(&cluster.url())
        .backoff(minute)
        .connect()
        .await
        .unwrap();
    let write = client.get_read_write_lock(NAME).write_lock();
    let write = write.lock_with_lease(LONG * 10).await.unwrap();
    let read = other.get_read_write_lock(NAME).read_lock();
    let waiting = tokio::spawn(async move { read.lock().await });
    let node = cluster.server_of(NAME).await;
    let channel = format!("redisson_rwlock:{{{NAME}}}");
    eventually("it listens", LONG, async || {
        node.subscribers(&channel).await > 0
    })
    .await;
    // As in read_write/levels, the try behind the confirmation should be answered busy. A message sent before it is
    // heard all the same.
    tokio::time::sleep(ms(50)).await;
    let reading = write.downgrade().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    reading.unlock().await.unwrap();
}
