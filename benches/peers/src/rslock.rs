//! The crate `rslock`: SET NX PX and a script for unlock, polling, no renewal.

use std::time::Duration;

use rslock::LockManager;

use watchlock_compare::{LockUnderTest, Result, Setup, client_with_nodelay};

const LEASE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct Rslock {
    manager: LockManager,
}

impl LockUnderTest for Rslock {
    async fn connect(url: &str, setup: Setup) -> Result<Self> {
        let manager = match setup {
            Setup::Default => LockManager::new(vec![url]),
            Setup::Tuned => {
                let mut manager = LockManager::from_clients(vec![client_with_nodelay(url)?]);
                manager.set_retry(u32::MAX, Duration::from_millis(2));
                manager
            }
        };
        Ok(Self { manager })
    }

    async fn section<B>(&self, name: &str, body: B) -> Result<()>
    where
        B: Future<Output = ()> + Send + 'static,
    {
        let guard = self.manager.acquire(name, LEASE).await?;
        body.await;
        guard.release().await;
        Ok(())
    }
}
