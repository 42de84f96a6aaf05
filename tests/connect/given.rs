//! A client of the `redis` crate that the application made: without an address beside it, and with its own TLS.

use watchlock::{Client, ConfigError, Error};
use watchlock_support::server::RedisServer;

use crate::common::{clean, soon};
use crate::tls_server::TlsServer;
use crate::works;

#[tokio::test]
async fn a_given_client_is_enough() {
    let server = RedisServer::start();
    let given = watchlock::redis::Client::open(server.url()).unwrap();
    let builder = Client::builder_from(&given).key_prefix("given:");
    let client = soon(builder.connect()).await.unwrap();
    works(&client).await;
    let guard = client.get_lock("x").lock().await.unwrap();
    assert!(server.exists("given:x").await);
    guard.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_given_client_goes_with_a_pool() {
    let server = RedisServer::start();
    let pool = watchlock::deadpool_redis::Config::from_url(server.url());
    let pool = pool.create_pool(None).unwrap();
    let given = redis::Client::open(server.url()).unwrap();
    let client = Client::builder_from(&given).pool(pool).connect();
    works(&soon(client).await.unwrap()).await;

    let elsewhere = RedisServer::start();
    let pool = deadpool_redis::Config::from_url(elsewhere.url());
    let pool = pool.create_pool(None).unwrap();
    let client = Client::builder_from(&given).pool(pool).connect();
    let error = soon(client).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::PoolMismatch)));
}

/// With `--features redis/tokio-native-tls-comp` (as in `.ci/run`) the given client encrypts without the feature `tls`.
/// Without any TLS compiled in, the application has no such client to give.
#[tokio::test]
async fn a_given_client_brings_its_own_tls() {
    let tls = TlsServer::start().await;
    let trusting_blindly = format!("{}#insecure", tls.url());
    let Ok(given) = redis::Client::open(trusting_blindly) else {
        eprintln!("skipped: the redis crate is built without TLS");
        return;
    };
    let client = soon(Client::builder_from(&given).connect()).await.unwrap();
    works(&client).await;
    clean(&tls.server).await;
}
