//! How to connect to a server.
//!
//! The protocol is redis-rs'. The sockets are opened here, so that we can decide when a connection is
//! [driven](super::connection), and `rediss://` is encrypted here ([`tls`](super::tls)): redis-rs would need a provider of
//! cryptography that is installed for the whole process. A client that the application made connects through redis-rs,
//! with its own TLS and its own driver.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    PushInfo, RedisResult,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedSender;
#[cfg(feature = "tls")]
use tokio_rustls::TlsConnector;

use super::connection::{Connection, WatchedStream};
use super::socket;
#[cfg(feature = "tls")]
use super::tls;
use crate::backend::failure::{Class, Failure, application};
use crate::error::ConfigError;
use crate::secrets::{Provider, Secrets, Tls};

/// Without the feature there is no TLS.
#[cfg(not(feature = "tls"))]
pub(crate) fn check_tls(_: &Tls) -> Result<(), ConfigError> {
    Err(ConfigError::TlsDisabled)
}

/// How many commands a connection queues. With a full queue a command waits for a free place and costs one more wake-up;
/// redis-rs' default is 50.
const QUEUE: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Endpoint {
    pub(crate) host: Box<str>,
    pub(crate) port: u16,
}

impl Endpoint {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        let host = host.into();
        Self { host, port }
    }
}

trait ServerStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ServerStream for S {}

/// How to connect to a server: its endpoint, user, database and encryption.
#[derive(Clone)]
pub(super) struct Address {
    client: redis::Client,
    /// Whether the application made this client. redis-rs does not show all of its settings.
    given: bool,
    #[cfg(feature = "tls")]
    tls: Option<TlsConnector>,
}

impl Address {
    pub(super) fn from_url(url: &str) -> Result<Self, ConfigError> {
        if has_raw_password(url) {
            return Err(ConfigError::InvalidUrl);
        }
        let info = url.into_connection_info().map_err(|_| {
            if is_encrypted(url) && cfg!(not(feature = "tls")) {
                ConfigError::TlsDisabled
            } else {
                ConfigError::InvalidUrl
            }
        })?;
        #[cfg(feature = "tls")]
        let tls = tls::connector(info.addr(), &Tls::new())?;
        Ok(Self {
            client: opened(info)?,
            given: false,
            #[cfg(feature = "tls")]
            tls,
        })
    }

