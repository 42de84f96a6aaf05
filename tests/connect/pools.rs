//! A pool that the application has already: the client connects as the pool does, and takes no connections from it.

use deadpool_redis::{Config, Manager, Pool, Runtime};
use redis::{AsyncConnectionConfig, IntoConnectionInfo};
use watchlock::{Client, ConfigError, Error};
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use crate::common::{clean, ms, soon, try_once};
use crate::secrets::Log;
use crate::works;

fn pool(url: &str) -> Pool {
    Config::from_url(url)
        .create_pool(Some(Runtime::Tokio1))
        .expect("a pool")
}

/// A pool with one connection.
fn tight_pool(url: &str, config: AsyncConnectionConfig) -> Pool {
    let info = url.into_connection_info().expect("an address");
    let manager = Manager::new_with_config(info, config).expect("a manager");
    Pool::builder(manager).max_size(1).build().expect("a pool")
}

async fn mismatch(url: &str, pool: Pool) -> Error {
    let connecting = Client::builder(url).pool(pool).connect();
    soon(connecting).await.map(drop).unwrap_err()
}

#[tokio::test]
async fn nothing_is_taken_out_of_the_pool() {
    let server = RedisServer::start();
    let pool = tight_pool(&server.url(), AsyncConnectionConfig::new());
    let only = soon(pool.get()).await.unwrap();
    let before = format!("{:?}", pool.status());
    let client = Client::builder(&server.url()).pool(pool.clone()).connect();
    let client = soon(client).await.unwrap();
    works(&client).await;
    assert_eq!(format!("{:?}", pool.status()), before);
    drop((client, only));
    clean(&server).await;
    assert_eq!(pool.status().size, 1);
}

#[tokio::test]
async fn a_closed_pool_still_says_how_to_connect() {
    let server = RedisServer::start();
    let pool = pool(&server.url());
    pool.close();
    let client = Client::builder(&server.url()).pool(pool).connect();
    works(&soon(client).await.unwrap()).await;
}

#[tokio::test]
async fn a_pool_of_a_runtime_that_is_gone_still_says_how_to_connect() {
    let server = RedisServer::start();
    let url = server.url();
    let made = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let pool = pool(&url);
            drop(pool.get().await.unwrap());
            pool
        })
    });
    let pool = made.join().unwrap();
    let client = Client::builder(&server.url()).pool(pool).connect();
    works(&soon(client).await.unwrap()).await;
}

#[tokio::test]
async fn a_response_timeout_of_the_pool_is_not_ours() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let hasty = AsyncConnectionConfig::new().set_response_timeout(Some(ms(40)));
    let pool = tight_pool(&proxy.url(), hasty);
    let client = Client::builder(&proxy.url()).pool(pool).connect();
    let client = soon(client).await.unwrap();
    works(&client).await;
    proxy.latency(ms(150));
    works(&client).await;
}

#[tokio::test]
async fn a_pool_to_another_database_is_refused() {
    let server = RedisServer::start();
    let elsewhere = RedisServer::start();
    for (url, other) in [
        (server.url(), format!("{}1", server.url())),
        (format!("{}2", server.url()), server.url()),
        (server.url(), elsewhere.url()),
    ] {
        let error = mismatch(&url, pool(&other)).await;
        assert!(
            matches!(error, Error::Config(ConfigError::PoolMismatch)),
            "{error:?}"
        );
    }
    for server in [&server, &elsewhere] {
        assert!(server.keys().await.is_empty(), "the probe leaves nothing");
    }
}

#[tokio::test]
async fn a_pool_whose_server_is_absent_is_unavailable() {
    let server = RedisServer::start();
    let gone = RedisServer::start().url();
    let error = mismatch(&server.url(), pool(&gone)).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = mismatch(&gone, pool(&server.url())).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_pool_with_another_password_is_denied() {
    let server = RedisServer::options().password("right").start();
    let wrong = format!("redis://:wrong@127.0.0.1:{}/", server.port());
    let error = mismatch(&server.url(), pool(&wrong)).await;
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let error = mismatch(&wrong, pool(&server.url())).await;
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

/// One denied probe at a time, since the whole program has one log.
static DENIED: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn an_acl_that_denies_the_probe_costs_a_warning() {
    const WARNING: &str = "the ACL denies the probe";
    let _alone = DENIED.lock().await;
    let log = Log::start();
    let before = log.text().matches(WARNING).count();
    let server = RedisServer::start();
    let rules = [
        "ACL", "SETUSER", "narrow", "on", ">pw", "~works", "&*", "+@all",
    ];
    server.cmd(&rules).await;
    let url = format!("redis://narrow:pw@127.0.0.1:{}/", server.port());
    let client = Client::builder(&url).pool(pool(&url)).connect();
    let client = soon(client).await.unwrap();
    works(&client).await;
    assert_eq!(log.text().matches(WARNING).count(), before + 1);
    clean(&server).await;
}

#[tokio::test]
async fn an_acl_that_denies_the_end_of_the_probe_leaves_nothing_for_long() {
    let _alone = DENIED.lock().await;
    let server = RedisServer::start();
    let one = ["ACL", "SETUSER", "one", "on", ">pw", "~*", "&*", "+@all"];
    let other = [
        "ACL", "SETUSER", "other", "on", ">pw", "~works", "&*", "+@all",
    ];
    server.cmd(&one).await;
    server.cmd(&other).await;
    let by = |user| format!("redis://{user}:pw@127.0.0.1:{}/", server.port());
    let client = Client::builder(&by("other"))
        .pool(pool(&by("one")))
        .connect();
    works(&soon(client).await.unwrap()).await;
    for key in server.keys().await {
        let left = server.pttl(&key).await;
        assert!(left != -1 && left <= 5_000, "{key}: {left} ms");
    }
}

#[tokio::test]
async fn the_probe_does_not_disturb_a_server_that_refuses_writes() {
    let server = RedisServer::options().config("maxmemory", "1").start();
    let error = mismatch(&server.url(), pool(&server.url())).await;
    assert!(
        matches!(
            error,
            Error::Refused {
                transient: true,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_pool_goes_on_after_an_outage() {
    let server = RedisServer::start();
    let pool = pool(&server.url());
    let client = Client::builder(&server.url()).pool(pool).connect();
    let client = soon(client).await.unwrap();
    works(&client).await;
    server.kill();
    assert!(try_once(&client, "x").await.is_err());
    server.restart();
    works(&client).await;
}

#[tokio::test]
async fn a_pool_over_resp3_and_another_over_resp2() {
    let server = RedisServer::start();
    let resp3 = format!("{}?protocol=resp3", server.url());
    for (url, by_pool) in [
        (&resp3, &resp3),
        (&resp3, &server.url()),
        (&server.url(), &resp3),
    ] {
        let client = Client::builder(url).pool(pool(by_pool)).connect();
        works(&soon(client).await.unwrap()).await;
    }
}
