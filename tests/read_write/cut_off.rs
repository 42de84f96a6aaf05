//! Joins and downgrades whose caller goes away at any await (I9), or whose request or reply is lost (F3).

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use watchlock::{Client, Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::{Aim, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::cut::{after, at_every_await};
use crate::common::{LONG, SHORT, clean, connect, ms, poll_once, script, soon};
use crate::try_write;

const MINUTE: Duration = Duration::from_secs(60);
const LOSSES: [Fault; 4] = [
    Fault::SwallowRequest,
    Fault::SwallowReply,
    Fault::ResetBefore,
    Fault::ResetAfter,
];

/// A server, a client that connects through a proxy and gives up on an answer soon, and one that does not.
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

/// A waiting reader of that client.
fn reader(client: &Client) -> JoinHandle<LockGuard> {
    let lock = client.get_read_write_lock("x").read_lock();
    tokio::spawn(async move { lock.lock().await.unwrap() })
}

/// The other client's reader gets in, and then its writer: no level of the first client is left.
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
        // Longer than what is promised, so it has to ask.
        lease += MINUTE;
        let before = server.calls_of("evalsha").await;
        let got = after(polls, lock.lock_with_lease(lease)).await;
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
async fn i9_a_dropped_join_holds_up_none_of_its_waiters() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let first = lock.lock().await.unwrap();
    let mut lease = MINUTE;
    at_every_await(async |polls| {
        lease += MINUTE;
        let waiting = async {
            let others =
                futures_util::future::join_all((0..3).map(|_| lock.lock_with_lease(lease)));
            for guard in soon(others).await {
                guard.unwrap().unlock().await.unwrap();
            }
        };
        let (got, ()) = tokio::join!(after(polls, lock.lock_with_lease(lease)), waiting);
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
    lock.lock_with_lease(MINUTE)
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
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
            // It may be sent on the connection whose loss is not known yet.
            eventually("Redis has it", LONG, async || {
                reading.verify().await.is_ok()
            })
            .await;
            assert!(try_write(&other, "x").await.is_none(), "{loss:?}");
            theirs.unlock().await.unwrap();
            soon(reading.unlock()).await.unwrap();
            is_left_to(&other, reader(&other)).await;
        }
    }
    clean(&server).await;
}

/// The existing hold came from an acquire whose reply was lost; that does not concern a caller that asks to share it.
#[tokio::test]
async fn f3_a_join_that_fails_costs_no_reader_its_hold() {
    let (server, proxy, client, other) = scene().await;
    let lock = client.get_read_write_lock("x").read_lock();
    // The server knows the scripts.
    let first = lock.lock().await.unwrap();
    lock.lock_with_lease(MINUTE)
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    first.unlock().await.unwrap();
    let verified = Match::script(&script("rw/assert.lua")).and(Match::arg("x"));
    let verified = proxy.count(verified);
    let lost = lose(&proxy, &Fault::SwallowReply);
    let first = soon(lock.lock()).await.unwrap();
    assert_eq!(lost.fired(), 1, "it was asked for twice");
    // The silent connection is given up: this goes over the next one, and the keeper verifies as well.
    first.verify().await.unwrap();
    eventually("both verified it", LONG, async || verified.seen() > 1).await;
    let releases = Match::script(&script("rw/release.lua")).and(Match::arg("x"));
    let releases = proxy.count(releases);
    let accepted = proxy.accepted();
    let swallowed = lose(&proxy, &Fault::SwallowRequest);
    let longer = soon(lock.try_lock(Duration::ZERO, MINUTE)).await;
    assert!(longer.unwrap_err().is_transient());
    assert_eq!(swallowed.fired(), 1, "it was a join");
    tokio::time::sleep(ms(200)).await; // nothing to wait for: silence is what is looked at
    assert_eq!(releases.seen(), 0);
    eventually("the silent connection is replaced", LONG, async || {
        proxy.accepted() > accepted
    })
    .await;
    first.verify().await.unwrap();
    assert!(try_write(&other, "x").await.is_none(), "it is read");
    first.unlock().await.unwrap();
    clean(&server).await;
}

/// A join that waits for a connection first, so that it waits for less than a time-out after it is sent. When it fails, the
/// connection has not been silent for that long. `then` looks at the proxy on the runtime of that connection.
async fn sends_a_join_late(fault: Fault, then: impl AsyncFnOnce(&Proxy) + Send + 'static) {
    let (server, proxy, client, other) = scene().await;
    let lock = client.get_read_write_lock("x").read_lock();
    let proxy = Arc::new(proxy);
    // The server knows the scripts.
    let first = lock.lock().await.unwrap();
    let again = lock.lock_with_lease(MINUTE).await.unwrap();
    again.unlock().await.unwrap();
    eventually("the keeper is connected", LONG, async || {
        proxy.commands().contains_key("PING")
    })
    .await;
    let slow = proxy.inject(Fault::DelayReply(ms(500)));
    let slow = slow.on(Match::when(|command| command.name() == "CLIENT"));
    let slow = slow.times(1).arm();
    let faulty = lose(&proxy, &fault);
    let through = Arc::clone(&proxy);
    // Each runtime has connections of its own, so this one has to connect.
    let on_another_runtime = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let longer = soon(lock.try_lock(Duration::ZERO, MINUTE * 2)).await;
            assert!(longer.unwrap_err().is_transient());
            then(&through).await;
        });
    });
    let joined = tokio::task::spawn_blocking(|| on_another_runtime.join());
    joined.await.unwrap().unwrap();
    assert!(slow.fired() > 0, "it waited for a connection");
    assert_eq!(faulty.fired(), 1, "it was a join");
    first.verify().await.unwrap();
    assert!(try_write(&other, "x").await.is_none(), "it is read");
    first.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn f3_a_connection_that_falls_silent_behind_a_join_that_is_sent_late_is_replaced() {
    sends_a_join_late(Fault::SwallowRequest, async |proxy| {
        let accepted = proxy.accepted();
        eventually("the silent connection is replaced", LONG, async || {
            proxy.accepted() > accepted
        })
        .await;
    })
    .await;
}

