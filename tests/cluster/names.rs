//! Names whose keys a cluster would have at different nodes.

use watchlock::{Client, Error};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::server::RedisServer;

use crate::common::{try_once, without_polls};

const SPREAD: [&str; 6] = ["{", "a{", "}", "a}b", "{}x", "a{}b{c}"];
const TOGETHER: [&str; 5] = ["foo", "{a}b", "a{b}c", "{a}{", "a b:c/ü"];

#[tokio::test]
async fn a_name_whose_keys_are_in_different_slots_is_refused_in_a_cluster_only() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    for name in SPREAD {
        for refused in [
            try_once(&client, name).await.map(drop),
            client.get_fair_lock(name).lock().await.map(drop),
            client.get_simple_lock(name).is_locked().await.map(drop),
            client.get_lock(name).force_unlock().await.map(drop),
        ] {
            let about_it = matches!(&refused, Err(error @ Error::CrossSlot { .. }) if error.lock() == Some(name));
            assert!(about_it, "{name}: {refused:?}");
        }
    }
    assert!(cluster.keys().await.is_empty());
    let server = RedisServer::start();
    let alone = without_polls(&server).connect().await.unwrap();
    for name in SPREAD {
        try_once(&alone, name)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn every_other_name_is_good_for_every_kind() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    for name in TOGETHER {
        let read_write = client.get_read_write_lock(&format!("rw:{name}"));
        client
            .get_lock(name)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        client
            .get_fair_lock(name)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        client
            .get_fenced_lock(name)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        client
            .get_simple_lock(name)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        read_write
            .read_lock()
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        read_write
            .write_lock()
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
}
