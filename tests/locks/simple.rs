//! Simple locks: one string, on the keys of other libraries' string locks; everything else as with the plain lock.

use std::time::Duration;

use redis::Value;
use watchlock::{Client, Error, Lease, LostReason, SimpleLock, Ttl};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{
    LONG, SHORT, clean, connect, connect_short, gone, ms, soon, subscribed, without_polls,
};

const ACQUIRE: &str = include_str!("../../lua/simple/acquire.lua");
const RELEASE: &str = include_str!("../../lua/simple/release.lua");

async fn value(server: &RedisServer, name: &str) -> Option<String> {
    server.query(&["GET", name]).await
}

async fn try_once(lock: &SimpleLock) -> Result<Option<watchlock::LockGuard>, Error> {
    lock.try_lock(Duration::ZERO, Lease::Watchdog).await
}

fn waiting(lock: SimpleLock) -> tokio::task::JoinHandle<Result<watchlock::LockGuard, Error>> {
    tokio::spawn(async move { lock.lock().await })
}

/// As other libraries take it.
async fn taken_by_another_library(server: &RedisServer, name: &str, lease_ms: &str) {
    let set = ["SET", name, "kR3b+token/==", "NX", "PX", lease_ms];
    assert_eq!(server.cmd(&set).await, Value::Okay);
}

#[tokio::test]
async fn a_simple_lock_is_one_string_with_the_hold_id_and_the_lease() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_simple_lock("one");
    let guard = lock.lock_with_lease(LONG).await.unwrap();
    let id = value(&server, "one").await.expect("a string");
    assert!(id.starts_with(&format!("{}:", client.id())), "{id}");
    assert!((20_000..=30_000).contains(&server.pttl("one").await));
    assert_eq!(server.keys().await, ["one"]);
    assert!(lock.is_locked().await.unwrap());
    assert!(matches!(
        lock.remain_time_to_live().await.unwrap(),
        Ttl::Left(_)
    ));
    assert!(try_once(&lock).await.unwrap().is_none());
    guard.unlock().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
    clean(&server).await;
}

#[tokio::test]
async fn levels_are_counted_here_and_never_shorten_the_lease() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_simple_lock("levels");
    let outer = lock.lock_with_lease(LONG * 2).await.unwrap();
    let before = value(&server, "levels").await;
    let inner = lock.lock_with_lease(ms(500)).await.unwrap();
    assert!(server.pttl("levels").await > 30_000, "T1");
    assert!(server.pttl("levels").await > 30_000, "T1");
    let more = inner.reenter(Duration::from_secs(90)).await.unwrap();
    assert_eq!((lock.hold_count(), more.hold_count()), (3, 3));
    assert_eq!(value(&server, "levels").await, before);
    assert!((60_000..=90_000).contains(&server.pttl("levels").await));
    more.unlock().await.unwrap();
    inner.unlock().await.unwrap();
    assert_eq!(lock.hold_count(), 1);
    assert_eq!(value(&server, "levels").await, before);
    assert!(
        (60_000..=90_000).contains(&server.pttl("levels").await),
        "T4"
    );
    outer.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn the_watchdog_keeps_simple_locks_and_tells_of_a_loss() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let (kept, lost) = (
        client.get_simple_lock("kept"),
        client.get_simple_lock("lost"),
    );
    let (kept, lost) = (kept.lock().await.unwrap(), lost.lock().await.unwrap());
    taken_by_another_library(&server, "theirs", "60000").await;
    server.cmd(&["COPY", "theirs", "lost", "REPLACE"]).await;
    assert_eq!(soon(lost.lost()).await, LostReason::Missing);
    let unlocked = lost.unlock().await;
    assert!(matches!(unlocked, Err(Error::Lost { .. })), "{unlocked:?}");
    assert_eq!(
        value(&server, "lost").await.as_deref(),
        Some("kR3b+token/=="),
        "I3"
    );
    let renewed = async || server.calls_of("pexpire").await >= 4;
    eventually("it is renewed", LONG, renewed).await;
    tokio::time::sleep(SHORT).await; // a lease: what is not renewed ends
    kept.verify().await.unwrap();
    kept.unlock().await.unwrap();
}

