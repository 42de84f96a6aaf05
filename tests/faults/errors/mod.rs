//! A server in trouble, and what a client of it must say and do.

mod denied;
mod not_ready;
mod refused;

use std::time::Duration;

use watchlock::{Client, Error, LockGuard};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, ms, soon};

/// What no test waits for.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// How long an answer is waited for.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);

/// A client that gives up on an answer soon, and on the server late.
pub(crate) async fn patient(url: &str) -> Client {
    Client::builder(url)
        .command_timeout(TIMEOUT)
        .unavailable_after(MINUTE)
        .connect()
        .await
        .expect("a client")
}

/// One try under the watchdog.
pub(crate) async fn one_try(client: &Client, name: &str) -> Result<Option<LockGuard>, Error> {
    crate::common::try_once(client, name).await
}

/// What happens before, in and after the trouble.
pub(crate) struct Story {
    client: Client,
    /// Held through it.
    kept: LockGuard,
    /// Given back in it.
    given_back: LockGuard,
    dropped: LockGuard,
}

impl Story {
    pub(crate) async fn begin(client: Client) -> Self {
        let kept = client.get_lock("kept").lock().await.unwrap();
        let given_back = client
            .get_lock("given-back")
            .lock_for(MINUTE)
            .await
            .unwrap();
        let dropped = client.get_lock("dropped").lock_for(MINUTE).await.unwrap();
        Self {
            client,
            kept,
            given_back,
            dropped,
        }
    }

    /// In the trouble: `is_typed` knows the error; what waits is returned.
    pub(crate) async fn suffer(self, is_typed: fn(&Error) -> bool) -> Waiting {
        let refused = soon(one_try(&self.client, "new")).await.unwrap_err();
        assert!(is_typed(&refused) && refused.is_transient(), "{refused:?}");
        let lock = self.client.get_lock("new");
        let refused = soon(lock.try_lock(ms(100), MINUTE)).await.unwrap_err();
        assert!(is_typed(&refused) && refused.is_transient(), "{refused:?}");
        let waiter = tokio::spawn(async move { lock.lock().await });
        let refused = soon(self.given_back.unlock()).await.unwrap_err();
        assert!(is_typed(&refused), "{refused:?}");
        drop(self.dropped);
        assert!(self.kept.is_valid());
        Waiting {
            kept: self.kept,
            waiter,
        }
    }
}

/// What is left when the trouble is over.
pub(crate) struct Waiting {
    kept: LockGuard,
    waiter: tokio::task::JoinHandle<Result<LockGuard, Error>>,
}

impl Waiting {
    /// Afterwards: the waiter gets in, what was given back is gone, what was kept is there.
    pub(crate) async fn recover(self, server: &RedisServer) {
        let guard = soon(self.waiter)
            .await
            .unwrap()
            .expect("it waited through it");
        guard.unlock().await.unwrap();
        eventually("what was given back is gone", LONG, async || {
            server.keys().await == ["kept"]
        })
        .await;
        self.kept.check().unwrap();
        self.kept.unlock().await.unwrap();
        clean(server).await;
    }
}
