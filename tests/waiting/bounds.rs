//! I6: how long a bounded wait takes, whatever the server does, and what it returns at its end.

use std::time::{Duration, Instant};

use watchlock::{Backoff, Client, Clock, Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{
    LONG, channel, clean, connect, gone, ms, poll_once, soon, subscribed, try_once, without_polls,
};

const HOUR: Duration = Duration::from_secs(3_600);

const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");
const COMMAND: Duration = Duration::from_millis(300);
/// How late a bounded wait may end.
const ACCURATE: Duration = Duration::from_millis(50);
/// What a busy machine may add; elsewhere the promise is 50 ms.
const LATE: Duration = Duration::from_millis(1_500);

async fn brief(url: &str) -> Client {
    let builder = Client::builder(url)
        .command_timeout(COMMAND)
        .unavailable_after(ms(600));
    builder.connect().await.unwrap()
}

fn assert_took(started: Instant, at_least: Duration, at_most: Duration) {
    let took = started.elapsed();
    assert!(took >= at_least && took < at_most + LATE, "{took:?}");
}

#[tokio::test]
async fn i6_a_wait_for_a_busy_lock_is_exact() {
    let server = RedisServer::start();
    let guard = connect(&server).await.get_lock("busy").lock().await;
    let client = brief(&server.url()).await;
    for wait in [0, 1, 20, 299, 301, 700].map(ms) {
        let mut soonest = Duration::MAX;
        // The best of several: the machine may be late, the library not.
        for _ in 0..5 {
            let started = Instant::now();
            let lock = client.get_lock("busy");
            assert!(lock.try_lock(wait, wait + LONG).await.unwrap().is_none());
            soonest = soonest.min(started.elapsed());
            if soonest < wait + ACCURATE {
                break;
            }
        }
        let exact = soonest >= wait && soonest < wait + ACCURATE;
        assert!(exact, "{wait:?}: {soonest:?}");
    }
    drop(guard);
}

#[tokio::test]
async fn i6_a_silent_server_is_an_error_in_time_and_never_busy() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = brief(&proxy.url()).await;
    drop(client.get_lock("warm").lock().await.unwrap());
    clean(&server).await;
    proxy.hold(Direction::Both);
    for wait in [0, 50, 500].map(ms) {
        let started = Instant::now();
        let tried = client.get_lock("silent").try_lock(wait, LONG).await;
        assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
        assert_took(started, Duration::ZERO, wait.max(COMMAND));
    }
    let started = Instant::now();
    let locked = client.get_lock("silent").lock().await;
    assert!(matches!(locked, Err(Error::Unavailable { .. })));
    assert_took(started, ms(600), ms(600) + COMMAND);
    proxy.heal();
    drop(client);
    clean(&server).await;
}

#[tokio::test]
async fn i6_questions_without_an_answer_return_in_time() {
    let server = RedisServer::start();
    let client = brief(&server.url()).await;
    let lock = client.get_lock("asked");
    server.freeze();
    let started = Instant::now();
    let asked = [
        lock.is_locked().await.err(),
        lock.remain_time_to_live().await.err(),
        lock.force_unlock().await.err(),
    ];
    assert_took(started, Duration::ZERO, COMMAND * 3);
    server.resume();
    for error in asked {
        assert!(matches!(error, Some(Error::Unavailable { .. })));
    }
}

#[tokio::test]
async fn i6_one_deadline_covers_the_gate_and_the_try() {
    let server = RedisServer::start();
    let client = brief(&server.url()).await;
    let first = client.get_lock("gate").lock().await.unwrap();
    let lock = client.get_lock("gate");
    let started = Instant::now();
    let mut waiter = Box::pin(lock.try_lock(ms(700), Lease::Watchdog));
    assert!(poll_once(&mut waiter).await.is_none());
    subscribed(&server, "gate").await;
    // From busy here to busy there: another client takes the lock over.
    let other = connect(&server).await.get_lock("gate");
    let taken = tokio::spawn(async move { other.lock().await });
    first.unlock().await.unwrap();
    let waited = soon(waiter).await.unwrap();
    match waited {
        None => assert_took(started, ms(700), ms(700)),
        Some(guard) => guard.unlock().await.unwrap(),
    }
    drop(soon(taken).await.unwrap().unwrap());
}