#[tokio::test]
async fn a_release_wakes_a_waiter_of_another_client() {
    let server = RedisServer::start();
    let one = without_polls(&server).connect().await.unwrap();
    let two = without_polls(&server).connect().await.unwrap();
    let mut guard = one.get_simple_lock("ball").lock().await.unwrap();
    for _ in 0..5 {
        for client in [&two, &one] {
            let waiter = waiting(client.get_simple_lock("ball"));
            subscribed(&server, "ball").await;
            guard.unlock().await.unwrap();
            guard = soon(waiter).await.unwrap().unwrap();
        }
    }
    guard.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_lock_of_another_library_is_busy_and_waited_for_until_it_is_deleted_or_ends() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_simple_lock("theirs");
    for how in ["deleted", "ended"] {
        taken_by_another_library(
            &server,
            "theirs",
            if how == "ended" { "700" } else { "60000" },
        )
        .await;
        assert!(try_once(&lock).await.unwrap().is_none(), "{how}");
        let Ttl::Left(left) = lock.remain_time_to_live().await.unwrap() else {
            panic!("{how}: it has a lease");
        };
        assert!(left <= LONG * 2);
        let waiter = waiting(lock.clone());
        subscribed(&server, "theirs").await;
        if how == "deleted" {
            server.cmd(&["DEL", "theirs"]).await;
        }
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn a_lock_of_another_library_can_be_forced() {
    let server = RedisServer::start();
    let client = without_polls(&server).connect().await.unwrap();
    let lock = client.get_simple_lock("forced");
    taken_by_another_library(&server, "forced", "60000").await;
    let waiter = waiting(lock.clone());
    subscribed(&server, "forced").await;
    assert!(lock.force_unlock().await.unwrap());
    let guard = soon(waiter).await.unwrap().unwrap();
    assert!(lock.force_unlock().await.unwrap(), "our own");
    assert!(!guard.is_valid(), "a hold of this client is lost at once");
    assert!(!lock.force_unlock().await.unwrap(), "free");
}

#[tokio::test]
async fn a_key_of_another_type_is_reported_by_every_verb_and_left_alone() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let held = client
        .get_lock("plain")
        .lock_with_lease(LONG)
        .await
        .unwrap();
    server.cmd(&["RPUSH", "list", "x"]).await;
    for name in ["plain", "list"] {
        let before: Vec<u8> = server.query(&["DUMP", name]).await;
        let lock = client.get_simple_lock(name);
        for refused in [
            try_once(&lock).await.map(drop),
            lock.lock().await.map(drop),
            lock.force_unlock().await.map(drop),
        ] {
            assert!(
                matches!(refused, Err(Error::WrongType { .. })),
                "{name}: {refused:?}"
            );
        }
        assert_eq!(before, server.query::<Vec<u8>>(&["DUMP", name]).await);
    }
    held.unlock().await.unwrap();
    // And the other way round.
    let held = client
        .get_simple_lock("simple")
        .lock_with_lease(LONG)
        .await
        .unwrap();
    let plain = client.get_lock("simple");
    let refused = plain.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(
        matches!(refused, Err(Error::WrongType { .. })),
        "{refused:?}"
    );
    let refused = plain.force_unlock().await;
    assert!(
        matches!(refused, Err(Error::WrongType { .. })),
        "{refused:?}"
    );
    held.unlock().await.unwrap();
}

/// Nobody knows whether it was executed: the repeat asks, and never takes its own hold for somebody's.
#[tokio::test]
async fn f3_i2_a_lost_reply_to_the_first_try_takes_the_lock_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    for fault in [
        Fault::SwallowReply,
        Fault::ResetAfter,
        Fault::SwallowRequest,
    ] {
        let lock = client.get_simple_lock("lost-reply");
        let held = server
            .cmd(&["SET", "lost-reply", "theirs", "PX", "300"])
            .await;
        assert_eq!(held, Value::Okay);
        let aim = proxy.inject(fault).on(Match::script(ACQUIRE)).arm();
        let guard = soon(lock.lock()).await.unwrap();
        assert_eq!(aim.fired(), 1);
        let id = value(&server, "lost-reply").await.expect("it is held");
        assert!(id.starts_with(&client.id().to_string()));
        guard.unlock().await.unwrap();
        gone(&server, "lost-reply").await;
    }
    clean(&server).await;
}

#[tokio::test]
async fn f3_i2_a_lost_reply_to_a_first_try_that_took_the_lock_is_asked_for() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    for fault in [Fault::SwallowReply, Fault::ResetAfter] {
        let aim = proxy.inject(fault).on(Match::script(ACQUIRE)).arm();
        let lock = client.get_simple_lock("taken");
        let guard = soon(lock.lock()).await.unwrap();
        assert_eq!(aim.fired(), 1);
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
        gone(&server, "taken").await;
    }
    clean(&server).await;
}

#[tokio::test]
async fn f3_i2_a_lost_reply_to_the_last_release_is_no_loss() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    let guard = client.get_simple_lock("given").lock().await.unwrap();
    let aim = proxy
        .inject(Fault::ResetAfter)
        .on(Match::script(RELEASE))
        .arm();
    let unlocked = guard.unlock().await;
    assert_eq!(aim.fired(), 1);
    let unknown = matches!(unlocked, Ok(()) | Err(Error::Unavailable { .. }));
    assert!(unknown, "{unlocked:?}");
    clean(&server).await;
}

#[tokio::test]
async fn f7_a_server_that_forgets_scripts_is_told_them_again() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_simple_lock("forgets");
    for _ in 0..3 {
        server.cmd(&["SCRIPT", "FLUSH"]).await;
        taken_by_another_library(&server, "forgets", "60000").await;
        assert!(try_once(&lock).await.unwrap().is_none());
        server.cmd(&["DEL", "forgets"]).await;
        server.cmd(&["SCRIPT", "FLUSH"]).await;
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
}

/// A flaw of shared locks in other libraries: a release by a holder that lost the lock ends the next holder's.
#[tokio::test]
async fn i3_a_late_unlock_leaves_the_next_holder_alone() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client
        .get_simple_lock("late")
        .lock_with_lease(ms(300))
        .await
        .unwrap();
    soon(guard.lost()).await;
    gone(&server, "late").await;
    taken_by_another_library(&server, "late", "60000").await;
    let unlocked = guard.unlock().await;
    assert!(matches!(unlocked, Err(Error::Lost { .. })), "{unlocked:?}");
    assert_eq!(
        value(&server, "late").await.as_deref(),
        Some("kR3b+token/==")
    );
}

/// The waiter listens, and its next poll is a minute away. The holder's library publishes nothing, so one try asks, first
/// for the waiter.
#[tokio::test]
async fn one_try_trusts_no_busy_answer_of_a_lock_that_others_give_back_in_silence() {
    let server = RedisServer::start();
    let client = without_polls(&server).connect().await.unwrap();
    let lock = client.get_simple_lock("silent");
    taken_by_another_library(&server, "silent", "600000").await;
    let waiter = waiting(lock.clone());
    subscribed(&server, "silent").await;
    assert!(try_once(&lock).await.unwrap().is_none());
    server.cmd(&["DEL", "silent"]).await;
    assert!(soon(try_once(&lock)).await.unwrap().is_none());
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
}
