//! How a client becomes one of a cluster, and keeps out of another.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use watchlock::{Backoff, Client, ClientBuilder, Error, Secrets};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, ms, soon, try_once};

/// Waits until a lock at every node can be taken.
async fn joins(client: &Client) {
    for number in 0..12 {
        let name = format!("job:{number}");
        eventually("the lock of any node", LONG, async || {
            match try_once(client, &name).await {
                Ok(Some(guard)) => guard.unlock().await.is_ok(),
                _ => false,
            }
        })
        .await;
    }
}

/// The file with the password is written some moments after the process starts.
#[tokio::test]
async fn a_lazy_client_whose_password_is_wrong_at_first_joins_its_cluster() {
    let cluster = RedisCluster::masters().await;
    for node in cluster.nodes() {
        node.cmd(&["ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all"])
            .await;
    }
    let there = Arc::new(AtomicBool::new(false));
    let is_there = Arc::clone(&there);
    let client = Client::builder(&cluster.url()).secrets(move || {
        let password = if is_there.load(Ordering::SeqCst) {
            "right"
        } else {
            "wrong"
        };
        Secrets::new().user("app").password(password)
    });
    let client = client.connect_lazy().unwrap();
    let denied = soon(try_once(&client, "job:0")).await;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    there.store(true, Ordering::SeqCst);
    joins(&client).await;
}

#[tokio::test]
async fn a_lazy_client_that_lacks_a_right_at_first_joins_its_cluster() {
    let cluster = RedisCluster::masters().await;
    let rights = async |right| {
        for node in cluster.nodes() {
            let user = [
                "ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all", right,
            ];
            node.cmd(&user).await;
        }
    };
    rights("-cluster").await;
    let url = cluster.url().replace("//", "//app:right@");
    let client = Client::builder(&url).connect_lazy().unwrap();
    let given = cluster.node(0);
    eventually("it was denied", LONG, async || {
        let denied: Vec<Vec<redis::Value>> = given.query(&["ACL", "LOG"]).await;
        !denied.is_empty()
    })
    .await;
    rights("+cluster").await;
    joins(&client).await;
}

#[test]
fn a_client_joins_where_time_is_paused() {
    let home = tokio::runtime::Runtime::new().unwrap();
    let cluster = home.block_on(RedisCluster::masters());
    let mut paused = tokio::runtime::Builder::new_current_thread();
    let paused = paused.enable_all().start_paused(true).build().unwrap();
    paused.block_on(async {
        for _ in 0..5 {
            for builder in [
                Client::builder(&cluster.url()),
                ClientBuilder::cluster(cluster.urls()),
            ] {
                let client = builder.connect().await.unwrap();
                for number in 0..6 {
                    let guard = try_once(&client, &format!("job:{number}")).await.unwrap();
                    guard.expect("it is free").unlock().await.unwrap();
                }
            }
        }
    });
}

/// A node that was reset, or has not joined yet, is in cluster mode and answers.
#[tokio::test]
async fn an_address_that_knows_no_slots_keeps_nobody_from_the_next() {
    let cluster = RedisCluster::masters().await;
    let empty = RedisServer::options().config("cluster-enabled", "yes");
    let empty = empty.start();
    let mut urls = vec![empty.url()];
    urls.extend(cluster.urls());
    for _ in 0..10 {
        urls.rotate_left(1);
        let client = ClientBuilder::cluster(urls.clone()).connect().await;
        joins(&client.unwrap()).await;
    }
    let alone = ClientBuilder::cluster([empty.url(), empty.url()]).connect();
    let error = alone.await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// An address that leads to one server, and later to another.
struct Address {
    port: u16,
    leads_to: Arc<AtomicU16>,
    cut: watch::Sender<()>,
}

impl Address {
    async fn of(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let leads_to = Arc::new(AtomicU16::new(server.port()));
        let (target, cut) = (Arc::clone(&leads_to), watch::Sender::new(()));
        let cuts = cut.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let port = target.load(Ordering::SeqCst);
                let mut cut = cuts.subscribe();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(("127.0.0.1", port)).await?;
                    tokio::select! {
                        copied = tokio::io::copy_bidirectional(&mut near, &mut far) => copied.map(drop),
                        _ = cut.changed() => Ok(()),
                    }
                });
            }
        });
        Self {
            port,
            leads_to,
            cut,
        }
    }

    fn leads_to(&self, server: &RedisServer) {
        self.leads_to.store(server.port(), Ordering::SeqCst);
        self.cut.send_replace(());
    }
}

