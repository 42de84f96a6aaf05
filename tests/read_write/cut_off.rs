//! Joins and downgrades whose caller goes away at any await (I9), or whose request or reply is lost (F3).

use std::time::Duration;

use tokio::task::JoinHandle;
use watchlock::{Client, Lease, LockGuard};
use watchlock_support::proxy::{Aim, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::cut::{after, at_every_await};
use crate::common::{LONG, clean, connect, ms, soon};
use crate::try_write;

const MINUTE: Duration = Duration::from_secs(60);
const LOSSES: [Fault; 4] = [
    Fault::SwallowRequest,
    Fault::SwallowReply,
    Fault::ResetBefore,
    Fault::ResetAfter,
];

/// A server, a client that comes through a proxy and gives up on an answer soon, and one that does not.
async fn scene() -> (RedisServer, Proxy, Client, Client) {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).command_timeout(ms(1_000));
    let client = builder.unavailable_after(LONG).connect().await.unwrap();
    let other = connect(&server).await;
    (server, proxy, client, other)
}

/// Loses the next command about the lock, or its reply.
fn lose(proxy: &Proxy, loss: &Fault) -> Aim {
    let scripts = Match::when(|command| command.name() == "EVALSHA");
    proxy
        .inject(loss.clone())
        .on(Match::arg("x").and(scripts))
        .arm()
}

/// A reader of that client waits.
fn reader(client: &Client) -> JoinHandle<LockGuard> {
    let lock = client.get_read_write_lock("x").read_lock();
    tokio::spawn(async move { lock.lock().await.unwrap() })
}

/// The other client's reader gets in, and then its writer: nobody of the first is there any more.
async fn is_left_to(other: &Client, reader: JoinHandle<LockGuard>) {
    soon(reader).await.unwrap().unlock().await.unwrap();
    let write = other.get_read_write_lock("x").write_lock();
    soon(write.lock()).await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn i9_a_join_can_be_dropped_at_any_await() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let first = lock.lock().await.unwrap();
    let mut lease = MINUTE;
    at_every_await(async |polls| {
        // Longer than what is promised, so it has to be asked for.
        lease += MINUTE;
        let before = server.calls_of("evalsha").await;
        let got = after(polls, lock.lock_for(lease)).await;
        let completed = got.is_some();
        drop(got.map(Result::unwrap));
        if completed {
            assert!(server.calls_of("evalsha").await > before, "it is a join");
        }
        first.check().unwrap();
        soon(lock.lock()).await.unwrap().unlock().await.unwrap();
        completed
    })
    .await;
    first.unlock().await.unwrap();
    assert!(try_write(&client, "x").await.is_some(), "nobody is left");
    clean(&server).await;
}

#[tokio::test]
async fn i9_a_join_that_is_dropped_keeps_none_of_those_who_wait_for_it() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let first = lock.lock().await.unwrap();
    let mut lease = MINUTE;
    at_every_await(async |polls| {
        lease += MINUTE;
        let waiting = async {
            let others = futures_util::future::join_all((0..3).map(|_| lock.lock_for(lease)));
            for guard in soon(others).await {
                guard.unwrap().unlock().await.unwrap();
            }
        };
        let (got, ()) = tokio::join!(after(polls, lock.lock_for(lease)), waiting);
        let completed = got.is_some();
        drop(got);
        completed
    })
    .await;
    first.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn i9_a_downgrade_can_be_dropped_at_any_await() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let lock = client.get_read_write_lock("x");
    at_every_await(async |polls| {
        let write = lock.write_lock().lock().await.unwrap();
        let waiting = reader(&other);
        let got = after(polls, write.downgrade()).await;
        let completed = got.is_some();
        drop(got.map(Result::unwrap));
        is_left_to(&other, waiting).await;
        completed
    })
    .await;
    clean(&server).await;
}