#[tokio::test]
async fn one_try_awaits_an_attempt_under_way_and_then_knows() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let slow = proxy
        .inject(Fault::DelayReply(ms(300)))
        .on(Match::script(ACQUIRE).and(Match::key("way")))
        .arm();
    let lock = client.get_lock("way");
    let first = tokio::spawn(async move { lock.lock().await });
    eventually("it is under way", LONG, async || slow.fired() == 1).await;
    assert!(try_once(&client, "way").await.unwrap().is_none());
    let guard = soon(first).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn one_try_gets_the_lock_when_the_attempt_under_way_is_given_up() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let slow = proxy
        .inject(Fault::DelayReply(ms(200)))
        .on(Match::script(ACQUIRE).and(Match::key("given-up")))
        .arm();
    let lock = client.get_lock("given-up");
    let first = tokio::spawn(async move { lock.lock().await.map(drop) });
    eventually("it is under way", LONG, async || slow.fired() == 1).await;
    let second = client.get_lock("given-up");
    let mut second = Box::pin(second.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut second).await.is_none());
    first.abort();
    let guard = soon(second).await.unwrap().expect("the lock is free");
    guard.unlock().await.unwrap();
}

/// The callers that were answered busy have gone since, and so has the holder.
#[tokio::test]
async fn busy_is_not_said_from_the_answer_of_a_caller_that_is_gone() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    let lock = client.get_lock("gone");
    let held = holder.get_lock("gone").lock().await.unwrap();
    assert!(lock.try_lock(ms(100), LONG).await.unwrap().is_none());
    held.unlock().await.unwrap();
    // Somebody tries, and the result is not known yet.
    proxy.hold(Direction::Requests);
    let mut first = Box::pin(lock.lock());
    assert!(poll_once(&mut first).await.is_none());
    let mut second = Box::pin(lock.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut second).await.is_none());
    drop(first);
    proxy.heal();
    let guard = soon(second).await.unwrap().expect("the lock is free");
    guard.unlock().await.unwrap();
}

/// A waiter was answered busy, with the time that the lease has left.
#[tokio::test]
async fn busy_is_not_said_for_longer_than_the_holders_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    let (clock, ahead) = Clock::driven();
    let builder = Client::builder(&proxy.url()).clock(clock);
    let client = builder.connect().await.unwrap();
    let lock = client.get_lock("over");
    let held = holder.get_lock("over").lock_with_lease(LONG).await.unwrap();
    let mut waiting = Box::pin(lock.lock());
    assert!(poll_once(&mut waiting).await.is_none());
    subscribed(&server, "over").await;
    assert!(try_once(&client, "over").await.unwrap().is_none());
    proxy.hold(Direction::Requests);
    ahead.advance(LONG * 2);
    let mut once = Box::pin(lock.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut once).await.is_none(), "it may be free");
    drop(waiting);
    held.unlock().await.unwrap();
    proxy.heal();
    let guard = soon(once).await.unwrap().expect("the lock is free");
    guard.unlock().await.unwrap();
}

/// The answer says how long the holder's lease lasts, and comes when that time is over.
#[tokio::test]
async fn a_busy_that_is_answered_after_the_holders_lease_is_no_answer() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    let (clock, ahead) = Clock::driven();
    let builder = Client::builder(&proxy.url()).clock(clock);
    let client = builder.command_timeout(LONG * 2).connect().await.unwrap();
    let lock = client.get_lock("late");
    // From here on the server knows the script.
    lock.lock().await.unwrap().unlock().await.unwrap();
    let held = holder
        .get_lock("late")
        .lock_with_lease(LONG / 2)
        .await
        .unwrap();
    proxy.hold(Direction::Replies);
    let before = server.calls_of("evalsha").await;
    let mut waiting = Box::pin(lock.lock());
    assert!(poll_once(&mut waiting).await.is_none());
    eventually("it is tried for", LONG, async || {
        server.calls_of("evalsha").await > before
    })
    .await;
    ahead.advance(LONG);
    let mut once = Box::pin(lock.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut once).await.is_none());
    drop(waiting);
    held.unlock().await.unwrap();
    proxy.heal();
    let guard = soon(once).await.unwrap().expect("the lock is free");
    guard.unlock().await.unwrap();
}

/// The hold ahead is lost in an outage, and nobody answers its last release: waiters do not wait for that.
#[tokio::test]
async fn i6_a_waiter_behind_a_hold_that_is_lost_in_an_outage_gets_an_error() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let builder = Client::builder(&server.url()).clock(clock);
    let builder = builder.command_timeout(COMMAND).unavailable_after(ms(600));
    let client = builder.connect().await.unwrap();
    let lock = client.get_lock("lost");
    let held = lock.lock_with_lease(HOUR).await.unwrap();
    let mut waiting = Box::pin(lock.lock());
    assert!(poll_once(&mut waiting).await.is_none());
    subscribed(&server, "lost").await;
    server.freeze();
    ahead.advance(HOUR * 2);
    assert_eq!(soon(held.lost()).await, LostReason::Expired);
    let answer = soon(waiting).await;
    assert!(
        matches!(answer, Err(Error::Unavailable { .. })),
        "{answer:?}"
    );
    server.resume();
}

