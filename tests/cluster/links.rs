//! How many connections there are to nodes (I7).

use watchlock::{Client, ClientBuilder};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, soon};

/// Connections of clients, without those of masters and replicas.
async fn links(node: &RedisServer) -> usize {
    let clients = node.clients().await;
    clients
        .iter()
        .filter(|client| client["flags"] == "N")
        .count()
}

async fn each_has(cluster: &RedisCluster, count: usize, when: &str) {
    eventually(&format!("{count} to each node {when}"), LONG, async || {
        for node in cluster.nodes() {
            if links(node).await != count {
                return false;
            }
        }
        true
    })
    .await;
}

/// The callers' connection and the keeper's.
async fn use_all(client: &Client) {
    for number in 0..30 {
        let lock = client.get_lock(&format!("job:{number}"));
        soon(lock.lock()).await.unwrap().unlock().await.unwrap();
        drop(soon(lock.lock()).await.unwrap());
    }
}

#[tokio::test]
async fn two_connections_to_each_node_and_none_behind_the_end() {
    let cluster = RedisCluster::masters().await;
    let builder = || ClientBuilder::cluster(cluster.urls());
    for client in [
        builder().connect().await.unwrap(),
        builder().connect_lazy().unwrap(),
    ] {
        use_all(&client).await;
        each_has(&cluster, 2, "that is used").await;
        for _ in 0..5 {
            use_all(&client).await;
        }
        each_has(&cluster, 2, "however often").await;
        soon(client.shutdown(LONG)).await;
        each_has(&cluster, 0, "behind the end").await;
    }
}

/// A master that became a replica has no slots, so the client no longer counts it as a node.
#[tokio::test]
async fn a_node_without_slots_loses_its_connections() {
    let cluster = RedisCluster::start().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    use_all(&client).await;
    // While something is held the keeper asks for the slots now and then.
    let held = client.get_lock("held").lock().await.unwrap();
    let old = cluster.node(0);
    assert!(links(old).await >= 1);
    cluster.fail_over(3).await;
    eventually("nobody is connected to it", LONG, async || {
        links(old).await == 0
    })
    .await;
    held.unlock().await.unwrap();
}
