//! What happens in the middle of something else: a level ends while its hold is being turned, a caller asks for a share
//! while the hold is lost or a writer waits, a hold runs out long before its lease.

use std::time::Duration;

use tokio::time::timeout;
use watchlock::{Client, Clock, Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, gone, ms, poll_once, soon, without_polls};
use crate::writers::note;
use crate::{try_read, try_write};

const NOTES: &str = "watchlock_writers:{x}";

#[tokio::test]
async fn a_level_that_is_left_to_its_lease_before_redis_heard_of_its_turn_ends_with_it() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    let write = client.get_read_write_lock("x").write_lock();
    let guard = write.lock_with_lease(ms(2_000)).await.unwrap();
    server.freeze();
    let reading = guard.downgrade().await.unwrap();
    reading.let_expire().unwrap();
    server.resume();
    let guard = timeout(Duration::from_secs(8), write.lock()).await;
    guard
        .expect("its lease is over")
        .unwrap()
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}

/// It comes with each message that frees the lock, for Redisson, and would cost a try each time.
#[tokio::test]
async fn a_repeated_message_wakes_nobody() {
    let server = RedisServer::start();
    let client = without_polls(&server).connect().await.unwrap();
    // From here on the scripts are known.
    try_read(&client, "x")
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    server.reset_calls().await;
    let mut waiting = Vec::new();
    for name in ["x", "y"] {
        server
            .cmd(&["HSET", name, "mode", "write", "java:1:write", "1"])
            .await;
        server.cmd(&["PEXPIRE", name, "60000"]).await;
        let lock = client.get_read_write_lock(name).read_lock();
        let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
        waiting.push((waiter, format!("redisson_rwlock:{{{name}}}")));
    }
    eventually("each asked, and again while it listens", LONG, async || {
        server.calls_of("evalsha").await >= 4
    })
    .await;
    let (y, of_y) = waiting.pop().unwrap();
    let (x, of_x) = waiting.pop().unwrap();
    server.cmd(&["DEL", "x", "y"]).await;
    server.cmd(&["PUBLISH", &of_x, "00"]).await;
    server.cmd(&["PUBLISH", &of_y, "1"]).await;
    soon(y).await.unwrap().unlock().await.unwrap();
    assert!(!server.exists("x").await, "nothing was said of it");
    server.cmd(&["PUBLISH", &of_x, "1"]).await;
    soon(x).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_fixed_level_ends_at_its_own_lease_also_when_it_was_downgraded_beside_a_watched_one() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x");
    let outer = lock.write_lock().lock().await.unwrap();
    let inner = outer.reenter(ms(500)).await.unwrap();
    let reading = inner.downgrade().await.unwrap();
    assert!(reading.valid_for() <= ms(500), "{:?}", reading.valid_for());
    outer.unlock().await.unwrap();
    let other = try_read(&client, "x").await.unwrap();
    let lost = timeout(Duration::from_secs(5), reading.lost()).await;
    assert_eq!(lost, Ok(LostReason::Expired));
    other.unlock().await.unwrap();
    drop(reading);
    clean(&server).await;
}

/// Redis keeps it for an hour; the client relies on it only for as long as it can look after it.
#[tokio::test]
async fn a_long_read_lease_that_was_lost_to_an_outage_is_given_back_after_it() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url())
        .watchdog_lease(ms(1_000))
        .command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    let read = client.get_read_write_lock("x").read_lock();
    let reading = read
        .lock_with_lease(Duration::from_secs(3_600))
        .await
        .unwrap();
    server.freeze();
    assert_eq!(soon(reading.lost()).await, LostReason::Expired);
    server.resume();
    let write = connect(&server).await.get_read_write_lock("x").write_lock();
    let guard = timeout(Duration::from_secs(10), write.lock()).await;
    guard
        .expect("nobody reads")
        .unwrap()
        .unlock()
        .await
        .unwrap();
    drop(reading);
    clean(&server).await;
}

