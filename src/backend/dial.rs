//! How connections are made: from an address, or by a pool's manager.
//!
//! A lane's connection is made by the manager's `create` and never by the pool's `get`: the driver of
//! an idle connection may live on a runtime that the user blocks, and one that is shared with the
//! application would swallow our commands in its `MULTI`.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool::managed::Manager as _;
use deadpool_redis::Pool;
use futures_util::FutureExt;
use redis::aio::{MultiplexedConnection, PubSub};

use super::address::Address;
use super::failure::Failure;
use crate::error::ConfigError;

/// A redis-rs time-out that never comes first: deadlines are ours, and a time-out of the library would
/// be a timer on the wrong runtime.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Makes connections.
pub(crate) struct Dialer {
    address: Address,
    pool: Option<Pool>,
    /// Whether it was told that connecting panics.
    panicked: AtomicBool,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dialer")
    }
}

impl Dialer {
    /// From an address, and the pool that commands shall use if there is one.
    pub(crate) fn from_url(url: &str, pool: Option<Pool>) -> Result<Self, ConfigError> {
        Ok(Self::new(Address::from_url(url)?, pool))
    }

    /// From a client of redis-rs, for what an address cannot say.
    pub(crate) fn from_client(
        client: &redis::Client,
        pool: Option<Pool>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::new(Address::from_client(client)?, pool))
    }

    fn new(address: Address, pool: Option<Pool>) -> Self {
        Self {
            address,
            pool,
            panicked: AtomicBool::new(false),
        }
    }

    /// Whether commands go through a pool that the application made.
    pub(crate) fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// A new connection for commands, driven by the runtime that this is called on.
    pub(crate) async fn connect(
        &self,
        timeout: Duration,
    ) -> Result<MultiplexedConnection, Failure> {
        let connecting = async {
            match &self.pool {
                None => self.address.multiplexed(timeout).await,
                Some(pool) => {
                    let mut connection = pool.manager().create().await?;
                    connection.set_response_timeout(NO_TIMEOUT);
                    Ok(connection)
                }
            }
        };
        self.within(timeout, connecting).await
    }

    /// A connection by the address, whether or not there is a pool.
    pub(crate) async fn connect_by_address(
        &self,
        timeout: Duration,
    ) -> Result<MultiplexedConnection, Failure> {
        let connecting = self.address.multiplexed(timeout);
        self.within(timeout, connecting).await
    }

    /// A new connection for subscriptions.
    pub(crate) async fn subscribe(&self, timeout: Duration) -> Result<PubSub, Failure> {
        let connecting = self.address.pubsub();
        self.within(timeout, connecting).await
    }

    /// Why the server hangs up, if it says so.
    pub(crate) async fn refusal(&self, timeout: Duration) -> Option<Failure> {
        let address = self.address.asked_first()?;
        let connecting = address.multiplexed(timeout);
        self.within(timeout, connecting).await.err()
    }

    /// An attempt has its time, and may run code of the application's, which may panic.
    async fn within<T>(
        &self,
        timeout: Duration,
        connecting: impl Future<Output = redis::RedisResult<T>>,
    ) -> Result<T, Failure> {
        let limited = async { tokio::time::timeout(timeout, connecting).await };
        match AssertUnwindSafe(limited).catch_unwind().await {
            Ok(Ok(result)) => result.map_err(Failure::connecting),
            Ok(Err(_)) => Err(Failure::no_connection()),
            Err(_) => {
                // Relaxed: nothing else depends on the flag.
                if !self.panicked.swap(true, Ordering::Relaxed) {
                    tracing::error!("connecting to Redis panicked; it is tried again");
                }
                Err(Failure::panic())
            }
        }
    }
}
