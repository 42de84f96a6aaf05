//! Commands go to the node that has their lock.

use std::time::Duration;

use watchlock::{Client, ClientBuilder, ConfigError, Error, Lease, Publish};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::{RedisServer, ServerOptions};

use crate::common::{LONG, channel, ms, soon, try_once};

/// Names that are in different slots, at different nodes.
fn names() -> impl Iterator<Item = String> {
    (0..30).map(|number| format!("job:{number}"))
}

#[tokio::test]
async fn a_plain_address_leads_to_the_whole_cluster() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let mut guards = Vec::new();
    for name in names() {
        guards.push(client.get_lock(&name).lock().await.unwrap());
        assert!(cluster.server_of(&name).await.exists(&name).await, "{name}");
    }
    for node in cluster.nodes() {
        assert!(!node.keys().await.is_empty(), "each node has some of them");
        assert!(node.connections().await >= 1);
    }
    for guard in guards {
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
    }
    assert!(cluster.keys().await.is_empty());
}

/// The client asked it for the nodes only.
#[tokio::test]
async fn a_lazy_client_leaves_the_address_that_was_given_when_the_nodes_are_known() {
    let cluster = RedisCluster::masters().await;
    let client = Client::builder(&cluster.url()).connect_lazy().unwrap();
    let given = cluster.node(0);
    eventually("it has asked there", LONG, async || {
        given.calls_of("cluster|slots").await > 0
    })
    .await;
    eventually("nothing leads there", LONG, async || {
        given.connections().await == 0
    })
    .await;
    drop(client);
}

#[tokio::test]
async fn one_of_several_addresses_is_enough() {
    let cluster = RedisCluster::masters().await;
    let (gone, frozen) = (RedisServer::start(), RedisServer::start());
    let urls = [gone.url(), frozen.url(), cluster.url()];
    gone.kill();
    frozen.freeze();
    let client = ClientBuilder::cluster(urls.clone())
        .connect()
        .await
        .unwrap();
    let guard = client.get_lock("x").lock().await.unwrap();
    guard.unlock().await.unwrap();
    let client = ClientBuilder::cluster(urls).connect_lazy().unwrap();
    let guard = soon(client.get_lock("x").lock()).await.unwrap();
    guard.unlock().await.unwrap();
    frozen.resume();
}

/// An address that answers explains more than one that cannot be reached.
#[tokio::test]
async fn of_several_addresses_that_fail_the_one_that_answers_says_why() {
    let (gone, locked) = (RedisServer::start(), RedisServer::start());
    locked
        .cmd(&["CONFIG", "SET", "requirepass", "secret"])
        .await;
    let orders = [[gone.url(), locked.url()], [locked.url(), gone.url()]];
    gone.kill();
    for urls in orders {
        let connected = ClientBuilder::cluster(urls).connect().await;
        assert!(
            matches!(connected, Err(Error::Denied { .. })),
            "{connected:?}"
        );
    }
}

/// Where nodes know sharded channels, Redisson listens to those, too.
#[tokio::test]
async fn channels_are_sharded_where_nodes_know_that_unless_publish_says_otherwise() {
    let cluster = RedisCluster::masters().await;
    let knows = cluster.node(0).try_cmd(&["PUBSUB", "SHARDCHANNELS"]).await;
    for (name, publish, sharded) in [
        ("a", None, knows.is_ok()),
        ("b", Some(Publish::Classic), false),
    ] {
        let mut builder = Client::builder(&cluster.url());
        if let Some(publish) = publish {
            builder = builder.publish(publish);
        }
        let [holder, waiter] = [builder.clone(), builder];
        let holder = holder.connect().await.unwrap();
        let guard = holder.get_lock(name).lock().await.unwrap();
        let waiter = waiter.connect().await.unwrap();
        let lock = waiter.get_lock(name);
        let waits = tokio::spawn(async move { lock.lock().await });
        let (node, channel) = (cluster.server_of(name).await, channel(name));
        eventually("somebody listens", LONG, async || {
            node.subscribers(&channel).await > 0
        })
        .await;
        let there = node.sharded_channels().await;
        assert_eq!(there.contains(&channel), sharded, "{name}");
        guard.unlock().await.unwrap();
        soon(waits).await.unwrap().unwrap().unlock().await.unwrap();
    }
}

#[tokio::test]
async fn a_single_server_is_no_cluster() {
    let server = RedisServer::start();
    let connected = ClientBuilder::cluster([server.url()]).connect().await;
    let refused = matches!(
        connected,
        Err(Error::Config(ConfigError::Unsupported { .. }))
    );
    assert!(refused, "{connected:?}");
}