#[tokio::test]
async fn one_try_to_read_starts_afresh_when_the_hold_that_it_asked_for_is_gone() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let reading = try_read(&client, "x").await.unwrap();
    server.cmd(&["DEL", "x"]).await;
    // A busy answer from a moment ago no longer counts.
    tokio::time::sleep(ms(60)).await;
    let fresh = try_read(&client, "x").await.expect("the lock is free");
    assert_eq!(soon(reading.lost()).await, LostReason::Missing);
    fresh.unlock().await.unwrap();
    drop(reading);
    clean(&server).await;
}

#[tokio::test]
async fn one_try_to_read_for_longer_is_not_busy_because_of_readers() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    server.freeze();
    let mut first = Box::pin(lock.lock());
    assert!(poll_once(&mut first).await.is_none());
    let mut longer = Box::pin(lock.try_lock(Duration::ZERO, Duration::from_secs(600)));
    assert!(poll_once(&mut longer).await.is_none());
    server.resume();
    let first = soon(first).await.unwrap();
    let longer = soon(longer).await.unwrap().expect("readers share");
    assert!(longer.is_valid());
    first.unlock().await.unwrap();
    longer.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_refused_reader_lengthens_no_lease() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let reading = try_read(&a, "x").await.unwrap();
    let write = b.get_read_write_lock("x").write_lock();
    let mut writing = Box::pin(write.lock());
    assert!(poll_once(&mut writing).await.is_none());
    eventually("it is noted", LONG, async || server.exists(NOTES).await).await;
    let read = a.get_read_write_lock("x").read_lock();
    let hour = Lease::Fixed(Duration::from_secs(3_600));
    assert!(read.try_lock(Duration::ZERO, hour).await.unwrap().is_none());
    for key in server.keys().await {
        let left = server.pttl(&key).await;
        assert!(left <= 30_000, "{key}: {left}");
    }
    reading.unlock().await.unwrap();
    soon(writing).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// An answer of Redis from a moment ago no longer counts.
#[tokio::test]
async fn a_refused_reader_makes_the_next_readers_ask() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let hour = Lease::Fixed(Duration::from_secs(3_600));
    // The chance lasts only a moment: one of several rounds is quick enough.
    for _ in 0..20 {
        let reading = lock.lock().await.unwrap();
        note(&server, 3_000).await;
        assert!(lock.try_lock(Duration::ZERO, hour).await.unwrap().is_none());
        assert!(try_read(&client, "x").await.is_none(), "a writer waits");
        server.cmd(&["DEL", NOTES]).await;
        reading.unlock().await.unwrap();
    }
    clean(&server).await;
}

/// The keeper leaves its notes.
#[tokio::test]
async fn a_note_that_may_not_be_dated_is_not_left() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let reading = try_read(&client, "x").await.unwrap();
    server.cmd(&["ACL", "SETUSER", "default", "-pttl"]).await;
    let before = server.calls_of("hget").await;
    let write = client.get_read_write_lock("x").write_lock();
    let mut writing = Box::pin(write.lock());
    assert!(poll_once(&mut writing).await.is_none());
    eventually("it was tried", LONG, async || {
        server.calls_of("hget").await > before
    })
    .await;
    server.cmd(&["ACL", "SETUSER", "default", "+pttl"]).await;
    if server.exists(NOTES).await {
        assert!(server.pttl(NOTES).await >= 0, "no key without TTL");
    }
    reading.unlock().await.unwrap();
    soon(writing).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_level_that_ran_out_says_so_also_when_all_others_are_gone() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let other = lock.lock().await.unwrap();
    let short = lock.lock_with_lease(ms(200)).await.unwrap();
    assert_eq!(soon(short.lost()).await, LostReason::Expired);
    other.unlock().await.unwrap();
    let answer = short.unlock().await;
    let expired = matches!(
        &answer,
        Err(Error::Lost {
            reason: LostReason::Expired,
            ..
        })
    );
    assert!(expired, "{answer:?}");
    clean(&server).await;
}

