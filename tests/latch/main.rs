//! Count-down latches, through the public API.

#[path = "../common/mod.rs"]
mod common;

mod cancellation;
mod counting;
mod deployments;
mod faults;
mod figure;
mod waiting;

use tokio::task::JoinHandle;
use watchlock::{Client, ClientBuilder, CountDownLatch, Error};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use common::{LONG, connect, without_polls};

/// The latch of these tests.
pub(crate) const NAME: &str = "parts";
pub(crate) const CHANNEL: &str = "redisson_countdownlatch__channel__{parts}";
pub(crate) const COUNTED: &str = "watchlock_counted:{parts}";

/// A server, a client of it, and its latch.
pub(crate) struct Scene {
    pub(crate) server: RedisServer,
    pub(crate) client: Client,
    pub(crate) latch: CountDownLatch,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    pub(crate) async fn with(set: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Self {
        let server = RedisServer::start();
        let client = set(Client::builder(&server.url())).connect().await;
        let client = client.expect("a client");
        let latch = client.get_count_down_latch(NAME);
        Self {
            server,
            client,
            latch,
        }
    }

    /// The latch of another client.
    pub(crate) async fn other(&self) -> CountDownLatch {
        connect(&self.server).await.get_count_down_latch(NAME)
    }

    /// The latch of another client, which polls once a minute.
    pub(crate) async fn without_polls(&self) -> CountDownLatch {
        let client = without_polls(&self.server).connect().await;
        client.expect("a client").get_count_down_latch(NAME)
    }

    /// Waits until so many clients listen.
    pub(crate) async fn listeners(&self, clients: u64) {
        eventually("they listen", LONG, async || {
            self.server.subscribers(CHANNEL).await == clients
        })
        .await;
    }

    /// How many scripts ran.
    pub(crate) async fn scripts(&self) -> u64 {
        let calls = self.server.calls().await;
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        of("evalsha") + of("eval")
    }

    /// A client that listens and then is quiet: its questions are answered.
    pub(crate) async fn quiet(&self, clients: u64) {
        self.listeners(clients).await;
        let mut before = 0;
        eventually("no question is under way", LONG, async || {
            tokio::time::sleep(common::ms(30)).await;
            std::mem::replace(&mut before, self.scripts().await) == before
        })
        .await;
    }
}

/// Somebody waits.
pub(crate) fn waits(latch: &CountDownLatch) -> JoinHandle<Result<(), Error>> {
    let latch = latch.clone();
    tokio::spawn(async move { latch.wait().await })
}
