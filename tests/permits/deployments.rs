//! Clusters, and permits that replicas must acknowledge.

use std::time::{Duration, Instant};

use watchlock::{Client, Error, Lease};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, ms, soon};
use crate::{Kind, NAME, once};

for_both! {
    in_a_cluster_all_keys_of_a_semaphore_share_a_slot,
    permits_outlive_a_move_that_takes_longer_than_their_lease,
    what_replicas_do_not_acknowledge_is_taken_back,
    without_replicas_a_first_acquire_is_refused_and_not_busy,
}

async fn in_a_cluster_all_keys_of_a_semaphore_share_a_slot<K: Kind>() {
    let cluster = RedisCluster::masters().await;
    let [one, other] = [
        Client::connect(&cluster.url()).await.unwrap(),
        Client::connect(&cluster.url()).await.unwrap(),
    ];
    for name in ["imports", "a:{b}:c", "{x}"] {
        let of = K::of(&one, name).with_permits(2);
        let both = of.acquire_many(2).await.unwrap();
        let waits = tokio::spawn({
            let of = K::of(&other, name);
            async move { of.acquire().await }
        });
        tokio::time::sleep(ms(200)).await;
        both.release().await.unwrap();
        soon(waits).await.unwrap().unwrap().release().await.unwrap();
        assert!(of.delete().await.unwrap());
    }
    eventually("nothing is left", LONG, async || {
        cluster.keys().await.is_empty()
    })
    .await;
    for name in ["a{", "a}b", "{}x"] {
        let refused = K::of(&one, name).with_permits(2).acquire().await;
        assert!(matches!(refused, Err(Error::CrossSlot { .. })), "{name}");
    }
}

/// Renewals of permits whose keys are at two nodes go to the node that has the records.
async fn permits_outlive_a_move_that_takes_longer_than_their_lease<K: Kind>() {
    for number_goes_first in [true, false] {
        let cluster = RedisCluster::masters().await;
        let builder = Client::builder(&cluster.url()).watchdog_lease(SHORT);
        let client = builder.connect().await.unwrap();
        let of = K::of(&client, NAME).with_permits(2);
        let permit = of.acquire().await.unwrap();
        let slot = cluster.slot_of(NAME).await;
        let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
        cluster.begin_move(slot, to).await;
        let first = if number_goes_first { NAME } else { K::RECORDS };
        cluster.move_key(first, to).await;
        let end = Instant::now() + SHORT * 2;
        while Instant::now() < end {
            permit.check().unwrap();
            tokio::time::sleep(ms(50)).await;
        }
        cluster.move_keys(slot, to).await;
        cluster.finish_move(slot, to).await;
        permit.verify().await.unwrap();
        permit.release().await.unwrap();
        assert_eq!(of.available_permits().await.unwrap(), 2);
    }
}

async fn what_replicas_do_not_acknowledge_is_taken_back<K: Kind>() {
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    replica.synced().await;
    master.acknowledged(1).await;
    let builder = Client::builder(&master.url()).acknowledged_by(1, ms(500));
    let client = builder.command_timeout(ms(2_000)).connect().await.unwrap();
    let of = K::of(&client, NAME).with_permits(2);
    let permit = of.acquire().await.unwrap();
    replica.cut_off_from(&master).await;
    let refused = of.try_acquire(Duration::ZERO, Lease::Watchdog).await;
    let few = refused.map(drop).unwrap_err();
    assert!(few.not_replicated().is_some(), "{few:?}");
    eventually("it is taken back", LONG, async || {
        of.available_permits().await.unwrap() == 1
    })
    .await;
    replica.let_in().await;
    master.acknowledged(1).await;
    let second = once(&of).await.expect("it is free");
    assert!(once(&of).await.is_none(), "both are taken");
    permit.release().await.unwrap();
    second.release().await.unwrap();
}

/// After two in a row that nobody acknowledged it only looks whether others have the permits. Without a number nobody has.
async fn without_replicas_a_first_acquire_is_refused_and_not_busy<K: Kind>() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).acknowledged_by(1, ms(100));
    let client = builder.connect().await.unwrap();
    for number in 0..4 {
        let of = K::of(&client, &format!("imports-{number}")).with_permits(2);
        let refused = of
            .try_acquire_many(2, Duration::ZERO, Lease::Watchdog)
            .await;
        let few = refused.map(|got| got.is_some()).unwrap_err();
        assert!(few.not_replicated().is_some(), "{few:?}");
    }
}
