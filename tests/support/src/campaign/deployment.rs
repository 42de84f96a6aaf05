//! Masters whose replicas take their places: a cluster, or a deployment with sentinels.

use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Layout;
use crate::cluster::RedisCluster;
use crate::sentinel::{SERVICE, SentinelDeployment};
use crate::server::RedisServer;

/// How long owners go on while nothing is available; longer than any fail-over.
const UNAVAILABLE_MS: u32 = 60_000;

/// Servers, and whether replicas must acknowledge there.
pub(super) struct Deployment {
    pub(super) servers: Servers,
    pub(super) acknowledged: bool,
}

pub(super) enum Servers {
    Cluster(RedisCluster),
    Watched(Watched),
}

/// A master and its only replica, with sentinels.
pub(super) struct Watched {
    pub(super) servers: SentinelDeployment,
    /// Which of the two is the master.
    master: Mutex<usize>,
}

impl Watched {
    async fn start() -> Self {
        let servers = SentinelDeployment::start().await;
        servers.servers()[0].acknowledged(1).await;
        let master = Mutex::new(0);
        Self { servers, master }
    }

    /// The master, and its replica.
    pub(super) fn pair(&self) -> (&RedisServer, &RedisServer) {
        let servers = self.servers.servers();
        let master = *self.master.lock();
        (&servers[master], &servers[1 - master])
    }

    /// The replica has the master's place.
    pub(super) fn switched(&self) {
        let mut master = self.master.lock();
        *master = 1 - *master;
    }
}

impl Deployment {
    /// The servers of a layout that belong together.
    pub(super) async fn start(layout: Layout) -> Option<Self> {
        let acknowledged = matches!(layout, Layout::Acknowledged | Layout::AcknowledgedCluster);
        let servers = match layout {
            Layout::Cluster | Layout::AcknowledgedCluster => {
                Servers::Cluster(RedisCluster::start().await)
            }
            Layout::Sentinels | Layout::Acknowledged => Servers::Watched(Watched::start().await),
            _ => return None,
        };
        Some(Self {
            servers,
            acknowledged,
        })
    }

    /// The fields of the request that opens a worker on it.
    pub(super) fn opening(&self, lease: Duration) -> Value {
        let mut opening = match &self.servers {
            Servers::Cluster(cluster) => json!({"cluster": true, "urls": cluster.urls()}),
            Servers::Watched(watched) => json!({
                "sentinel": {"service": SERVICE, "urls": watched.servers.urls()},
            }),
        };
        opening["acks"] = json!(u32::from(self.acknowledged));
        opening["watchdog_ms"] = json!(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        opening["unavailable_after_ms"] = json!(UNAVAILABLE_MS);
        opening
    }

    /// The server that has a key.
    pub(super) async fn server_of(&self, key: &str) -> &RedisServer {
        match &self.servers {
            Servers::Cluster(cluster) => cluster.server_of(key).await,
            Servers::Watched(watched) => watched.pair().0,
        }
    }

    /// All servers that have keys.
    pub(super) async fn masters(&self) -> Vec<&RedisServer> {
        match &self.servers {
            Servers::Cluster(cluster) => {
                let masters = cluster.present_masters().await.into_iter();
                masters.map(|index| cluster.node(index)).collect()
            }
            Servers::Watched(watched) => vec![watched.pair().0],
        }
    }

    pub(super) fn kill(&self) {
        let (servers, sentinels) = match &self.servers {
            Servers::Cluster(cluster) => (cluster.nodes(), [].as_slice()),
            Servers::Watched(watched) => (watched.servers.servers(), watched.servers.sentinels()),
        };
        for server in servers.iter().chain(sentinels) {
            server.kill();
        }
    }
}