#[tokio::test]
async fn waiters_are_woken_at_every_node() {
    let cluster = RedisCluster::masters().await;
    let minute = watchlock::Backoff::new()
        .base(Duration::from_secs(60))
        .cap(Duration::from_secs(60));
    let builder = || Client::builder(&cluster.url()).backoff(minute);
    let holder = builder().connect().await.unwrap();
    let waiter = builder().connect().await.unwrap();
    for name in names().take(6) {
        let guard = holder.get_lock(&name).lock().await.unwrap();
        let lock = waiter.get_lock(&name);
        let waits = tokio::spawn(async move { lock.lock().await });
        let channel = crate::common::channel(&name);
        let node = cluster.server_of(&name).await;
        eventually("somebody listens", LONG, async || {
            node.subscribers(&channel).await > 0
        })
        .await;
        guard.unlock().await.unwrap();
        soon(waits).await.unwrap().unwrap().unlock().await.unwrap();
    }
}

#[tokio::test]
async fn holds_of_every_node_are_renewed() {
    let cluster = RedisCluster::masters().await;
    let builder = Client::builder(&cluster.url()).watchdog_lease(crate::common::SHORT);
    let client = builder.connect().await.unwrap();
    let mut guards = Vec::new();
    for name in names() {
        guards.push(client.get_lock(&name).lock().await.unwrap());
    }
    tokio::time::sleep(crate::common::SHORT * 2).await;
    for guard in guards {
        guard.check().unwrap();
        guard.unlock().await.unwrap();
    }
    let lease = Lease::from(Duration::from_secs(1));
    let again = client
        .get_lock("job:0")
        .try_lock(Duration::ZERO, lease)
        .await;
    assert!(again.unwrap().is_some());
}

/// Nodes that do not know their own address are at the address that answered.
#[tokio::test]
async fn nodes_that_do_not_name_their_host_are_where_the_address_leads() {
    let unnamed = ("cluster-preferred-endpoint-type", "unknown-endpoint");
    let cluster = RedisCluster::with(3, 0, |options| options.config_since_7(unnamed.0, unnamed.1));
    let cluster = cluster.await;
    // Nobody listens there.
    let nowhere = "redis://127.0.0.2:1/".to_owned();
    for client in [
        Client::connect(&cluster.url()).await,
        ClientBuilder::cluster([nowhere, cluster.url()])
            .connect()
            .await,
    ] {
        let client = client.unwrap();
        for name in names() {
            let guard = soon(client.get_lock(&name).lock()).await.unwrap();
            assert!(cluster.server_of(&name).await.exists(&name).await, "{name}");
            guard.unlock().await.unwrap();
        }
    }
}

/// No node had the slot when the client connected, and nobody holds or waits: a try makes the keeper ask.
#[tokio::test]
async fn a_slot_that_gets_its_first_node_is_found_by_tries_alone() {
    let options = |options: ServerOptions| options.config("cluster-require-full-coverage", "no");
    let cluster = RedisCluster::with(3, 0, options).await;
    let slot = cluster.slot_of("x").await.to_string();
    eventually("nobody has it", LONG, async || {
        let mut had = false;
        for node in cluster.nodes() {
            // A node that knows no owner of the slot refuses it.
            had |= node.try_cmd(&["CLUSTER", "DELSLOTS", &slot]).await.is_ok();
        }
        !had
    })
    .await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let error = try_once(&client, "x").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    cluster.node(0).cmd(&["CLUSTER", "ADDSLOTS", &slot]).await;
    eventually("it is found", LONG, async || {
        try_once(&client, "x").await.is_ok()
    })
    .await;
}

/// A denial is no answer: the client asks the next address.
#[tokio::test]
async fn an_address_that_denies_keeps_nobody_from_the_next() {
    let (locked, cluster) = (RedisServer::start(), RedisCluster::masters().await);
    locked
        .cmd(&["CONFIG", "SET", "requirepass", "secret"])
        .await;
    let late = Proxy::to(cluster.node(0));
    late.latency(ms(200));
    let builder = ClientBuilder::cluster([locked.url(), late.url()]).connect_timeout(LONG);
    let client = builder.connect().await.unwrap();
    let guard = soon(client.get_lock("x").lock()).await.unwrap();
    guard.unlock().await.unwrap();
}

/// The error is that of the address that denies, also when another one hangs up after that.
#[tokio::test]
async fn a_denial_is_reported_although_the_last_address_hangs_up() {
    let (open, locked) = (RedisServer::start(), RedisServer::start());
    locked
        .cmd(&["CONFIG", "SET", "requirepass", "secret"])
        .await;
    let late = Proxy::to(&open);
    late.latency(ms(200));
    late.inject(Fault::ResetBefore)
        .on(Match::command("HELLO"))
        .arm();
    let connected = ClientBuilder::cluster([late.url(), locked.url()]).connect_timeout(LONG);
    let connected = connected.connect().await;
    assert!(
        matches!(connected, Err(Error::Denied { .. })),
        "{connected:?}"
    );
}

#[tokio::test]
async fn the_address_that_was_given_is_left_when_the_nodes_are_known() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    eventually("nothing leads there", LONG, async || {
        cluster.node(0).connections().await == 0
    })
    .await;
    drop(client);
}
