//! The floor of a quorum: the acquire script sent to all servers together, done at the answer that makes a majority.
//! There is no quorum code: this is the machine's time for so many commands at once.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream::FuturesUnordered;

use super::floor::Floor;
use super::{LockUnderTest, Setup};
use crate::Result;

/// Raw connections to the servers of a quorum.
pub(crate) struct Majority {
    servers: Vec<Floor>,
}

impl Majority {
    pub(crate) async fn connect(urls: &[String]) -> Result<Self> {
        let connecting = urls.iter().map(|url| Floor::connect(url, Setup::Default));
        Ok(Self {
            servers: try_join_all(connecting).await?,
        })
    }

    /// Takes `name` at all servers; returns how long it took until a majority had granted it. Then awaits the rest, and
    /// gives all back.
    pub(crate) async fn acquire(&self, name: &str) -> Result<Duration> {
        let before = Instant::now();
        let mut tries: FuturesUnordered<_> = self
            .servers
            .iter()
            .map(|server| server.acquire(name))
            .collect();
        for _ in 0..=self.servers.len() / 2 {
            tries.next().await.transpose()?;
        }
        let took = before.elapsed();
        while tries.next().await.transpose()?.is_some() {}
        try_join_all(self.servers.iter().map(|server| server.release(name, "0"))).await?;
        Ok(took)
    }
}
