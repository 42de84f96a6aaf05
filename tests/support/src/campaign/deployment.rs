//! Masters with replicas that take their places: a cluster, or what sentinels watch.

use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Layout;
use crate::cluster::RedisCluster;
use crate::sentinel::{SERVICE, SentinelDeployment};
use crate::server::RedisServer;

/// For how long owners go on while nothing is available; longer than any fail-over.
const UNAVAILABLE_MS: u32 = 60_000;

pub(super) enum Deployment {
    Cluster(RedisCluster),
    Watched(Watched),
}

/// A master and its only replica, which sentinels watch.
pub(super) struct Watched {
    pub(super) servers: SentinelDeployment,
    pub(super) acknowledged: bool,
    /// Which of the two is the master.
    master: Mutex<usize>,
}

impl Watched {
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
    /// What belongs together in a layout.
    pub(super) async fn start(layout: Layout) -> Option<Self> {
        let acknowledged = match layout {
            Layout::Cluster => return Some(Self::Cluster(RedisCluster::start().await)),
            Layout::Sentinels => false,
            Layout::Acknowledged => true,
            _ => return None,
        };
        let servers = SentinelDeployment::start().await;
        servers.servers()[0].acknowledged(1).await;
        Some(Self::Watched(Watched {
            servers,
            acknowledged,
            master: Mutex::new(0),
        }))
    }

    /// With what a worker on it is opened.
    pub(super) fn opening(&self, lease: Duration) -> Value {
        let mut opening = match self {
            Self::Cluster(cluster) => json!({"cluster": true, "urls": cluster.urls()}),
            Self::Watched(watched) => json!({
                "sentinel": {"service": SERVICE, "urls": watched.servers.urls()},
                "acks": u32::from(watched.acknowledged),
            }),
        };
        opening["watchdog_ms"] = json!(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        opening["unavailable_after_ms"] = json!(UNAVAILABLE_MS);
        opening
    }

    /// The server that has a key.
    pub(super) async fn server_of(&self, key: &str) -> &RedisServer {
        match self {
            Self::Cluster(cluster) => cluster.server_of(key).await,
            Self::Watched(watched) => watched.pair().0,
        }
    }

    /// All that have keys.
    pub(super) async fn masters(&self) -> Vec<&RedisServer> {
        match self {
            Self::Cluster(cluster) => {
                let masters = cluster.present_masters().await.into_iter();
                masters.map(|index| cluster.node(index)).collect()
            }
            Self::Watched(watched) => vec![watched.pair().0],
        }
    }

    pub(super) fn kill(&self) {
        let (servers, sentinels) = match self {
            Self::Cluster(cluster) => (cluster.nodes(), [].as_slice()),
            Self::Watched(watched) => (watched.servers.servers(), watched.servers.sentinels()),
        };
        for server in servers.iter().chain(sentinels) {
            server.kill();
        }
    }
}
