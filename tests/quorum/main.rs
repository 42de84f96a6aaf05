//! Locks of a quorum of real servers, through the public API.

#[path = "../common/mod.rs"]
mod common;

mod connecting;
mod deadlines;
mod distance;
mod fencing;
mod guards;
mod holders;
mod levels;
mod nodes;
mod repair;
mod restarts;
mod waiting;

use std::time::Duration;

use watchlock::{Lease, LockGuard, Quorum, QuorumBuilder, QuorumLock};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, ms};

/// The servers of a test. They have just started, so they vote at once only with `restart_delay(0)`.
pub(crate) struct Five(pub(crate) Vec<RedisServer>);

impl Five {
    pub(crate) fn start() -> Self {
        Self((0..5).map(|_| RedisServer::start()).collect())
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.0.iter().map(RedisServer::url).collect()
    }

    /// A quorum whose servers all vote, with time-outs for a busy machine.
    pub(crate) fn builder(&self) -> QuorumBuilder {
        of(&self.urls())
    }

    pub(crate) async fn connect(&self) -> Quorum {
        self.builder().connect().await.expect("a quorum")
    }

    /// One whose watchdog lease a test can wait for.
    pub(crate) async fn connect_for(&self, lease: Duration) -> Quorum {
        let builder = self.builder().watchdog_lease(lease);
        builder.connect().await.expect("a quorum")
    }

    /// On how many of the running servers the key exists.
    pub(crate) async fn have(&self, servers: &[usize], key: &str) -> usize {
        let mut have = 0;
        for server in servers {
            have += usize::from(self.0[*server].exists(key).await);
        }
        have
    }

    /// Waits until so many of all servers have the key.
    pub(crate) async fn until(&self, count: usize, key: &str) {
        eventually("so many servers have it", LONG, async || {
            self.have(&[0, 1, 2, 3, 4], key).await == count
        })
        .await;
    }

    pub(crate) async fn clean(&self) {
        for server in &self.0 {
            clean(server).await;
        }
    }
}

pub(crate) fn of(urls: &[String]) -> QuorumBuilder {
    Quorum::builder(urls)
        .restart_delay(Duration::ZERO)
        .node_timeout(ms(1_000))
}

pub(crate) async fn try_once(lock: &QuorumLock) -> Option<LockGuard> {
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    tried.expect("a clean answer")
}

/// Gives it back, in order.
pub(crate) async fn end(guard: LockGuard) {
    guard.unlock().await.expect("held to the end");
}