#[tokio::test]
async fn nobody_overtakes_a_writer_whose_try_is_not_answered_yet() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    let guard = lock.write_lock().lock().await.unwrap();
    server.freeze();
    let reading = guard.downgrade().await.unwrap();
    reading.unlock().await.unwrap_err();
    server.resume();
    let again = timeout(Duration::from_secs(8), lock.write_lock().lock()).await;
    again
        .expect("it is given back")
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert!(try_write(&client, "x").await.is_some());
    clean(&server).await;
}

#[tokio::test]
async fn a_read_level_that_was_left_to_its_lease_outlives_its_client() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let read = client.get_read_write_lock("x").read_lock();
    let guard = read.lock_with_lease(Duration::from_secs(20)).await.unwrap();
    guard.let_expire().unwrap();
    let over = timeout(Duration::from_secs(5), client.shutdown(LONG * 10)).await;
    over.expect("there is nothing to wait for");
    assert!(server.pttl("x").await > 0, "it is left to its lease");
}

/// Whoever reads beside it may leave in the time between the end of its validity and that of its lease.
#[tokio::test]
async fn a_read_level_that_was_left_to_its_lease_keeps_writers_out_to_the_end_of_it() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let secs = Duration::from_secs;
    let builder = Client::builder(&server.url()).clock(clock);
    let client = builder.watchdog_lease(secs(4_000)).connect().await.unwrap();
    let read = client.get_read_write_lock("x").read_lock();
    let reading = read.lock().await.unwrap();
    let left = read.lock_with_lease(secs(3_600)).await.unwrap();
    left.let_expire().unwrap();
    ahead.advance(secs(3_570));
    eventually("it is renewed", LONG, async || {
        reading.valid_for() > secs(3_000)
    })
    .await;
    // What the keeper does about its end is behind it when another hold was given back.
    drop(client.get_lock("another").lock().await.unwrap());
    gone(&server, "another").await;
    reading.unlock().await.unwrap();
    assert!(try_write(&client, "x").await.is_none(), "30 s are left");
    ahead.advance(secs(31));
    clean(&server).await;
}

/// Nobody has it any more, so nobody can lose it.
#[tokio::test]
async fn a_read_level_that_was_left_to_its_lease_keeps_writers_out_through_an_outage() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url())
        .watchdog_lease(ms(1_000))
        .command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    let read = client.get_read_write_lock("x").read_lock();
    let reading = read.lock().await.unwrap();
    let left = read.lock_with_lease(Duration::from_secs(3_600)).await;
    left.unwrap().let_expire().unwrap();
    server.freeze();
    assert_eq!(soon(reading.lost()).await, LostReason::Expired);
    server.resume();
    let write = connect(&server).await.get_read_write_lock("x").write_lock();
    let early = write.try_lock(ms(700), Lease::Watchdog).await.unwrap();
    assert!(early.is_none(), "its lease is not over");
    assert!(server.pttl("x").await > 3_500_000);
    drop(reading);
}

/// A client that ends takes the lock away from whoever reads, but not from what it left to its lease.
#[tokio::test]
async fn a_read_level_that_was_left_to_its_lease_outlives_a_shutdown_that_cuts_a_reader_off() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let read = client.get_read_write_lock("x").read_lock();
    let reading = read.lock().await.unwrap();
    let left = read.lock_with_lease(Duration::from_secs(20)).await.unwrap();
    left.let_expire().unwrap();
    let report = soon(client.shutdown(ms(100))).await;
    assert_eq!(reading.lost().await, LostReason::Shutdown);
    assert_eq!((report.held, report.unreleased), (vec!["x".into()], vec![]));
    let other = connect(&server).await;
    assert!(try_write(&other, "x").await.is_none(), "it is left");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_read_level_that_was_left_to_its_lease_beside_a_reader() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let read = client.get_read_write_lock("x").read_lock();
    let reading = read.lock().await.unwrap();
    let left = read.lock_with_lease(LONG * 20).await.unwrap();
    left.let_expire().unwrap();
    let closing = client.clone();
    let ending = tokio::spawn(async move { closing.shutdown(LONG * 10).await });
    soon(client.shutting_down()).await;
    reading.unlock().await.unwrap();
    assert!(soon(ending).await.unwrap().is_clean());
    assert!(server.pttl("x").await > 0, "it is left to its lease");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_lost_hold_of_which_a_level_was_left_to_its_lease() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url())
        .watchdog_lease(ms(1_000))
        .command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    let read = client.get_read_write_lock("x").read_lock();
    let reading = read.lock().await.unwrap();
    let left = read.lock_with_lease(Duration::from_secs(3_600)).await;
    left.unwrap().let_expire().unwrap();
    let closing = client.clone();
    let ending = tokio::spawn(async move { closing.shutdown(LONG * 10).await });
    soon(client.shutting_down()).await;
    server.freeze();
    assert_eq!(soon(reading.lost()).await, LostReason::Expired);
    assert!(soon(ending).await.unwrap().is_clean());
}