#[tokio::test]
async fn i9_downgrading_an_inner_level_can_be_dropped_at_any_await() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    at_every_await(async |polls| {
        let outer = lock.write_lock().lock().await.unwrap();
        let inner = outer.reenter(Lease::Watchdog).await.unwrap();
        let waiting = reader(&other);
        let got = after(polls, inner.downgrade()).await;
        let completed = got.is_some();
        drop(got.map(Result::unwrap));
        assert_eq!((outer.hold_count(), lock.read_lock().hold_count()), (1, 0));
        outer.check().unwrap();
        outer.unlock().await.unwrap();
        is_left_to(&other, waiting).await;
        completed
    })
    .await;
    clean(&server).await;
}

#[tokio::test]
async fn i9_leaving_the_lock_to_read_levels_can_be_dropped_at_any_await() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    at_every_await(async |polls| {
        let write = lock.write_lock().lock().await.unwrap();
        let reading = lock.read_lock().lock().await.unwrap();
        let waiting = reader(&other);
        let unlocked = after(polls, write.unlock()).await;
        reading.check().unwrap();
        soon(waiting).await.unwrap().unlock().await.unwrap();
        reading.unlock().await.unwrap();
        is_left_to(&other, reader(&other)).await;
        unlocked.is_some_and(|unlocked| unlocked.is_ok())
    })
    .await;
    clean(&server).await;
}

#[tokio::test]
async fn f3_a_join_whose_request_or_reply_is_lost_is_made_again() {
    let (server, proxy, client, _other) = scene().await;
    let lock = client.get_read_write_lock("x").read_lock();
    // The server knows the scripts.
    let first = lock.lock().await.unwrap();
    lock.lock_for(MINUTE).await.unwrap().unlock().await.unwrap();
    first.unlock().await.unwrap();
    for loss in LOSSES {
        let first = lock.lock().await.unwrap();
        let aim = lose(&proxy, &loss);
        let got = soon(lock.try_lock(LONG, MINUTE)).await.unwrap();
        let longer = got.expect("readers share");
        assert_eq!(aim.fired(), 1, "{loss:?}");
        assert!(first.is_valid() && longer.is_valid(), "{loss:?}");
        assert!(server.pttl("x").await > 40_000, "{loss:?}");
        first.unlock().await.unwrap();
        longer.unlock().await.unwrap();
        assert!(server.keys().await.is_empty(), "{loss:?}");
    }
    clean(&server).await;
}

#[tokio::test]
async fn f3_one_try_to_join_is_not_busy_because_nothing_was_heard() {
    let (server, proxy, client, _other) = scene().await;
    let lock = client.get_read_write_lock("x").read_lock();
    for loss in LOSSES {
        let first = lock.lock().await.unwrap();
        let aim = lose(&proxy, &loss);
        let got = soon(lock.try_lock(Duration::ZERO, MINUTE)).await;
        assert_eq!(aim.fired(), 1, "{loss:?}");
        match got {
            Ok(guard) => guard.expect("readers share").unlock().await.unwrap(),
            Err(error) => assert!(error.is_transient(), "{loss:?}: {error}"),
        }
        first.check().unwrap();
        first.unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn f3_a_downgrade_whose_request_or_reply_is_lost_lets_readers_in_all_the_same() {
    let (server, proxy, client, other) = scene().await;
    let owner = client.new_owner();
    for loss in LOSSES {
        for levels in [true, false] {
            let lock = owner.get_read_write_lock("x");
            let write = lock.write_lock().lock().await.unwrap();
            let inner = if levels {
                Some(lock.read_lock().lock().await.unwrap())
            } else {
                None
            };
            let waiting = reader(&other);
            let aim = lose(&proxy, &loss);
            let reading = match inner {
                Some(inner) => {
                    soon(write.unlock()).await.unwrap();
                    inner
                }
                None => soon(write.downgrade()).await.unwrap(),
            };
            assert_eq!(aim.fired(), 1, "{loss:?}");
            let theirs = soon(waiting).await.unwrap();
            assert!(theirs.is_valid() && reading.is_valid(), "{loss:?}");
            reading.verify().await.unwrap();
            assert!(try_write(&other, "x").await.is_none(), "{loss:?}");
            theirs.unlock().await.unwrap();
            soon(reading.unlock()).await.unwrap();
            is_left_to(&other, reader(&other)).await;
        }
    }
    clean(&server).await;
}
