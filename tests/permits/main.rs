//! Semaphores, through the public API: every scenario with both kinds.

#[path = "../common/mod.rs"]
mod common;

/// Runs each scenario, which is generic over the kind, with both.
macro_rules! for_both {
    ($($scenario:ident,)+) => {
        mod semaphore {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    Box::pin(super::$scenario::<watchlock::kind::Counting>()).await;
                }
            )+
        }
        mod expirable {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    Box::pin(super::$scenario::<watchlock::kind::Expirable>()).await;
                }
            )+
        }
    };
}

mod cancellation;
mod counts;
mod deployments;
mod faults;
mod forgotten;
mod holders;
mod order;
mod passing;
mod waiting;

use std::time::Duration;

use watchlock::kind::{Counting, Expirable, SemaphoreKind};
use watchlock::{Client, ClientBuilder, Lease, Permit, SemaphoreHandle};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use common::{LONG, connect, script};

/// The semaphore of these tests.
pub(crate) const NAME: &str = "imports";
/// A client that is none of the test's.
pub(crate) const STRANGER: &str = "6a1b0c0e-0000-4000-8000-000000000001";

/// How a test comes by a semaphore of each kind.
pub(crate) trait Kind: SemaphoreKind + Sized {
    /// The key of the records.
    const RECORDS: &'static str;
    fn of(client: &Client, name: &str) -> SemaphoreHandle<Self>;
}

impl Kind for Counting {
    const RECORDS: &'static str = "watchlock_permits:{imports}";
    fn of(client: &Client, name: &str) -> SemaphoreHandle<Self> {
        client.get_semaphore(name)
    }
}

impl Kind for Expirable {
    const RECORDS: &'static str = "{imports}:timeout";
    fn of(client: &Client, name: &str) -> SemaphoreHandle<Self> {
        client.get_permit_expirable_semaphore(name)
    }
}

/// A server, and a client of it.
pub(crate) struct Scene {
    pub(crate) server: RedisServer,
    pub(crate) client: Client,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    pub(crate) async fn with(set: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Self {
        let server = RedisServer::start();
        let client = set(Client::builder(&server.url())).connect().await;
        let client = client.expect("a client");
        Self { server, client }
    }

    /// Another client.
    pub(crate) async fn other(&self) -> Client {
        connect(&self.server).await
    }

    /// A client that is gone took so many permits, for that many ms.
    pub(crate) async fn dead_holder<K: Kind>(&self, permits: u32, lease_ms: u64) {
        let (script, lease) = (script("permits/acquire.lua"), lease_ms.to_string());
        let count = permits.to_string();
        let ids: Vec<_> = (0..permits).map(|id| format!("dead-{id}")).collect();
        let keys = [NAME, K::RECORDS, "watchlock_needs:{imports}"];
        let mut call = vec!["EVAL", &script, "3"];
        call.extend(keys);
        call.extend([&*lease, "0", STRANGER, CHANNEL, &count, "1"]);
        call.extend(ids.iter().map(|id| &**id));
        let (code, _) = common::both(self.server.cmd(&call).await);
        assert!([-2, -13].contains(&code), "the stranger got them");
    }

    /// The number of free permits in Redis, and how many are recorded as taken.
    pub(crate) async fn state<K: Kind>(&self) -> (Option<i64>, i64) {
        let free = self.server.query(&["GET", NAME]).await;
        (free, self.server.query(&["ZCARD", K::RECORDS]).await)
    }

    /// Waits until all of so many permits are free, and nothing else is left.
    pub(crate) async fn all_are_free<K: Kind>(&self, permits: i64) {
        eventually("all permits are free", LONG, async || {
            self.state::<K>().await == (Some(permits), 0)
        })
        .await;
        eventually("only the number is left", LONG, async || {
            self.server.keys().await == [NAME]
        })
        .await;
    }

    /// Waits until somebody listens for releases.
    pub(crate) async fn listens(&self) {
        eventually("somebody listens", LONG, async || {
            self.server.subscribers(CHANNEL).await > 0
        })
        .await;
    }
}

pub(crate) const CHANNEL: &str = "redisson_sc:{imports}";

/// One try for a permit.
pub(crate) async fn once<K: Kind>(of: &SemaphoreHandle<K>) -> Option<Permit> {
    let got = of.try_acquire(Duration::ZERO, Lease::Watchdog).await;
    got.expect("a clean answer")
}
