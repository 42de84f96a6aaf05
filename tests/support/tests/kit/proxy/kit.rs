//! What the tests of the proxy share: a server behind a proxy, clients with and without a library.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

pub(crate) const SOON: Duration = Duration::from_secs(10);
pub(crate) const SILENCE: Duration = Duration::from_millis(150);

pub(crate) struct Setup {
    pub(crate) server: RedisServer,
    pub(crate) proxy: Proxy,
}

pub(crate) fn setup() -> Setup {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    Setup { server, proxy }
}

pub(crate) async fn connect(proxy: &Proxy) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(SILENCE));
    let client = redis::Client::open(proxy.url()).unwrap();
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

pub(crate) async fn set(connection: &mut MultiplexedConnection, key: &str) -> RedisResult<Value> {
    let mut set = redis::cmd("SET");
    set.arg(key).arg("1").query_async(connection).await
}

/// A connection without a client library: what comes is seen as it comes.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) async fn connect(proxy: &Proxy) -> Self {
        let address = ("127.0.0.1", proxy.port());
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn expect(&mut self, text: &str) {
        let mut got = vec![0; text.len()];
        let read = tokio::time::timeout(SOON, self.0.read_exact(&mut got)).await;
        read.expect("an answer in time").unwrap();
        assert_eq!(String::from_utf8_lossy(&got), text);
    }

    pub(crate) async fn expect_until(&mut self, end: &str) -> String {
        let mut got = String::new();
        while !got.ends_with(end) {
            let byte = tokio::time::timeout(SOON, self.0.read_u8()).await;
            got.push(char::from(byte.expect("more in time").unwrap()));
        }
        got
    }

    pub(crate) async fn expect_silence(&mut self) {
        let mut byte = [0];
        let read = tokio::time::timeout(SILENCE, self.0.read(&mut byte)).await;
        assert!(read.is_err(), "{read:?}");
    }

    pub(crate) async fn expect_reset(&mut self) {
        let mut byte = [0];
        let read = tokio::time::timeout(SOON, self.0.read(&mut byte)).await;
        let error = read.expect("the end in time").expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}
