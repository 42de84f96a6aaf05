//! The crate `async-redis-lock`: two scripts, polling, a renewing task per lock.

use std::time::Duration;

use async_redis_lock::{Locker, Options};

use watchlock_compare::{Held, LockUnderTest, Result, Setup, client_with_nodelay};

#[derive(Clone)]
pub(crate) struct AsyncRedisLock {
    locker: Locker,
    options: Options,
}

impl LockUnderTest for AsyncRedisLock {
    async fn connect(url: &str, setup: Setup) -> Result<Self> {
        Ok(match setup {
            Setup::Default => Self {
                locker: Locker::from_redis_url(url).await?,
                options: Options::default(),
            },
            Setup::Tuned => Self {
                locker: Locker::from_client(client_with_nodelay(url)?).await?,
                options: Options::new().retry(Duration::from_millis(1)).timeout(None),
            },
        })
    }

    async fn section<B>(&self, name: &str, body: B) -> Result<()>
    where
        B: Future<Output = ()> + Send + 'static,
    {
        let acquire = self.locker.acquire_with_options(&self.options, name);
        let lock = acquire.await?;
        body.await;
        Ok(lock.release().await?)
    }

    async fn hold(&self, name: &str) -> Result<Option<Held>> {
        let acquire = self.locker.acquire_with_options(&self.options, name);
        Ok(Some(Box::new(acquire.await?)))
    }
}