    /// Empty for a socket file.
    pub(super) fn host(&self) -> &str {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        }
    }

    /// Takes where and how to connect from a client of redis-rs.
    pub(super) fn from_client(client: &redis::Client) -> Result<Self, ConfigError> {
        Ok(Self {
            client: opened(client.get_connection_info().clone())?,
            given: true,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    /// Another server, with the same user, database and encryption.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let info = self.client.get_connection_info().clone();
        let host = host.to_owned();
        let there = match info.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.reopened(info.set_addr(there))
    }

    /// The same kind of address, with other settings.
    fn reopened(&self, info: ConnectionInfo) -> Self {
        let mut address = self.clone();
        // Opening depends on the kind of address only, so it cannot fail here.
        if let Ok(client) = redis::Client::open(info) {
            address.client = client;
        }
        address
    }

    fn with(&self, secrets: &Secrets) -> Result<Self, ConfigError> {
        let info = self.client.get_connection_info().clone();
        let mut settings = info.redis_settings().clone();
        if let Some(user) = &secrets.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &secrets.password {
            settings = settings.set_password(password);
        }
        let mut address = self.clone();
        address.client = opened(info.set_redis_settings(settings))?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &secrets.tls {
            let info = address.client.get_connection_info().clone();
            address.tls = tls::connector(info.addr(), tls)?;
            if address.tls.is_none() && matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
                address.client = tls::left_to_redis_rs(info, tls)?;
            }
        }
        Ok(address)
    }

    /// The same server with the credentials that `ask` returns now. `panicked`: whether that was logged of `ask`.
    pub(super) fn identified(
        &self,
        ask: Option<&Provider>,
        panicked: &AtomicBool,
    ) -> Result<Self, Failure> {
        let Some(ask) = ask else {
            return Ok(self.clone());
        };
        // Code of the application, which may panic.
        let secrets = application::call(|| ask());
        let secrets = secrets.ok_or_else(|| application::panicked(panicked))?;
        self.with(&secrets).map_err(Failure::secrets)
    }

    /// A connection for commands.
    pub(super) async fn multiplexed(&self) -> Result<Connection, Failure> {
        let config = without_timers().set_pipeline_buffer_size(QUEUE);
        match self.connect_with(config).await {
            Err(error) if error.kind() == redis::ErrorKind::AuthenticationFailed => {
                Err(self.denied(error).await)
            }
            connected => connected.map_err(Failure::connecting),
        }
    }

    /// Why `AUTH` failed. redis-rs drops the text of the reply, and a full server answers `AUTH` with an error, too.
    async fn denied(&self, error: redis::RedisError) -> Failure {
        let asked = Box::pin(self.asked_first().connect_with(without_timers())).await;
        match asked {
            Err(said) if said.code().is_some() => match Failure::connecting(said) {
                denial if denial.class == Class::Denied => Failure::connecting(error),
                other => other,
            },
            _ => Failure::connecting(error),
        }
    }

    /// A connection that passes push messages on to `pushes`.
    pub(super) async fn pushing(
        &self,
        pushes: UnboundedSender<PushInfo>,
    ) -> Result<Connection, Failure> {
        let config = without_timers().set_push_sender(pushes);
        let info = self.client.get_connection_info().clone();
        let settings = info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP3);
        let address = self.reopened(info.set_redis_settings(settings));
        let connected = address.connect_with(config).await;
        connected.map_err(Failure::connecting)
    }

    async fn connect_with(&self, config: AsyncConnectionConfig) -> RedisResult<Connection> {
        let Some(stream) = self.stream().await? else {
            let client = &self.client;
            let connecting = client.get_multiplexed_async_connection_with_config(&config);
            return connecting.await.map(Connection::of);
        };
        let settings = self.client.get_connection_info().redis_settings();
        let passed = Arc::default();
        let stream = WatchedStream::new(stream, &passed);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config).await?;
        Ok(Connection::driven(connection, driver, passed))
    }

    /// A socket to the server; none where redis-rs opens it, because only redis-rs knows all settings.
    async fn stream(&self) -> RedisResult<Option<Box<dyn ServerStream>>> {
        let info = self.client.get_connection_info();
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let stream = Box::pin(tls::connect(tls, info)).await?;
            return Ok(Some(Box::new(stream)));
        }
        Ok(match info.addr() {
            ConnectionAddr::Tcp(host, port) if !self.given => {
                let stream = socket::tcp(host, *port, info.tcp_settings()).await?;
                Some(Box::new(stream))
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) if !self.given => {
                Some(Box::new(UnixStream::connect(path).await?))
            }
            _ => None,
        })
    }

    /// Whether what listens at this plain address answers a TLS greeting.
    pub(super) async fn speaks_tls(&self) -> bool {
        let info = self.client.get_connection_info();
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return false;
        };
        let mut record = [0];
        let greeting = async {
            let mut stream = socket::tcp(host, *port, info.tcp_settings()).await?;
            stream.write_all(&CLIENT_HELLO).await?;
            stream.read_exact(&mut record).await
        };
        greeting.await.is_ok() && TLS_RECORDS.contains(&record[0])
    }

    /// A connection for subscriptions.
    pub(super) async fn pubsub(&self) -> Result<PubSub, Failure> {
        let connecting = async {
            let settings = self.client.get_connection_info().redis_settings();
            match self.stream().await? {
                Some(stream) => PubSub::new(settings, stream).await,
                None => self.client.get_async_pubsub().await,
            }
        };
        connecting.await.map_err(Failure::connecting)
    }

    /// The same server, with settings under which redis-rs reads the first answer. Otherwise it ignores that answer, and
    /// with it the reason why the server refuses.
    pub(super) fn asked_first(&self) -> Self {
        let info = self.client.get_connection_info().clone();
        let settings = info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP3).set_db(0);
        let settings = settings.set_skip_set_lib_name();
        self.reopened(info.set_redis_settings(settings))
    }

    #[cfg(test)]
    fn info(&self) -> &ConnectionInfo {
        self.client.get_connection_info()
    }
}