/// Addresses are given out again: a container of another cluster may get that of a node.
#[tokio::test]
async fn a_node_whose_address_belongs_to_another_cluster_is_not_used() {
    const NAME: &str = "job";
    let cluster = RedisCluster::masters().await;
    let node = cluster.server_of(NAME).await;
    let stranger = RedisServer::options().cluster_of_one().start();
    eventually("the other cluster is up", LONG, async || {
        stranger.try_cmd(&["SET", "probe", "x"]).await.is_ok()
    })
    .await;
    stranger.cmd(&["DEL", "probe"]).await;
    let address = Address::of(node).await;
    let (announced, leads_to) = (node.port(), address.port);
    let client = Client::builder(&cluster.url())
        .command_timeout(ms(500))
        .node_addresses(move |host, port| {
            let port = if port == announced { leads_to } else { port };
            (host.to_owned(), port)
        });
    let client = client.connect().await.unwrap();
    let guard = client.get_lock(NAME).lock().await.unwrap();
    assert!(node.exists(NAME).await);
    guard.unlock().await.unwrap();

    stranger.cmd(&["CONFIG", "RESETSTAT"]).await;
    address.leads_to(&stranger);
    for _ in 0..5 {
        let tried = soon(try_once(&client, NAME)).await;
        assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    }
    assert!(stranger.calls_of("hello").await > 0, "it was met");
    assert_eq!(stranger.calls_of("evalsha").await, 0);
    assert!(stranger.keys().await.is_empty());

    address.leads_to(node);
    joins(&client).await;
    let guard = soon(client.get_lock(NAME).lock()).await.unwrap();
    assert!(node.exists(NAME).await);
    guard.unlock().await.unwrap();
}

/// A node may say no host: that means its own, which the client reaches elsewhere already.
#[tokio::test]
async fn a_node_that_says_no_host_is_looked_for_where_it_is() {
    let cluster = RedisCluster::with(3, 0, |options| {
        options.config_since_7("cluster-preferred-endpoint-type", "unknown-endpoint")
    });
    let cluster = cluster.await;
    let asked = Arc::<Mutex<BTreeSet<String>>>::default();
    let hosts = Arc::clone(&asked);
    let client = Client::builder(&cluster.url()).node_addresses(move |host, port| {
        hosts.lock().unwrap().insert(host.to_owned());
        ("localhost".to_owned(), port)
    });
    let client = client.connect().await.unwrap();
    joins(&client).await;
    let slot = cluster.slot_of("job:0").await;
    let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
    cluster.move_slot(slot, to).await;
    joins(&client).await;
    let asked = asked.lock().unwrap();
    assert_eq!(*asked, BTreeSet::from(["127.0.0.1".to_owned()]));
}

/// The only address that answered at first has no slots. Later the others answer, too.
#[tokio::test]
async fn a_lazy_client_asks_its_other_addresses_again() {
    let cluster = RedisCluster::masters().await;
    let empty = RedisServer::options().config("cluster-enabled", "yes");
    let empty = empty.start();
    let proxy = Proxy::to(cluster.node(0));
    proxy.refuse();
    let client = ClientBuilder::cluster([proxy.url(), empty.url()]);
    let client = client.connect_lazy().unwrap();
    eventually("the empty node was asked twice", LONG, async || {
        empty.calls_of("hello").await > 1
    })
    .await;
    proxy.accept();
    joins(&client).await;
}

#[tokio::test]
async fn nodes_that_announce_ipv6_are_found() {
    let cluster = RedisCluster::with(3, 0, |options| {
        options
            .config("bind", "127.0.0.1 ::1")
            .config("cluster-announce-ip", "::1")
    });
    let cluster = cluster.await;
    for url in [cluster.url(), cluster.url().replace("127.0.0.1", "[::1]")] {
        let client = Client::connect(&url).await.unwrap();
        joins(&client).await;
    }
}

/// It waits since before its client knew that there is a cluster, where releases are published to the node of the slot.
#[tokio::test]
async fn who_waits_when_its_client_joins_hears_the_release() {
    let cluster = RedisCluster::masters().await;
    let rights = async |right| {
        for node in cluster.nodes() {
            let user = ["ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all"];
            node.cmd(&[&user[..], &[right]].concat()).await;
        }
    };
    rights("-cluster").await;
    let (name, elsewhere) = (
        name_of(&cluster, true).await,
        name_of(&cluster, false).await,
    );
    let other = Client::connect(&cluster.url()).await.unwrap();
    let held = other.get_lock(&name);
    let held = held.lock_with_lease(LONG * 10).await.unwrap();
    let url = cluster.url().replace("//", "//app:right@");
    let minute = Backoff::new().base(LONG * 2).cap(LONG * 2);
    let client = Client::builder(&url).backoff(minute);
    let client = client.connect_lazy().unwrap();
    let lock = client.get_lock(&name);
    let waits = tokio::spawn(async move { lock.lock().await });
    let channel = crate::common::channel(&name);
    eventually("it listens", LONG, async || {
        cluster.node(0).subscribers(&channel).await > 0
    })
    .await;
    rights("+cluster").await;
    eventually("it has joined", LONG, async || {
        try_once(&client, &elsewhere).await.is_ok()
    })
    .await;
    held.unlock().await.unwrap();
    let guard = soon(waits).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
}

/// A name whose lock the first node has, or has not.
async fn name_of(cluster: &RedisCluster, first: bool) -> String {
    for number in 0.. {
        let name = format!("job:{number}");
        if (cluster.owner_of(&name).await == 0) == first {
            return name;
        }
    }
    unreachable!("some name is there")
}
