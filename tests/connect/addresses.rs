//! Addresses: every form that is promised, and what is refused.

use watchlock::{Client, ConfigError, Error};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, is_free, soon, try_once};
use crate::works;

async fn refusal(url: &str) -> Error {
    let connecting = soon(Client::connect(url)).await;
    connecting.map(drop).expect_err("it cannot be connected to")
}

#[tokio::test]
async fn a_host_by_name() {
    let server = RedisServer::start();
    let url = format!("redis://localhost:{}", server.port());
    works(&Client::connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn a_password_alone() {
    let server = RedisServer::options().password("only").start();
    works(&Client::connect(&server.url()).await.unwrap()).await;
}

#[tokio::test]
async fn a_user_with_a_password_of_special_characters() {
    let server = RedisServer::start();
    let rules = [
        "ACL",
        "SETUSER",
        "clerk",
        "on",
        ">p@ss:/%w",
        "~*",
        "&*",
        "+@all",
    ];
    server.cmd(&rules).await;
    let url = |query| {
        format!(
            "redis://clerk:p%40ss%3A%2F%25w@127.0.0.1:{}/{query}",
            server.port()
        )
    };
    works(&Client::connect(&url("")).await.unwrap()).await;
    works(&Client::connect(&url("?protocol=resp3")).await.unwrap()).await;
}

#[tokio::test]
async fn a_wrong_password_is_denied() {
    let server = RedisServer::options().password("right").start();
    let port = server.port();
    for url in [
        format!("redis://:wrong@127.0.0.1:{port}/"),
        format!("redis://nobody:wrong@127.0.0.1:{port}/"),
        format!("redis://127.0.0.1:{port}/"),
        format!("redis://127.0.0.1:{port}/3"),
        format!("redis://:wrong@127.0.0.1:{port}/?protocol=resp3"),
        format!("redis://127.0.0.1:{port}/?protocol=resp3"),
    ] {
        let error = refusal(&url).await;
        assert!(matches!(error, Error::Denied { .. }), "{url}: {error:?}");
        assert!(!error.is_transient());
    }
}

#[tokio::test]
async fn a_password_that_nobody_asked_for_is_denied() {
    let server = RedisServer::start();
    let error = refusal(&format!("redis://:some@127.0.0.1:{}/", server.port())).await;
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn a_user_that_is_switched_off_is_denied() {
    let server = RedisServer::start();
    server
        .cmd(&["ACL", "SETUSER", "gone", "off", ">pw", "~*", "&*", "+@all"])
        .await;
    let error = refusal(&format!("redis://gone:pw@127.0.0.1:{}/", server.port())).await;
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn a_database_by_number() {
    let server = RedisServer::start();
    let base = server.url();
    let third = Client::connect(&format!("{base}3")).await.unwrap();
    works(&third).await;
    let guard = try_once(&third, "where").await.unwrap().unwrap();
    assert!(server.keys().await.is_empty(), "not in the first database");
    let keys = server.info("keyspace", "db3").await.expect("the third one");
    assert!(keys.starts_with("keys=1,"), "{keys}");
    let first = Client::connect(&base).await.unwrap();
    assert!(!first.get_lock("where").is_locked().await.unwrap());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_not_there_is_no_outage() {
    let server = RedisServer::start();
    let base = server.url();
    for url in [format!("{base}999"), format!("{base}999?protocol=resp3")] {
        let error = refusal(&url).await;
        assert!(matches!(error, Error::Refused { .. }), "{url}: {error:?}");
        assert!(
            !error.is_transient(),
            "trying again is of no use: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_database_that_the_acl_denies() {
    let server = RedisServer::start();
    let rules = [
        "ACL", "SETUSER", "narrow", "on", ">pw", "~*", "&*", "+@all", "-select",
    ];
    server.cmd(&rules).await;
    let url = format!("redis://narrow:pw@127.0.0.1:{}/3", server.port());
    let error = refusal(&url).await;
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn a_unix_socket() {
    let server = RedisServer::options().unix_socket().start();
    let path = server.dir().join("redis.sock");
    let path = path.display();
    for url in [
        server.socket_url(),
        format!("unix://{path}"),
        format!("unix:{path}"),
        format!("unix://{path}?db=2"),
        format!("redis+unix://{path}?protocol=resp3"),
    ] {
        let client = Client::connect(&url).await;
        works(&client.unwrap_or_else(|error| panic!("{url}: {error:?}"))).await;
    }
}

#[tokio::test]
async fn a_unix_socket_whose_server_restarts() {
    let server = RedisServer::options().unix_socket().start();
    let client = Client::connect(&server.socket_url()).await.unwrap();
    works(&client).await;
    server.kill();
    let error = try_once(&client, "x").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    server.restart();
    works(&client).await;
    server.restart();
    assert!(is_free(&client, "x").await);
}

#[tokio::test]
async fn a_unix_socket_with_user_password_and_database() {
    let server = RedisServer::options().unix_socket().start();
    server
        .cmd(&["ACL", "SETUSER", "clerk", "on", ">pw", "~*", "&*", "+@all"])
        .await;
    let url = format!("{}?user=clerk&pass=pw&db=5", server.socket_url());
    let client = Client::connect(&url).await.unwrap();
    let _guard = try_once(&client, "where").await.unwrap().unwrap();
    assert!(server.info("keyspace", "db5").await.is_some());
    let error = refusal(&format!("{}?user=clerk&pass=no", server.socket_url())).await;
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn a_socket_that_is_not_there_is_unavailable() {
    let error = refusal("unix:///nowhere/at/all.sock").await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn without_the_feature_certificates_are_refused() {
    let builder = Client::builder("redis://127.0.0.1/").tls(watchlock::Tls::new());
    let error = builder.connect_lazy().unwrap_err();
    assert!(
        matches!(error, Error::Config(ConfigError::TlsDisabled)),
        "{error:?}"
    );
}

#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn without_the_feature_tls_is_refused() {
    for url in [
        "rediss://127.0.0.1/",
        "rediss://u:p@h:1/3",
        "REDISS://h/",
        "valkeys://h/",
    ] {
        let error = refusal(url).await;
        assert!(
            matches!(error, Error::Config(ConfigError::TlsDisabled)),
            "{url}: {error:?}"
        );
    }
}

#[tokio::test]
async fn resp3_works_for_everything() {
    let server = RedisServer::start();
    let url = format!("{}?protocol=resp3", server.url());
    let client = Client::connect(&url).await.unwrap();
    works(&client).await;
    // A new connection has the older one until it greeted.
    eventually("all have the third version", LONG, async || {
        let clients = server.clients().await;
        let mut versions = clients.iter().filter_map(|client| client.get("resp"));
        versions.all(|resp| resp == "3")
    })
    .await;
    // Waiters get messages; they do not poll.
    let minute = watchlock::Backoff::new().base(2 * LONG).cap(2 * LONG);
    let waiter = Client::builder(&url)
        .backoff(minute)
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    let waiting = tokio::spawn(async move {
        let lock = waiter.get_lock("x");
        lock.lock().await.map(|guard| (guard, waiter))
    });
    crate::common::subscribed(&server, "x").await;
    guard.unlock().await.unwrap();
    let (guard, _waiter) = soon(waiting).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_prefix_is_put_before_keys_and_channels_and_not_before_names() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).key_prefix("app:");
    let client = builder.connect().await.unwrap();
    works(&client).await;
    let guard = try_once(&client, "lock").await.unwrap().unwrap();
    assert_eq!(server.keys().await, ["app:lock"]);
    guard.unlock().await.unwrap();
    let plain = Client::connect(&server.url()).await.unwrap();
    let guard = plain.get_lock("app:lock").lock().await.unwrap();
    let lock = client.get_lock("lock");
    assert_eq!(lock.name(), "lock");
    let waiter = tokio::spawn(async move { lock.lock().await });
    crate::common::subscribed(&server, "app:lock").await;
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert_eq!(guard.name(), "lock");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn an_invalid_address_is_refused() {
    for url in [
        "",
        " ",
        "redis",
        "redis:",
        "redis://",
        "redis://[::1",
        "redis://host:port/",
        "redis://host:99999/",
        "redis://host/zero",
        "redis://host/-1x",
        "redis://host/?protocol=resp9",
        "redis://\0/",
        "http://127.0.0.1/",
        "127.0.0.1:6379",
        "unix",
        "redis://%ff:%ff@host/",
    ] {
        let error = refusal(url).await;
        assert!(
            matches!(error, Error::Config(ConfigError::InvalidUrl)),
            "{url:?}: {error:?}"
        );
    }
}
