//! How connections are made: from an address, or by a pool's manager.
//!
//! A lane's connection is made by the manager's `create` and never by the pool's `get`: the driver of
//! an idle connection may live on a runtime that the user blocks, and one that is shared with the
//! application would swallow our commands in its `MULTI`.

use std::time::Duration;

use deadpool::managed::Manager as _;
use deadpool_redis::Pool;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo};

use super::failure::Failure;
use crate::error::ConfigError;

/// A redis-rs time-out that never comes first: deadlines are ours, and a time-out of the library would
/// be a timer on the wrong runtime.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Makes connections.
pub(crate) struct Dialer {
    address: redis::Client,
    pool: Option<Pool>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dialer")
    }
}

impl Dialer {
    /// From an address, and the pool that commands shall use if there is one.
    pub(crate) fn from_url(url: &str, pool: Option<Pool>) -> Result<Self, ConfigError> {
        let info = url.into_connection_info().map_err(|_| {
            if is_encrypted(url) && cfg!(not(feature = "tls")) {
                ConfigError::TlsDisabled
            } else {
                ConfigError::InvalidUrl
            }
        })?;
        let client = redis::Client::open(tuned(info)).map_err(|_| ConfigError::InvalidUrl)?;
        Self::from_client(client, pool)
    }

    /// From a client of redis-rs, for what an address cannot say.
    pub(crate) fn from_client(
        client: redis::Client,
        pool: Option<Pool>,
    ) -> Result<Self, ConfigError> {
        let info = client.get_connection_info();
        if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            install_crypto()?;
        }
        Ok(Self {
            address: client,
            pool,
        })
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
                None => self.by_address(timeout).await,
                Some(pool) => {
                    let mut connection = pool.manager().create().await?;
                    connection.set_response_timeout(NO_TIMEOUT);
                    Ok(connection)
                }
            }
        };
        within(timeout, connecting).await
    }

    /// A connection by the address, whether or not there is a pool.
    pub(crate) async fn connect_by_address(
        &self,
        timeout: Duration,
    ) -> Result<MultiplexedConnection, Failure> {
        within(timeout, self.by_address(timeout)).await
    }

    async fn by_address(&self, timeout: Duration) -> redis::RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None);
        self.address
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// A new connection for subscriptions.
    pub(crate) async fn subscribe(&self, timeout: Duration) -> Result<PubSub, Failure> {
        within(timeout, self.address.get_async_pubsub()).await
    }
}

fn is_encrypted(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        scheme.eq_ignore_ascii_case("rediss") || scheme.eq_ignore_ascii_case("valkeys")
    })
}

/// The address with what a lock's connection needs: small commands sent at once, dead peers found.
fn tuned(info: ConnectionInfo) -> ConnectionInfo {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(10));
    info.set_tcp_settings(settings)
}

async fn within<T>(
    timeout: Duration,
    connecting: impl Future<Output = redis::RedisResult<T>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(timeout, connecting).await {
        Ok(result) => result.map_err(Failure::connecting),
        Err(_) => Err(Failure::no_connection()),
    }
}

/// rustls wants one provider of cryptography per process; an application that chose one keeps it.
#[cfg(feature = "tls")]
#[expect(clippy::unnecessary_wraps, reason = "fails where the feature is off")]
fn install_crypto() -> Result<(), ConfigError> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Losing the race to another thread is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn install_crypto() -> Result<(), ConfigError> {
    Err(ConfigError::TlsDisabled)
}
