//! Addresses, settings, passwords and rights.

use std::error::Error as _;
use std::time::Duration;

use watchlock::{Backoff, Client, ClientBuilder, ConfigError, Error};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, connect, is_free, ms, soon};

#[tokio::test]
async fn an_address_that_is_none_is_said_to_be_without_being_repeated() {
    for url in [
        "",
        "redis",
        "http://user:hunter2@127.0.0.1/",
        "redis://:hunter2@127.0.0.1:notaport/",
        "redis://:hunter2@127.0.0.1/notadb",
        "//127.0.0.1",
    ] {
        let error = soon(Client::connect(url)).await.unwrap_err();
        let known = matches!(error, Error::Config(ConfigError::InvalidUrl));
        assert!(known, "{url:?}: {error:?}");
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
    let error = Client::connect("rediss://127.0.0.1:1/").await.unwrap_err();
    let disabled = matches!(error, Error::Config(ConfigError::TlsDisabled));
    assert!(disabled || cfg!(feature = "tls"), "{error:?}");
}

#[tokio::test]
async fn settings_out_of_range_are_named() {
    let server = RedisServer::start();
    let builder = || Client::builder(&server.url());
    let bad: [(&str, ClientBuilder); 8] = [
        ("watchdog lease", builder().watchdog_lease(ms(499))),
        ("lease bounds", builder().lease_bounds(ms(1), LONG)),
        ("lease bounds", builder().lease_bounds(LONG, ms(10))),
        ("longest name", builder().max_name_bytes(0)),
        ("key prefix", builder().key_prefix(&"p".repeat(512))),
        ("command time-out", builder().command_timeout(ms(1))),
        ("connect time-out", builder().connect_timeout(Duration::MAX)),
        (
            "backoff cap",
            builder().backoff(Backoff::new().cap(LONG * 3)),
        ),
    ];
    for (expected, builder) in bad {
        match builder.connect().await {
            Err(Error::Config(ConfigError::OutOfRange { setting, range })) => {
                assert_eq!(setting, expected);
                assert!(!range.is_empty());
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
    assert_eq!(server.connections().await, 0);
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_denied() {
    let server = RedisServer::options().password("rightone").start();
    let wrong = server.url().replace("rightone", "wrongone");
    let none = server.url().replace(":rightone@", "");
    for url in [wrong, none] {
        let error = soon(Client::connect(&url)).await.unwrap_err();
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(error.source().is_some() && !error.is_transient());
        assert!(!format!("{error:?}").contains("wrongone"));
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let url = server.url();
    server.kill();
    let error = soon(Client::connect(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.is_transient() && !error.is_lost() && error.source().is_some());
    let lock = client.get_lock("later");
    let tried = soon(lock.try_lock(Duration::ZERO, LONG)).await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    let asked = soon(lock.is_locked()).await;
    assert!(matches!(asked, Err(Error::Unavailable { .. })), "{asked:?}");
    server.restart();
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
}

/// A user who may do everything but this.
async fn limited(server: &RedisServer, denied: &str) -> Client {
    let all = [
        "ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all", denied,
    ];
    server.cmd(&all).await;
    let url = server.url().replace("//", "//limited:pw@");
    Client::connect(&url).await.unwrap()
}

#[tokio::test]
async fn i4_a_denied_command_is_denied_at_once_and_leaves_nothing() {
    let server = RedisServer::start();
    for denied in ["-evalsha", "-pttl", "-hset", "-pexpire"] {
        let client = limited(&server, denied).await;
        let lock = client.get_lock("denied");
        for wait in [Duration::ZERO, Duration::MAX] {
            let error = soon(lock.try_lock(wait, LONG)).await.unwrap_err();
            assert!(matches!(error, Error::Denied { .. }), "{denied}: {error:?}");
        }
        let error = soon(lock.lock()).await.unwrap_err();
        assert!(matches!(error, Error::Denied { .. }), "{denied}: {error:?}");
        assert!(server.keys().await.is_empty(), "{denied}");
    }
}

#[tokio::test]
async fn a_denied_key_is_denied_and_others_are_not() {
    let server = RedisServer::start();
    let client = limited(&server, "resetkeys").await;
    server
        .cmd(&["ACL", "SETUSER", "limited", "resetkeys", "~mine:*"])
        .await;
    let error = client.get_lock("yours:1").lock().await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(is_free(&client, "mine:1").await);
}

#[tokio::test]
async fn a_denied_release_says_so_and_the_lease_ends_the_lock() {
    let server = RedisServer::start();
    let client = limited(&server, "+@all").await;
    let lock = client.get_lock("stuck");
    let guard = lock.lock_for(ms(700)).await.unwrap();
    server.cmd(&["ACL", "SETUSER", "limited", "-hdel"]).await;
    let error = guard.unlock().await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(server.pttl("stuck").await != -1);
    let guard = soon(lock.lock()).await.unwrap();
    assert!(guard.is_valid());
}
