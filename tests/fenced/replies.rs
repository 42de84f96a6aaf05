//! F3, F4, F15: replies that are lost or late, callers that are gone; and what Redis refuses.

use std::time::Duration;

use watchlock::{Backoff, Client, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use super::{stored, token_key};
use crate::common::{LONG, connect, count, gone, ms, poll_once, soon};

const ACQUIRE: &str = include_str!("../../lua/fenced/acquire.lua");
const REENTER: &str = include_str!("../../lua/fenced/reenter.lua");

/// Each way to lose a reply, with a name, and whether the command ran.
const LOSSES: [(Fault, &str, bool); 4] = [
    (Fault::SwallowRequest, "swallowed-request", false),
    (Fault::SwallowReply, "swallowed-reply", true),
    (Fault::ResetBefore, "reset-before", false),
    (Fault::ResetAfter, "reset-after", true),
];

fn calls(script: &str, name: &str) -> Match {
    Match::script(script).and(Match::key(name))
}

/// A server that knows the scripts, a proxy in front of it, and a client that gives up on an answer soon.
async fn proxied() -> (RedisServer, Proxy, Client) {
    let server = RedisServer::start();
    for script in [ACQUIRE, REENTER] {
        server.cmd(&["SCRIPT", "LOAD", script]).await;
    }
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    (server, proxy, client)
}

/// Whether the hold keeps the token that the lost command took.
#[tokio::test]
async fn f3_i2_a_lost_reply_to_an_acquire_takes_one_token() {
    let (server, proxy, client) = proxied().await;
    for (loss, name, executed) in LOSSES {
        let aim = proxy.inject(loss).on(calls(ACQUIRE, name)).arm();
        let lock = client.get_fenced_lock(name);
        let locked = tokio::spawn(async move { lock.lock_with_lease(LONG).await });
        if executed {
            eventually("a token", LONG, async || {
                stored(&server, name).await.is_some()
            })
            .await;
        }
        let first = stored(&server, name).await;
        let guard = soon(locked).await.unwrap().unwrap();
        assert_eq!(aim.fired(), 1, "{name}");
        let newest = stored(&server, name).await;
        assert_eq!(newest, Some(guard.token().to_string()), "{name}");
        assert!(!executed || first == newest, "{name}: {first:?}");
        assert_eq!(count(&server, name).await, 1, "{name}");
        guard.unlock().await.unwrap();
        assert!(!server.exists(name).await, "{name}");
    }
}

/// The repeat finds its hold and no token: it takes a new one.
#[tokio::test]
async fn f3_a_token_that_was_lost_along_with_the_reply_is_taken_anew() {
    let (server, proxy, client) = proxied().await;
    let lock = client.get_fenced_lock("a");
    proxy
        .inject(Fault::SwallowReply)
        .on(calls(ACQUIRE, "a"))
        .arm();
    let locked = tokio::spawn(async move { lock.lock_with_lease(LONG).await });
    eventually("a token", LONG, async || {
        stored(&server, "a").await.is_some()
    })
    .await;
    let first = stored(&server, "a").await.unwrap();
    server.cmd(&["DEL", &token_key("a")]).await;
    let guard = soon(locked).await.unwrap().unwrap();
    assert!(guard.token().as_u64() > first.parse().unwrap());
    assert_eq!(stored(&server, "a").await, Some(guard.token().to_string()));
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn f3_a_lost_reply_to_an_entry_is_one_level_with_a_token_of_its_time() {
    let (server, proxy, client) = proxied().await;
    for (loss, name, _) in LOSSES {
        let owner = client.new_owner();
        let outer = owner.get_lock(name).lock().await.unwrap();
        let aim = proxy.inject(loss).on(calls(REENTER, name)).arm();
        let inner = soon(owner.get_fenced_lock(name).lock()).await.unwrap();
        assert_eq!((aim.fired(), inner.hold_count()), (1, 2), "{name}");
        assert_eq!(count(&server, name).await, 2, "{name}");
        assert_eq!(outer.fencing_token(), Some(inner.token()), "{name}");
        let newest: u64 = stored(&server, name).await.unwrap().parse().unwrap();
        assert!(newest >= inner.token().as_u64(), "{name}");
        inner.unlock().await.unwrap();
        outer.unlock().await.unwrap();
        let next = client.get_fenced_lock(name).lock().await.unwrap();
        assert!(next.token().as_u64() > newest, "{name}");
        next.unlock().await.unwrap();
    }
}

/// A command that arrives after its hold has ended changes nothing.
#[tokio::test]
async fn f4_i3_an_entry_that_runs_after_the_release_takes_no_token() {
    let (server, proxy, client) = proxied().await;
    let owner = client.new_owner();
    let outer = owner.get_lock("a").lock().await.unwrap();
    let delay = Fault::DelayRequest(Duration::from_secs(2));
    let aim = proxy.inject(delay).on(calls(REENTER, "a")).arm();
    let lock = owner.get_fenced_lock("a");
    let mut entering = Box::pin(lock.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut entering).await.is_none());
    eventually("it is on its way", LONG, async || aim.fired() == 1).await;
    server.cmd(&["DEL", "a"]).await;
    let failed = soon(entering).await;
    assert!(failed.is_err(), "{failed:?}");
    drop(outer);
    eventually("it was executed", LONG, async || {
        server.calls_of("hexists").await > 0
    })
    .await;
    assert_eq!(stored(&server, "a").await, None);
    assert_eq!(count(&server, "a").await, 0);
}

#[tokio::test]
async fn f15_i9_a_dropped_acquire_leaves_no_hold_and_the_next_token_is_larger() {
    let (server, proxy, client) = proxied().await;
    let delay = Fault::DelayReply(ms(100));
    proxy.inject(delay).on(calls(ACQUIRE, "a")).arm();
    let lock = client.get_fenced_lock("a");
    let mut locking = Box::pin(lock.lock());
    assert!(poll_once(&mut locking).await.is_none());
    eventually("a token", LONG, async || {
        stored(&server, "a").await.is_some()
    })
    .await;
    let burnt: u64 = stored(&server, "a").await.unwrap().parse().unwrap();
    drop(locking);
    gone(&server, "a").await;
    let next = soon(lock.lock()).await.unwrap();
    assert!(next.token().as_u64() > burnt);
    next.unlock().await.unwrap();
}

#[tokio::test]
async fn a_busy_try_burns_no_token_nor_does_a_waiter() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let often = Backoff::new().base(ms(1)).cap(ms(5));
    let other = Client::builder(&server.url()).backoff(often);
    let other = other.connect().await.unwrap();
    let guard = client.get_fenced_lock("a").lock().await.unwrap();
    let lock = other.get_fenced_lock("a");
    for wait in [Duration::ZERO, ms(50)] {
        assert!(lock.try_lock(wait, LONG).await.unwrap().is_none());
    }
    assert!(server.calls_of("evalsha").await > 4, "it tried");
    assert_eq!(stored(&server, "a").await, Some(guard.token().to_string()));
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn f9_out_of_memory_no_fenced_hold_begins_and_one_that_is_there_goes_on() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).unavailable_after(ms(300));
    let client = builder.connect().await.unwrap();
    let (owner, plain_owner) = (client.new_owner(), client.new_owner());
    let held = owner.get_fenced_lock("held").lock().await.unwrap();
    let plain = plain_owner.get_lock("plain").lock().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = client.get_fenced_lock("a").lock().await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Refused {
                transient: true,
                ..
            }
        ),
        "{refused}"
    );
    assert!(!server.exists("a").await);
    assert_eq!(stored(&server, "a").await, None);

    let inner = owner.get_fenced_lock("held").lock().await.unwrap();
    assert_eq!(inner.token(), held.token());
    held.verify().await.unwrap();
    for guard in [inner, held] {
        guard.unlock().await.unwrap();
    }
    assert!(!server.exists("held").await);
    let entered = plain_owner.get_fenced_lock("plain").lock().await.unwrap();
    assert_eq!(plain.fencing_token(), Some(entered.token()));
    entered.unlock().await.unwrap();
    plain.unlock().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    client
        .get_fenced_lock("a")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}
