//! A cluster whose nodes speak TLS and ask for certificates.

use std::time::Duration;

use watchlock::{Client, ClientBuilder, Error, Tls};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;
use watchlock_support::tls::Certificates;

use crate::common::{LONG, SHORT, channel, ms, soon};

fn builder(cluster: &RedisCluster, tls: Tls) -> ClientBuilder {
    Client::builder(&cluster.node(0).tls_url())
        .tls(tls)
        .connect_timeout(ms(5_000))
        .command_timeout(ms(5_000))
}

fn shown(certificates: &Certificates) -> Tls {
    let pem = |file| certificates.pem(file);
    let tls = Tls::new().ca_pem(pem("ca.crt"));
    tls.client_pem(pem("server.crt"), pem("server.key"))
}

/// Every connection shows the certificate: to the first address, to each node, those of the keeper and of subscriptions.
#[tokio::test]
async fn every_node_is_shown_the_certificate() {
    let certificates = Certificates::make();
    let cluster = RedisCluster::encrypted(3, 1, &certificates).await;
    let holder = builder(&cluster, shown(&certificates)).watchdog_lease(SHORT);
    let holder = holder.connect().await.unwrap();
    let waiter = builder(&cluster, shown(&certificates)).connect();
    let waiter = waiter.await.unwrap();
    for name in ["a", "b", "c", "d"] {
        let guard = holder.get_lock(name).lock().await.unwrap();
        let lock = waiter.get_lock(name);
        let waits = tokio::spawn(async move { lock.lock().await });
        let node = cluster.server_of(name).await;
        let channel = channel(name);
        eventually("somebody listens", LONG, async || {
            node.subscribers(&channel).await > 0
        })
        .await;
        tokio::time::sleep(SHORT).await;
        guard.check().expect("it is renewed");
        guard.unlock().await.unwrap();
        soon(waits).await.unwrap().unwrap().unlock().await.unwrap();
    }
    let master = cluster.owner_of("a").await;
    let lock = waiter.get_lock("a");
    lock.lock().await.unwrap().unlock().await.unwrap();
    cluster.node(master).kill();
    cluster.replaced(master).await;
    eventually("the new master has it", LONG, async || {
        lock.lock_with_lease(Duration::from_secs(5)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn who_shows_none_is_nobody() {
    let certificates = Certificates::make();
    let cluster = RedisCluster::encrypted(3, 0, &certificates).await;
    let trusts = Tls::new().ca_pem(certificates.pem("ca.crt"));
    let refused = soon(builder(&cluster, trusts).connect_timeout(ms(500)).connect()).await;
    assert!(
        matches!(refused, Err(Error::Unavailable { .. })),
        "{refused:?}"
    );
}
