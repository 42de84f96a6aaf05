//! Which hold has which token.

use std::time::{Duration, SystemTime};

use watchlock::{FencedGuard, Lease, LockGuard};
use watchlock_support::server::RedisServer;

use super::{stored, token_key};
use crate::common::{connect, count, soon, subscribed};

/// µs since 1970, by the clock that this process shares with its server.
fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_micros()).unwrap()
}

#[tokio::test]
async fn a_hold_has_a_token_and_the_next_one_a_larger_one() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_fenced_lock("a");
    let before = now_us();
    let first = lock.lock().await.unwrap();
    let token = first.token();
    assert!((before..=now_us()).contains(&token.as_u64()), "{token}");
    assert_eq!(first.fencing_token(), Some(token));
    assert_eq!(stored(&server, "a").await, Some(token.to_string()));
    assert_eq!(count(&server, "a").await, 1);
    first.unlock().await.unwrap();

    let second = lock.lock().await.unwrap();
    assert!(second.token() > token);
    assert_eq!(u64::from(second.token()), second.token().as_u64());
    second.unlock().await.unwrap();
    // It stays, as with Redisson, which counts on from it.
    assert_eq!(server.keys().await, [token_key("a")]);
    assert_eq!(server.pttl(&token_key("a")).await, -1);
}

#[tokio::test]
async fn levels_of_a_hold_have_its_token() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_fenced_lock("a");
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    let by_guard = inner.reenter(Lease::Watchdog).await.unwrap();
    let by_plain = owner.get_lock("a").lock().await.unwrap();

    let token = outer.token();
    assert_eq!(inner.token(), token);
    assert_eq!(by_guard.token(), token);
    assert_eq!(by_plain.fencing_token(), Some(token));
    assert_eq!(stored(&server, "a").await, Some(token.to_string()));
    assert_eq!(count(&server, "a").await, 4);
    for guard in [LockGuard::from(outer), inner.into_guard(), by_plain] {
        guard.unlock().await.unwrap();
    }
    by_guard.unlock().await.unwrap();
    assert_eq!(count(&server, "a").await, 0);
}

#[tokio::test]
async fn a_plain_hold_that_its_owner_enters_fenced_has_a_token_from_then_on() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let plain = owner.get_lock("a").lock().await.unwrap();
    assert_eq!(plain.fencing_token(), None);
    assert_eq!(stored(&server, "a").await, None);

    let fenced = owner.get_fenced_lock("a").lock().await.unwrap();
    let token = fenced.token();
    assert_eq!(plain.fencing_token(), Some(token));
    assert_eq!(stored(&server, "a").await, Some(token.to_string()));
    assert_eq!(count(&server, "a").await, 2);
    let again = owner.get_fenced_lock("a").lock().await.unwrap();
    assert_eq!(again.token(), token);
    assert_eq!(stored(&server, "a").await, Some(token.to_string()));
}

#[tokio::test]
async fn fenced_and_plain_handles_of_a_name_exclude_each_other_and_hand_over() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let (plain, fenced) = (client.get_lock("a"), client.get_fenced_lock("a"));
    let first = fenced.lock().await.unwrap();
    let busy = plain.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(busy.unwrap().is_none());
    let waits = tokio::spawn({
        let plain = plain.clone();
        async move { plain.lock().await.unwrap() }
    });
    subscribed(&server, "a").await;
    let next: tokio::task::JoinHandle<FencedGuard> = tokio::spawn({
        let fenced = fenced.clone();
        async move { fenced.lock().await.unwrap() }
    });
    let token = first.token();
    first.unlock().await.unwrap();
    let second = soon(waits).await.unwrap();
    assert_eq!(second.fencing_token(), None);
    second.unlock().await.unwrap();
    let third = soon(next).await.unwrap();
    assert!(third.token() > token);
    third.unlock().await.unwrap();
}
