//! watchlock, as its quickstart shows it: a watchdog lease, a handle made anew for each section.

use std::time::Instant;

use watchlock::{Client, Lease, MultiLock};

use super::{Held, LockUnderTest, Setup, Together};
use crate::Result;

/// One client, shared by all tasks.
#[derive(Clone)]
pub(crate) struct Watchlock {
    client: Client,
}

impl LockUnderTest for Watchlock {
    async fn connect(url: &str, _setup: Setup) -> Result<Self> {
        let client = Client::connect(url).await?;
        Ok(Self { client })
    }

    async fn section<B>(&self, name: &str, body: B) -> Result<()>
    where
        B: Future<Output = ()> + Send + 'static,
    {
        let guard = self.client.get_lock(name).lock().await?;
        body.await;
        Ok(guard.unlock().await?)
    }

    async fn reenter(&self, name: &str, end: Instant) -> Result<Option<Vec<f64>>> {
        let guard = self.client.get_lock(name).lock().await?;
        let mut took = Vec::new();
        while Instant::now() < end {
            let before = Instant::now();
            let level = guard.reenter(Lease::Watchdog).await?;
            took.push(before.elapsed().as_secs_f64() * 1e6);
            level.unlock().await?;
        }
        guard.unlock().await?;
        Ok(Some(took))
    }

    async fn together(&self, names: Vec<String>, end: Instant) -> Result<Option<Together>> {
        let mut took = Together::default();
        let mut before = Instant::now();
        while before < end {
            let one = self.client.get_lock(&names[0]);
            one.lock().await?.unlock().await?;
            let between = Instant::now();
            let locks = names.iter().map(|name| self.client.get_lock(name));
            let all = MultiLock::new(locks)?;
            all.lock().await?.unlock().await?;
            let after = Instant::now();
            took.one.push((between - before).as_secs_f64() * 1e6);
            took.all.push((after - between).as_secs_f64() * 1e6);
            before = after;
        }
        Ok(Some(took))
    }

    async fn hold(&self, name: &str) -> Result<Option<Held>> {
        Ok(Some(Box::new(self.client.get_lock(name).lock().await?)))
    }
}
