//! The servers of a campaign.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::WATCHDOG_LEASE;
use crate::server::RedisServer;

/// One server, the five of a quorum, or masters with replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// One server that keeps its data.
    #[default]
    One,
    /// Five that keep all data, so each may vote as soon as it is there.
    Remembering,
    /// Five that forget everything when they restart, and vote once everything that they may have forgotten is over.
    Forgetting,
    /// A cluster of three masters with a replica each, without acknowledgements.
    Cluster,
    /// The same, whose replicas acknowledge what is granted.
    AcknowledgedCluster,
    /// A master and its only replica, watched by three sentinels, without acknowledgements.
    Sentinels,
    /// The same, whose replica acknowledges what is granted.
    Acknowledged,
}

/// Longer than a fail-over.
const LONG_LEASE: Duration = Duration::from_secs(6);

/// How many servers a quorum has.
const QUORUM: usize = 5;

/// How long a server that forgets does not vote: what the library derives from the workers' longest lease, and a
/// second, since uptime is in whole seconds.
const RESTART_DELAY: Duration = Duration::from_secs(WATCHDOG_LEASE.as_secs() + 4);

impl Layout {
    /// Its name in `CHAOS_ON`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Remembering | Self::Forgetting => "quorum",
            Self::Cluster => "cluster",
            Self::Sentinels => "sentinels",
            Self::Acknowledged | Self::AcknowledgedCluster => "acknowledged",
        }
    }

    /// Whether masters fail and replicas take their places.
    pub(super) fn has_replicas(self) -> bool {
        matches!(
            self,
            Self::Cluster | Self::AcknowledgedCluster | Self::Sentinels | Self::Acknowledged
        )
    }

    /// Whether the servers know nothing of each other.
    pub(super) fn is_quorum(self) -> bool {
        matches!(self, Self::Remembering | Self::Forgetting)
    }

    /// The lease of the workers' watchdogs. With fail-overs it must outlast one.
    pub(super) fn lease(self) -> Duration {
        if self.has_replicas() {
            LONG_LEASE
        } else {
            WATCHDOG_LEASE
        }
    }

    /// Starts the servers. Those that belong together are a [`Deployment`](super::deployment::Deployment).
    pub(super) fn servers(self) -> Vec<RedisServer> {
        let start = |remembers: bool| {
            let options = RedisServer::options();
            if remembers { options.aof() } else { options }.start()
        };
        match self {
            Self::One => vec![start(true)],
            Self::Remembering => (0..QUORUM).map(|_| start(true)).collect(),
            Self::Forgetting => (0..QUORUM).map(|_| start(false)).collect(),
            _ => Vec::new(),
        }
    }

    /// The fields of the request that opens a worker on these servers.
    pub(super) fn opening(self, urls: &[String]) -> Value {
        let lease_ms = u64::try_from(self.lease().as_millis()).unwrap_or(u64::MAX);
        match self {
            Self::One => json!({"url": urls[0], "watchdog_ms": lease_ms}),
            Self::Forgetting => json!({"urls": urls, "watchdog_ms": lease_ms}),
            Self::Remembering => {
                json!({"urls": urls, "watchdog_ms": lease_ms, "restart_delay_ms": 0})
            }
            _ => Value::Null,
        }
    }

    /// How long a server does not vote after a restart.
    pub(super) fn restart_delay(self) -> Duration {
        match self {
            Self::Forgetting => RESTART_DELAY,
            _ => Duration::ZERO,
        }
    }

    /// Waits until servers that have just started vote.
    pub(super) async fn may_vote(self) {
        tokio::time::sleep(self.restart_delay()).await;
    }

    /// Distinguishes the files of campaigns with the same seed.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::One => "",
            Self::Remembering => "-remembering",
            Self::Forgetting => "-forgetting",
            Self::Cluster => "-cluster",
            Self::AcknowledgedCluster => "-acknowledged-cluster",
            Self::Sentinels => "-sentinels",
            Self::Acknowledged => "-acknowledged",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "on one server",
            Self::Remembering => "on five servers that forget nothing and vote at once",
            Self::Forgetting => "on five servers that forget everything and have no vote at first",
            Self::Cluster => "on a cluster of three masters with a replica each",
            Self::AcknowledgedCluster => {
                "on a cluster of three masters with a replica each, which acknowledge"
            }
            Self::Sentinels => "on a master and a replica that sentinels watch",
            Self::Acknowledged => {
                "on a master and a replica that sentinels watch, and that acknowledges"
            }
        })
    }
}
