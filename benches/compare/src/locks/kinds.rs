//! watchlock's other kinds of lock, and other ways to take the plain one: a section for each.

use std::sync::Arc;
use std::time::Duration;

use watchlock::{Client, LockGuard, ReadLock};

use super::{LockUnderTest, Setup};
use crate::Result;

/// An entrant that locks and unlocks as `$section` says.
macro_rules! entrant {
    ($(#[$doc:meta])* $entrant:ident, |$client:ident, $name:ident, $body:ident| $section:expr) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub(crate) struct $entrant(Client);

        impl LockUnderTest for $entrant {
            async fn connect(url: &str, _setup: Setup) -> Result<Self> {
                Ok(Self(Client::connect(url).await?))
            }

            async fn section<B>(&self, $name: &str, $body: B) -> Result<()>
            where
                B: Future<Output = ()> + Send + 'static,
            {
                let $client = &self.0;
                $section
            }
        }
    };
}

entrant!(
    /// Fenced locks.
    Fenced,
    |client, name, body| {
        let guard = client.get_fenced_lock(name).lock().await?;
        body.await;
        Ok(guard.unlock().await?)
    }
);

entrant!(
    /// Spin locks.
    Spin,
    |client, name, body| {
        let guard = client.get_spin_lock(name).lock().await?;
        body.await;
        Ok(guard.unlock().await?)
    }
);

entrant!(
    /// Simple locks.
    Simple,
    |client, name, body| {
        let guard = client.get_simple_lock(name).lock().await?;
        body.await;
        Ok(guard.unlock().await?)
    }
);

entrant!(
    /// Fair locks.
    Fair,
    |client, name, body| {
        let guard = client.get_fair_lock(name).lock().await?;
        body.await;
        Ok(guard.unlock().await?)
    }
);

entrant!(
    /// Write locks.
    Write,
    |client, name, body| {
        let lock = client.get_read_write_lock(name).write_lock();
        let guard = lock.lock().await?;
        body.await;
        Ok(guard.unlock().await?)
    }
);

/// Read locks.
#[derive(Clone)]
pub(crate) struct Read(Client);

impl LockUnderTest for Read {
    async fn connect(url: &str, _setup: Setup) -> Result<Self> {
        Ok(Self(Client::connect(url).await?))
    }

    async fn section<B>(&self, name: &str, body: B) -> Result<()>
    where
        B: Future<Output = ()> + Send + 'static,
    {
        let lock = self.0.get_read_write_lock(name).read_lock();
        let guard = lock.lock().await?;
        body.await;
        Ok(guard.unlock().await?)
    }

    async fn write<B>(&self, name: &str, body: B) -> Result<()>
    where
        B: Future<Output = ()> + Send + 'static,
    {
        Write(self.0.clone()).section(name, body).await
    }
}

/// A read lock that this client holds all the time: every task takes that one.
#[derive(Clone)]
pub(crate) struct ReadHeld {
    lock: ReadLock,
    _held: Arc<LockGuard>,
}

impl LockUnderTest for ReadHeld {
    async fn connect(url: &str, _setup: Setup) -> Result<Self> {
        let client = Client::connect(url).await?;
        let lock = client.get_read_write_lock("bench:held").read_lock();
        let held = Arc::new(lock.lock().await?);
        Ok(Self { lock, _held: held })
    }

    async fn section<B>(&self, _name: &str, body: B) -> Result<()>
    where
        B: Future<Output = ()> + Send + 'static,
    {
        let guard = self.lock.lock().await?;
        body.await;
        Ok(guard.unlock().await?)
    }
}

entrant!(
    /// Permits of a semaphore.
    Permits,
    |client, name, body| {
        let permits = client.get_semaphore(name).with_permits(super::PERMITS);
        let permit = permits.acquire().await?;
        body.await;
        Ok(permit.release().await?)
    }
);

/// Longer than any measurement.
const DEADLINE: Duration = Duration::from_secs(600);

entrant!(
    /// Plain locks, with a deadline for each wait.
    WithDeadline,
    |client, name, body| {
        let lock = client.get_lock(name);
        let guard = lock.try_lock(DEADLINE, watchlock::Lease::Watchdog).await?;
        let guard = guard.ok_or("busy until the deadline")?;
        body.await;
        Ok(guard.unlock().await?)
    }
);

entrant!(
    /// Plain locks, each section in a scope of its own, with an owner made for it.
    InScope,
    |client, name, body| {
        let lock = client.get_lock(name);
        let section = async {
            let guard = lock.lock().await?;
            body.await;
            guard.unlock().await
        };
        Ok(client.scope(section).await?)
    }
);
