//! The floor: two of the crate's scripts, raw, on the same kind of connection, without a library.
//!
//! It does not wait, renew, count or watch: nothing that uses these scripts can be cheaper.

use std::sync::Arc;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use super::script::{self, LEASE_MS, Scripts};
use super::{LockUnderTest, Setup};
use crate::Result;

/// Raw EVALSHA.
#[derive(Clone)]
pub(crate) struct Floor {
    connection: MultiplexedConnection,
    scripts: Arc<Scripts>,
    hold_id: Arc<str>,
}

impl Floor {
    async fn evalsha(&self, sha: &str, name: &str, args: &[&str]) -> Result<i64> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha).arg(1).arg(name).arg(&*self.hold_id);
        for arg in args {
            command.arg(*arg);
        }
        Ok(command.query_async(&mut self.connection.clone()).await?)
    }

    /// Starts a hold.
    pub(super) async fn acquire(&self, name: &str) -> Result<()> {
        let lease = LEASE_MS.to_string();
        match self.evalsha(&self.scripts.acquire, name, &[&lease]).await? {
            -2 => Ok(()),
            other => Err(format!("the floor found {name} taken: {other}").into()),
        }
    }

    /// Adds a level.
    async fn level(&self, name: &str, count: &str) -> Result<()> {
        let lease = LEASE_MS.to_string();
        self.evalsha(&self.scripts.reenter, name, &[count, &lease])
            .await?;
        Ok(())
    }

    /// Gives a level back; the last one ends the hold.
    pub(super) async fn release(&self, name: &str, count: &str) -> Result<()> {
        let channel = script::channel(name);
        self.evalsha(&self.scripts.release, name, &[count, &channel])
            .await?;
        Ok(())
    }
}

impl LockUnderTest for Floor {
    async fn connect(url: &str, _setup: Setup) -> Result<Self> {
        Ok(Self {
            connection: script::connect(url).await?,
            scripts: Arc::new(Scripts::load(url)?),
            hold_id: format!("{}:1", Uuid::new_v4()).into(),
        })
    }

    async fn section<B>(&self, name: &str, body: B) -> Result<()>
    where
        B: Future<Output = ()> + Send + 'static,
    {
        self.acquire(name).await?;
        body.await;
        self.release(name, "0").await
    }
    async fn reenter(&self, name: &str, end: Instant) -> Result<Option<Vec<f64>>> {
        self.acquire(name).await?;
        let mut took = Vec::new();
        while Instant::now() < end {
            let before = Instant::now();
            self.level(name, "2").await?;
            took.push(before.elapsed().as_secs_f64() * 1e6);
            self.release(name, "1").await?;
        }
        self.release(name, "0").await?;
        Ok(Some(took))
    }
}