/// At the end of a wait the caller still waits up to a command time-out for the command under way.
#[tokio::test]
async fn a_short_wait_awaits_an_attempt_under_way_and_then_knows() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).command_timeout(LONG);
    let client = client.connect().await.unwrap();
    let slow = proxy
        .inject(Fault::DelayReply(ms(300)))
        .on(Match::script(ACQUIRE).and(Match::key("short")))
        .arm();
    let lock = client.get_lock("short");
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    eventually("it is under way", LONG, async || slow.fired() == 1).await;
    let tried = soon(lock.try_lock(ms(20), Lease::Watchdog)).await;
    assert!(tried.unwrap().is_none(), "it is held by now");
    soon(first).await.unwrap().unwrap().unlock().await.unwrap();
}

/// As after a suspend, before the keeper had a look.
#[tokio::test]
async fn busy_is_not_said_because_of_a_hold_of_ours_that_is_over() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let builder = Client::builder(&server.url()).clock(clock);
    let client = builder.command_timeout(LONG / 3).connect().await.unwrap();
    let held = client
        .get_lock("asleep")
        .lock_with_lease(LONG)
        .await
        .unwrap();
    server.cmd(&["DEL", "asleep"]).await;
    ahead.advance(LONG * 2);
    let got = soon(try_once(&client, "asleep")).await.unwrap();
    got.expect("nobody has it").unlock().await.unwrap();
    assert!(held.check().is_err());
}

/// The name's job is woken to ask: its own timer may have stood still.
#[tokio::test]
async fn one_try_behind_the_holders_lease_is_answered_at_once() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let (clock, ahead) = Clock::driven();
    let builder = without_polls(&server).clock(clock);
    let client = builder.command_timeout(LONG / 3).connect().await.unwrap();
    let lock = client.get_lock("asks");
    let held = holder
        .get_lock("asks")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
    let waiting = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "asks").await;
    assert!(try_once(&client, "asks").await.unwrap().is_none());
    ahead.advance(LONG * 8);
    let once = soon(try_once(&client, "asks")).await;
    assert!(once.unwrap().is_none(), "Redis says that it is held");
    waiting.abort();
    held.unlock().await.unwrap();
}

/// Its own time-out would end it, too, but later than this test waits.
#[tokio::test]
async fn one_try_behind_one_that_is_answered_busy_ends_as_soon_as_that_one() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let held = connect(&server).await.get_lock("way").lock().await.unwrap();
    let builder = Client::builder(&proxy.url()).command_timeout(LONG * 2);
    let client = builder.connect().await.unwrap();
    assert!(try_once(&client, "way").await.unwrap().is_none());
    let lock = client.get_lock("way");
    proxy.hold(Direction::Requests);
    let mut first = Box::pin(lock.lock());
    assert!(poll_once(&mut first).await.is_none());
    let mut once = Box::pin(lock.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut once).await.is_none());
    proxy.heal();
    assert!(soon(once).await.unwrap().is_none());
    drop(first);
    held.unlock().await.unwrap();
    clean(&server).await;
}

/// The holder's lease counts from the send of the question, however late the answer is. Nothing else leads to a try here.
#[tokio::test]
async fn a_lease_that_an_answer_reports_has_run_since_the_question() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (clock, ahead) = Clock::driven();
    let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = Client::builder(&proxy.url()).backoff(minute).clock(clock);
    let client = builder.command_timeout(LONG).connect().await.unwrap();
    ahead.stop();
    server.cmd(&["HSET", "x", "dead:1", "1"]).await;
    let tries = proxy.count(Match::script(ACQUIRE));
    let lock = client.get_lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
    subscribed(&server, "x").await;
    eventually("it tried behind that", LONG, async || tries.seen() >= 2).await;
    server.cmd(&["PEXPIRE", "x", "1500"]).await;
    let late = proxy.inject(Fault::DelayReply(ms(700)));
    let late = late.on(Match::script(ACQUIRE)).arm();
    server.cmd(&["PUBLISH", &channel("x"), "0"]).await;
    eventually("it asks", LONG, async || late.fired() > 0).await;
    ahead.advance(ms(1_400));
    gone(&server, "x").await;
    // Also if the server had the question late, so that one more followed; by the answer's time it would not be enough.
    ahead.advance(ms(1_000));
    soon(waiting).await.unwrap().unwrap();
    clean(&server).await;
}