/// The hold is the writer's until Redis knows of the downgrade.
#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_read_level_that_was_left_to_its_lease_under_a_write() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    let write = lock.write_lock().lock().await.unwrap();
    let left = lock.read_lock().lock_with_lease(LONG * 20).await.unwrap();
    left.let_expire().unwrap();
    let closing = client.clone();
    let ending = tokio::spawn(async move { closing.shutdown(LONG * 10).await });
    soon(client.shutting_down()).await;
    write.unlock().await.unwrap();
    assert!(soon(ending).await.unwrap().is_clean());
    let other = connect(&server).await;
    assert!(try_write(&other, "x").await.is_none(), "it is left");
    assert!(try_read(&other, "x").await.is_some(), "it is downgraded");
}

#[tokio::test]
async fn a_read_begun_under_its_own_write_during_a_shutdown_ends_in_order() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    let write = lock.write_lock().lock().await.unwrap();
    let closing = client.clone();
    let ending = tokio::spawn(async move { closing.shutdown(LONG).await });
    soon(client.shutting_down()).await;
    let reading = lock.read_lock().lock().await.unwrap();
    write.unlock().await.unwrap();
    assert!(reading.is_valid() && !ending.is_finished());
    reading.unlock().await.unwrap();
    assert!(soon(ending).await.unwrap().is_clean());
    clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_reads_twice_at_once_under_its_own_write_has_two_levels_of_one_hold() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    let read = lock.read_lock();
    let write = lock.write_lock().lock().await.unwrap();
    for round in 0..2_000 {
        // Threads of their own: a task that blocks a worker may keep the other one from it for ever.
        let barrier = std::sync::Barrier::new(2);
        let runtime = tokio::runtime::Handle::current();
        let reading = || {
            barrier.wait();
            runtime.block_on(read.lock()).unwrap()
        };
        let (one, two) = tokio::task::block_in_place(|| {
            std::thread::scope(|threads| {
                let other = threads.spawn(reading);
                (reading(), other.join().unwrap())
            })
        });
        assert_eq!((one.hold_count(), two.hold_count()), (2, 2), "{round}");
        one.unlock().await.unwrap();
        two.unlock().await.unwrap();
    }
    write.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn one_try_to_read_behind_one_try_to_write_is_answered_as_soon_as_that_one() {
    let server = RedisServer::start();
    // Its own time-out would answer it, too.
    let builder = Client::builder(&server.url()).command_timeout(LONG * 2);
    let client = builder.connect().await.unwrap();
    let lock = client.get_read_write_lock("x");
    let (read, write) = (lock.read_lock(), lock.write_lock());
    server.freeze();
    let mut first = Box::pin(read.lock());
    assert!(poll_once(&mut first).await.is_none());
    let mut writing = Box::pin(write.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut writing).await.is_none());
    let mut reading = Box::pin(read.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut reading).await.is_none());
    server.resume();
    let first = soon(first).await.unwrap();
    assert!(soon(writing).await.unwrap().is_none(), "it is read");
    drop(soon(reading).await.expect("a clean answer"));
    first.unlock().await.unwrap();
    clean(&server).await;
}
