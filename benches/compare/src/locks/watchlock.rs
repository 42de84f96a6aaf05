//! watchlock, as its quickstart shows it: a watchdog lease, a new handle for each section.

use std::pin::Pin;
use std::time::{Duration, Instant};

use watchlock::{Client, Lease, LockGuard, MultiLock, Quorum};

use super::majority::Majority;
use super::{Held, LockUnderTest, Majorities, OUTAGE_LEASE, Setup, Together, Watched};
use crate::Result;

/// Enough time for a replica that works.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(200);

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

    async fn majorities(
        &self,
        quorums: [Vec<String>; 2],
        window: Duration,
    ) -> Result<Option<Majorities>> {
        let [all, some] = quorums;
        let one = Client::connect(&all[0]).await?;
        let raw = Majority::connect(&all).await?;
        // The servers have just started; a real quorum has servers that have been up for long enough to vote.
        let of = |urls| {
            Quorum::builder(urls)
                .restart_delay(Duration::ZERO)
                .connect()
        };
        let (all, some) = (of(all).await?, of(some).await?);
        let mut took = Majorities::default();
        let (mut warm, end) = (true, Instant::now() + window + window / 4);
        loop {
            let before = Instant::now();
            let guard = one.get_lock("bench:one").lock().await?;
            took.one.push(us_since(before));
            guard.unlock().await?;
            took.raw
                .push(raw.acquire("bench:raw").await?.as_secs_f64() * 1e6);
            // What is given back after a majority answered is in nobody's way: each section has a name of its own.
            let quorums = [
                (&all, "bench:all", &mut took.all),
                (&some, "bench:some", &mut took.some),
            ];
            for (quorum, name, took) in quorums {
                let before = Instant::now();
                let guard = quorum.get_lock(name).lock().await?;
                took.push(us_since(before));
                guard.unlock().await?;
            }
            if before >= end {
                return Ok(Some(took));
            }
            if warm && before + window >= end {
                (warm, took) = (false, Majorities::default());
            }
        }
    }

    async fn acknowledged(&self, url: &str) -> Result<Option<Self>> {
        let builder = Client::builder(url).acknowledged_by(1, ACKNOWLEDGED_WITHIN);
        let client = builder.connect().await?;
        Ok(Some(Self { client }))
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        Ok(self.client.get_lock(name).is_locked().await?)
    }

    async fn hold(&self, name: &str) -> Result<Option<Held>> {
        Ok(Some(Box::new(self.client.get_lock(name).lock().await?)))
    }

    async fn shut_down(&self, wait: Duration) -> Result<bool> {
        self.client.shutdown(wait).await;
        Ok(true)
    }

    async fn with_short_lease(&self, url: &str) -> Result<Option<Self>> {
        let builder = Client::builder(url).watchdog_lease(OUTAGE_LEASE);
        let client = builder.connect().await?;
        Ok(Some(Self { client }))
    }

    async fn watched(&self, name: &str) -> Result<Box<dyn Watched>> {
        Ok(Box::new(self.client.get_lock(name).lock().await?))
    }
}

impl Watched for LockGuard {
    fn valid_for(&self) -> Duration {
        self.valid_for()
    }

    fn lost(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            self.lost().await;
        })
    }
}

fn us_since(before: Instant) -> f64 {
    before.elapsed().as_secs_f64() * 1e6
}