/// Behind the late reply nobody asks anything, so nothing is read.
#[tokio::test]
async fn a_connection_on_which_the_reply_to_a_join_comes_late_is_kept() {
    sends_a_join_late(Fault::DelayReply(ms(800)), async |proxy| {
        let accepted = proxy.accepted();
        tokio::time::sleep(ms(3_000)).await; // nothing to wait for: it is looked at twice in this time
        assert_eq!(proxy.accepted(), accepted);
    })
    .await;
}

#[tokio::test]
async fn a_waiting_writer_gets_no_error_for_an_outage_that_was_over_long_ago() {
    let (patience, server) = (SHORT * 2, RedisServer::start());
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).unavailable_after(patience);
    let client = builder.connect().await.unwrap();
    let lock = client.get_read_write_lock("x");
    let read = lock.read_lock();
    let loading = || Fault::Answer("LOADING Redis is loading the dataset in memory".into());
    // The server knows the scripts.
    let first = read.lock().await.unwrap();
    let longer = read.lock_with_lease(MINUTE).await.unwrap();
    longer.unlock().await.unwrap();
    first.unlock().await.unwrap();
    let first = read.lock().await.unwrap();
    let refused = lose(&proxy, &loading());
    let longer = soon(read.lock_with_lease(MINUTE)).await.unwrap();
    assert_eq!(refused.fired(), 1);
    let write = lock.write_lock();
    let waiting = tokio::spawn(async move { write.lock().await });
    // The end of a fixed lease shows that more than its patience has passed.
    let clock = client
        .get_lock("clock")
        .lock_with_lease(patience + SHORT)
        .await
        .unwrap();
    clock.lost().await;
    drop(clock);
    longer.unlock().await.unwrap();
    let refused = lose(&proxy, &loading());
    drop(soon(first.unlock()).await);
    assert_eq!(refused.fired(), 1);
    let guard = soon(waiting).await.unwrap();
    guard
        .expect("one refused release is no outage")
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}

/// They ask with the question that is under way, or after it.
#[tokio::test]
async fn one_try_beside_a_join_under_way_is_not_busy_because_of_readers() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).command_timeout(LONG);
    let client = client.connect().await.unwrap();
    let lock = client.get_read_write_lock("x").read_lock();
    let first = lock.lock().await.unwrap();
    let aim = lose(&proxy, &Fault::DelayReply(ms(300)));
    // Longer than what is promised, so it has to ask.
    let mut joins = Box::pin(lock.lock_with_lease(MINUTE));
    assert!(poll_once(&mut joins).await.is_none());
    let once = lock.try_lock(Duration::ZERO, MINUTE);
    let short = lock.try_lock(ms(20), MINUTE);
    let (joined, once, short) = soon(async { tokio::join!(joins, once, short) }).await;
    assert_eq!(aim.fired(), 1);
    joined.unwrap().unlock().await.unwrap();
    for tried in [once, short] {
        tried
            .unwrap()
            .expect("readers share")
            .unlock()
            .await
            .unwrap();
    }
    first.unlock().await.unwrap();
    clean(&server).await;
}