/// The start of a TLS connection, with one cipher and no extension.
const CLIENT_HELLO: [u8; 50] = *b"\x16\x03\x01\0\x2d\x01\0\0\x29\x03\x03\
    ................................\0\0\x02\x13\x01\x01\0";

/// How the answer begins: with an alert, or with a hand-shake.
const TLS_RECORDS: [u8; 2] = [21, 22];

/// Time-outs of redis-rs would be timers of the current runtime, whose clock the application may have paused.
fn without_timers() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

fn opened(info: ConnectionInfo) -> Result<redis::Client, ConfigError> {
    redis::Client::open(tuned(info)).map_err(|_| ConfigError::InvalidUrl)
}

/// Whether a `/`, `?` or `#` before the `@` ends the host too early: what was meant as a user would be connected to.
fn has_raw_password(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    !scheme.contains("unix") && !authority.contains('@') && rest.contains('@')
}

fn is_encrypted(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        scheme.eq_ignore_ascii_case("rediss") || scheme.eq_ignore_ascii_case("valkeys")
    })
}

/// Adds what a lock's connection needs: no delay for small commands, and detection of dead peers. Settings that are
/// already chosen stay.
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

#[cfg(test)]
mod tests {
    use super::*;
    use redis::io::tcp::TcpSettings;

    #[test]
    fn every_connection_by_an_address_finds_dead_peers() {
        let url = "redis://127.0.0.1/";
        let given = redis::Client::open(url).unwrap();
        for address in [
            Address::from_url(url).unwrap(),
            Address::from_client(&given).unwrap(),
        ] {
            let settings = address.info().tcp_settings();
            assert!(settings.nodelay());
            assert!(settings.keepalive().is_some());
            #[cfg(target_os = "linux")]
            assert_eq!(settings.user_timeout(), Some(Duration::from_secs(10)));
        }
    }

    #[test]
    #[cfg(feature = "tls")]
    fn certificates_are_read_also_where_those_of_the_server_are_not_verified() {
        let address = Address::from_url("rediss://localhost/#insecure").unwrap();
        let none = Tls::new().client_pem("none", "none");
        assert!(address.with(&Secrets::new().tls(none)).is_err());
    }

    #[test]
    fn a_password_that_is_not_encoded_is_no_host() {
        for (url, expected) in [
            ("redis://app:12#3@host/", true),
            ("redis://app:12/3@host", true),
            ("rediss://app:12?3@host", true),
            ("redis://app:1@2@host/3?protocol=resp3", false),
            ("redis://host/#a", false),
            ("unix:///a@b", false),
            ("redis+unix:///a@b", false),
            ("a@b", false),
        ] {
            assert_eq!(has_raw_password(url), expected, "{url}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_given_client_chose_is_kept() {
        let minute = Duration::from_secs(60);
        let chosen = TcpSettings::default().set_user_timeout(minute);
        let info = "redis://127.0.0.1/".into_connection_info().unwrap();
        let given = redis::Client::open(info.set_tcp_settings(chosen)).unwrap();
        let address = Address::from_client(&given).unwrap();
        let settings = address.info().tcp_settings();
        assert_eq!(settings.user_timeout(), Some(minute));
        assert!(settings.nodelay());
    }
}
