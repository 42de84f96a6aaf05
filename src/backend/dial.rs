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
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::failure::Failure;
use crate::error::ConfigError;

/// A redis-rs time-out that never comes first: deadlines are ours, and a time-out of the library would
/// be a timer on the wrong runtime.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Makes connections.
pub(crate) struct Dialer {
    address: redis::Client,
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
        let info = url.into_connection_info().map_err(|_| {
            if is_encrypted(url) && cfg!(not(feature = "tls")) {
                ConfigError::TlsDisabled
            } else {
                ConfigError::InvalidUrl
            }
        })?;
        Self::from_info(info, pool)
    }

    /// From a client of redis-rs, for what an address cannot say.
    pub(crate) fn from_client(
        client: redis::Client,
        pool: Option<Pool>,
    ) -> Result<Self, ConfigError> {
        // A client is no more than what it connects by.
        Self::from_info(client.get_connection_info().clone(), pool)
    }

    fn from_info(info: ConnectionInfo, pool: Option<Pool>) -> Result<Self, ConfigError> {
        if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            install_crypto()?;
        }
        let address = redis::Client::open(tuned(info)).map_err(|_| ConfigError::InvalidUrl)?;
        Ok(Self {
            address,
            pool,
            panicked: AtomicBool::new(false),
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
                None => by_address(&self.address, timeout).await,
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
        self.within(timeout, by_address(&self.address, timeout))
            .await
    }

    /// A new connection for subscriptions.
    pub(crate) async fn subscribe(&self, timeout: Duration) -> Result<PubSub, Failure> {
        let connecting = self.address.get_async_pubsub();
        self.within(timeout, connecting).await
    }

    /// Why the server hangs up, if it says so: what comes before it was asked for anything is lost with the
    /// answers that the library ignores, unless the first of them is one that counts.
    pub(crate) async fn refusal(&self, timeout: Duration) -> Option<Failure> {
        let info = self.address.get_connection_info().clone();
        let settings = info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP3).set_db(0);
        let settings = settings.set_skip_set_lib_name();
        let client = redis::Client::open(info.set_redis_settings(settings)).ok()?;
        let connecting = by_address(&client, timeout);
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
                // The flag guards nothing but itself.
                if !self.panicked.swap(true, Ordering::Relaxed) {
                    tracing::error!("connecting to Redis panicked: it is tried again");
                }
                Err(Failure::panic())
            }
        }
    }
}

async fn by_address(
    client: &redis::Client,
    timeout: Duration,
) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(None);
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

fn is_encrypted(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        scheme.eq_ignore_ascii_case("rediss") || scheme.eq_ignore_ascii_case("valkeys")
    })
}

/// The address with what a lock's connection needs: small commands sent at once, dead peers found. What
/// somebody chose stays as it is.
fn tuned(info: ConnectionInfo) -> ConnectionInfo {
    let mut settings = info.tcp_settings().clone().set_nodelay(true);
    if settings.keepalive().is_none() {
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(15))
            .with_interval(Duration::from_secs(5));
        settings = settings.set_keepalive(keepalive);
    }
    #[cfg(target_os = "linux")]
    if settings.user_timeout().is_none() {
        settings = settings.set_user_timeout(Duration::from_secs(10));
    }
    info.set_tcp_settings(settings)
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

#[cfg(test)]
mod tests {
    use super::*;
    use redis::io::tcp::TcpSettings;

    fn settings(dialer: &Dialer) -> TcpSettings {
        let info = dialer.address.get_connection_info();
        info.tcp_settings().clone()
    }

    #[test]
    fn every_connection_by_an_address_finds_dead_peers() {
        let url = "redis://127.0.0.1/";
        let given = redis::Client::open(url).unwrap();
        for dialer in [
            Dialer::from_url(url, None).unwrap(),
            Dialer::from_client(given, None).unwrap(),
        ] {
            let settings = settings(&dialer);
            assert!(settings.nodelay());
            assert!(settings.keepalive().is_some());
            #[cfg(target_os = "linux")]
            assert_eq!(settings.user_timeout(), Some(Duration::from_secs(10)));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_given_client_chose_is_kept() {
        let minute = Duration::from_secs(60);
        let chosen = TcpSettings::default().set_user_timeout(minute);
        let info = "redis://127.0.0.1/".into_connection_info().unwrap();
        let given = redis::Client::open(info.set_tcp_settings(chosen)).unwrap();
        let settings = settings(&Dialer::from_client(given, None).unwrap());
        assert_eq!(settings.user_timeout(), Some(minute));
        assert!(settings.nodelay());
    }
}
