//! A client that does not wait for its server.

use std::time::Duration;

use watchlock::{Client, ConfigError, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, ms, soon, try_once};
use crate::works;

#[tokio::test]
async fn a_service_comes_up_while_redis_is_down() {
    let server = RedisServer::start();
    server.kill();
    let builder = Client::builder(&server.url()).unavailable_after(ms(300));
    let client = builder.connect_lazy().unwrap();
    let lock = client.get_lock("later");
    let refused = soon(lock.lock()).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    let refused = soon(lock.try_lock(Duration::ZERO, Lease::Watchdog)).await;
    assert!(refused.unwrap_err().is_transient());

    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.try_lock(LONG, Lease::Watchdog).await }
    });
    server.launch();
    let guard = soon(waiting).await.unwrap().unwrap();
    guard.expect("it is free").unlock().await.unwrap();
    works(&client).await;
    clean(&server).await;
}

#[test]
fn a_lazy_client_is_made_outside_of_a_runtime_and_connects_by_itself() {
    let server = RedisServer::start();
    let client = Client::builder(&server.url()).connect_lazy().unwrap();
    let home = tokio::runtime::Runtime::new().unwrap();
    home.block_on(async {
        eventually("it is there", LONG, async || server.connections().await > 0).await;
        works(&client).await;
    });
}

#[tokio::test]
async fn a_lazy_client_that_never_meets_its_server_ends() {
    let server = RedisServer::start();
    server.kill();
    let client = Client::builder(&server.url()).connect_lazy().unwrap();
    assert!(soon(client.shutdown(LONG)).await.is_clean());
    let lock = client.get_lock("over");
    drop(client);
    assert!(matches!(soon(lock.lock()).await, Err(Error::Closed)));
    server.launch();
    server.ready().await;
    assert_eq!(server.connections().await, 0, "nobody goes on trying");
}

#[test]
fn bad_settings_are_refused_at_once() {
    let error = Client::builder("nonsense").connect_lazy().unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::InvalidUrl)));
    let builder = Client::builder("redis://127.0.0.1:1/").command_timeout(ms(1));
    let error = builder.connect_lazy().unwrap_err();
    let setting = "command_timeout is 1ms, but must be 10 ms to 60 s";
    assert_eq!(
        std::error::Error::source(&error).unwrap().to_string(),
        setting
    );
}

/// Only its role shows that it is no master: every use must fail, as is documented.
#[tokio::test]
async fn a_lazy_client_takes_nothing_at_a_replica_that_takes_writes() {
    let master = RedisServer::start();
    let replica = RedisServer::options()
        .config("replica-read-only", "no")
        .replica_of(&master)
        .start();
    replica.synced().await;
    let eager = Client::connect(&replica.url()).await.map(drop);
    assert!(
        matches!(eager, Err(Error::Config(ConfigError::Unsupported { .. }))),
        "{eager:?}"
    );
    let client = Client::builder(&replica.url()).connect_lazy().unwrap();
    is_refused(&client).await;
    replica.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    eventually("it can be used", LONG, async || {
        soon(try_once(&client, "x")).await.is_ok()
    })
    .await;
}

/// New acquires fail as `connect` would, once the server was asked what it is.
async fn is_refused(client: &Client) {
    eventually("it is refused", LONG, async || {
        let got = soon(try_once(client, "x")).await;
        matches!(got, Err(Error::Config(_)))
    })
    .await;
    for kind in 0..2 {
        let refused = match kind {
            0 => soon(client.get_fair_lock("y").lock()).await.map(drop),
            _ => soon(client.get_semaphore("z").acquire()).await.map(drop),
        };
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    }
}

/// `connect` refuses it, so every use must fail.
#[tokio::test]
async fn a_lazy_client_whose_pool_leads_elsewhere_takes_nothing() {
    let server = RedisServer::start();
    let pool = deadpool_redis::Config::from_url(format!("{}1", server.url()));
    let pool = pool
        .create_pool(Some(deadpool_redis::Runtime::Tokio1))
        .unwrap();
    let client = Client::builder(&server.url())
        .pool(pool)
        .connect_lazy()
        .unwrap();
    is_refused(&client).await;
}
