//! Keys that hold something else: a typed error at once, with nothing taken and nothing written.

use std::time::Duration;

use watchlock::{Client, Error, Lease, LockGuard, Ttl};
use watchlock_support::server::RedisServer;

use super::{stored, token_key};
use crate::common::{LONG, connect, ms, soon};

/// With every verb that would take a token.
async fn errors(client: &Client) -> Vec<Option<Error>> {
    let lock = client.get_fenced_lock("a");
    let ran = lock.run(async |_| ()).await.err();
    vec![
        soon(lock.lock()).await.err(),
        lock.lock_with_lease(LONG).await.err(),
        lock.try_lock(Duration::ZERO, Lease::Watchdog).await.err(),
        lock.try_lock(LONG, LONG).await.err(),
        ran,
    ]
}

/// A fenced handle enters the owner's plain hold.
async fn entered(client: &Client) -> (LockGuard, Error) {
    let owner = client.new_owner();
    let plain = owner.get_lock("a").lock().await.unwrap();
    let refused = owner.get_fenced_lock("a").lock().await;
    (plain, refused.unwrap_err())
}

#[tokio::test]
async fn f12_a_token_key_without_a_number_is_the_wrong_type_and_nothing_is_taken() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let key = token_key("a");
    let foreign: [&[&str]; 5] = [
        &["SET", &key, "many"],
        &["SET", &key, "1.5"],
        &["SET", &key, ""],
        &["HSET", &key, "a", "1"],
        &["RPUSH", &key, "1"],
    ];
    for write in foreign {
        server.cmd(write).await;
        let before = server.query::<Vec<u8>>(&["DUMP", &key]).await;
        for error in errors(&client).await {
            let error = error.unwrap_or_else(|| panic!("{write:?} was taken"));
            assert!(
                matches!(error, Error::WrongType { .. }),
                "{write:?}: {error}"
            );
            assert_eq!(error.lock(), Some("a"));
            assert!(!server.exists("a").await);
        }
        let (plain, refused) = entered(&client).await;
        assert!(matches!(refused, Error::WrongType { .. }), "{refused}");
        plain.verify().await.unwrap();
        assert_eq!((plain.hold_count(), plain.fencing_token()), (1, None));
        plain.unlock().await.unwrap();
        let after = server.query::<Vec<u8>>(&["DUMP", &key]).await;
        assert_eq!(before, after);
        server.cmd(&["DEL", &key]).await;
    }
    client
        .get_fenced_lock("a")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn f12_a_token_beyond_2_to_the_53_is_refused_and_nothing_is_taken() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let key = token_key("a");
    for stored_token in ["9007199254740992", "9223372036854775807"] {
        server.cmd(&["SET", &key, stored_token]).await;
        for error in errors(&client).await {
            let error = error.expect("refused");
            assert!(
                matches!(error, Error::FencingTokenTooLarge { .. }),
                "{error}"
            );
            assert_eq!(error.lock(), Some("a"));
            assert!(!error.is_transient());
            assert!(!server.exists("a").await);
        }
        let (plain, refused) = entered(&client).await;
        let text = "lock \"a\": the next fencing token would exceed 2^53";
        assert_eq!(refused.to_string(), text);
        plain.unlock().await.unwrap();
        assert_eq!(stored(&server, "a").await.as_deref(), Some(stored_token));
    }
    // The last possible token.
    server.cmd(&["SET", &key, "9007199254740991"]).await;
    let guard = client.get_fenced_lock("a").lock().await.unwrap();
    assert_eq!(guard.token().as_u64(), 1 << 53);
    assert_eq!(guard.token().to_string(), "9007199254740992");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn f12_a_lock_of_another_kind_is_the_wrong_type_and_burns_no_token() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let foreign: [&[&str]; 3] = [
        &["SET", "a", "x"],
        &["HSET", "a", "mode", "write", "x:1:write", "1"],
        &["HSET", "a", "name", "Ada"],
    ];
    for write in foreign {
        server.cmd(write).await;
        for error in errors(&client).await {
            assert!(
                matches!(error, Some(Error::WrongType { .. })),
                "{write:?}: {error:?}"
            );
        }
        assert_eq!(server.keys().await, ["a"]);
        server.cmd(&["DEL", "a"]).await;
    }
}

/// Redisson treats such a hash as acquired.
#[tokio::test]
async fn f12_a_lock_without_a_ttl_is_busy_and_not_acquired() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    server.cmd(&["HSET", "a", "somebody:1", "1"]).await;
    let lock = client.get_fenced_lock("a");
    for wait in [Duration::ZERO, ms(100)] {
        assert!(lock.try_lock(wait, LONG).await.unwrap().is_none());
    }
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::NoExpiry);
    assert_eq!(server.hash("a").await.len(), 1);
    assert_eq!(stored(&server, "a").await, None);
}

#[tokio::test]
async fn f20_f21_names_and_leases_are_refused_before_anything_is_sent() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let before = server.calls_of("evalsha").await + server.calls_of("eval").await;
    let long = "x".repeat(600);
    for name in ["", &long] {
        let refused = client.get_fenced_lock(name).lock().await;
        assert!(
            matches!(refused, Err(Error::InvalidName { .. })),
            "{refused:?}"
        );
    }
    for lease in [Duration::ZERO, ms(9), Duration::MAX] {
        let refused = client.get_fenced_lock("a").lock_with_lease(lease).await;
        assert!(
            matches!(refused, Err(Error::InvalidLease { .. })),
            "{refused:?}"
        );
    }
    let after = server.calls_of("evalsha").await + server.calls_of("eval").await;
    assert_eq!(after, before);
}
