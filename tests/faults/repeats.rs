//! What the client sends again after a failure, and what it knows then: releases, hold counts, tries.

use futures_util::future::join_all;
use watchlock::{Client, Error, Lease, LockGuard, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use super::{ACQUIRE, BEFORE_THE_LEASE, HALF_A_MINUTE, RELEASE, TIMEOUT, VERIFY};
use super::{calls, hasty, minute, proxied};
use crate::common::{LONG, SHORT, clean, count, gone, ms, poll_once, soon, subscribed};

/// A server refuses before the first write: what it answers so has certainly not run.
const REFUSALS: [(&str, &str); 6] = [
    ("loading", "LOADING Redis is loading the dataset in memory"),
    ("busy", "BUSY Redis is busy running a script"),
    ("misconf", "MISCONF Errors writing to the AOF file"),
    (
        "noreplicas",
        "NOREPLICAS Not enough good replicas to write.",
    ),
    (
        "readonly",
        "READONLY You can't write against a read only replica.",
    ),
    (
        "tryagain",
        "TRYAGAIN Multiple keys request during rehashing of slot",
    ),
];

fn answer(text: &str) -> Fault {
    Fault::Answer(text.to_owned())
}

/// The repeat finds nothing. Neither it nor the first release ended the hold: it was lost before.
#[tokio::test]
async fn i2_a_release_that_was_certainly_not_executed_makes_no_loss_good() {
    let (server, proxy) = proxied().await;
    let client = watchlock::Client::connect(&proxy.url()).await.unwrap();
    for (name, text) in REFUSALS {
        let guard = client
            .get_lock(name)
            .lock_with_lease(HALF_A_MINUTE)
            .await
            .unwrap();
        server.cmd(&["DEL", name]).await;
        let aim = proxy.inject(answer(text)).on(calls(RELEASE, name)).arm();
        let unlocked = soon(guard.unlock()).await;
        assert_eq!(aim.fired(), 1, "{name}");
        let lost = matches!(
            unlocked,
            Err(Error::Lost {
                reason: LostReason::Missing,
                ..
            })
        );
        assert!(lost, "{name}: {unlocked:?}");
    }
    clean(&server).await;
}

/// The key stays until its lease ends, which may be long: those who wait learn why they wait.
#[tokio::test]
async fn i6_a_waiter_behind_a_release_that_cannot_be_made_gets_an_error() {
    let (server, proxy) = proxied().await;
    let loading = answer(REFUSALS[0].1);
    let noreplicas = answer(REFUSALS[3].1);
    for (name, fault) in [
        ("loading", loading),
        ("noreplicas", noreplicas),
        ("silent", Fault::SwallowRequest),
    ] {
        let builder = hasty(&proxy.url()).unavailable_after(TIMEOUT * 2);
        let client = builder.connect().await.unwrap();
        let lock = client.get_lock(name);
        let guard = lock.lock_with_lease(HALF_A_MINUTE * 20).await.unwrap();
        let waiter = tokio::spawn(async move { lock.lock().await });
        subscribed(&server, name).await;
        let aim = proxy.inject(fault).on(calls(RELEASE, name)).always().arm();
        drop(guard);
        let waited = soon(waiter).await.unwrap();
        let error = waited.expect_err("nobody could give the lock back");
        let typed = matches!(error, Error::Unavailable { .. } | Error::Refused { .. });
        assert!(typed && error.is_transient(), "{name}: {error:?}");
        aim.cancel();
        gone(&server, name).await;
    }
    clean(&server).await;
}

#[tokio::test]
async fn i2_a_hold_count_that_could_not_be_written_is_written_later() {
    let (server, proxy) = proxied().await;
    for (name, fault) in [
        ("swallowed", Fault::SwallowRequest),
        ("cut", Fault::ResetBefore),
        (
            "refused",
            answer("OOM command not allowed when used memory > 'maxmemory'."),
        ),
    ] {
        let client = hasty(&proxy.url()).backoff(minute());
        let client = client.connect().await.unwrap();
        let outer = client.get_lock(name).lock().await.unwrap();
        let fail = || proxy.inject(fault.clone()).on(calls(RELEASE, name)).arm();
        let right = async |what: &str| {
            eventually(what, BEFORE_THE_LEASE, async || {
                count(&server, name).await == 1
            })
            .await;
        };
        let inner = outer.reenter(Lease::Watchdog).await.unwrap();
        assert_eq!(count(&server, name).await, 2, "{name}");
        let aim = fail();
        soon(inner.unlock()).await.unwrap();
        assert_eq!(aim.fired(), 1, "{name}");
        right("the count of one that was unlocked is written").await;

        let inner = outer.reenter(Lease::Watchdog).await.unwrap();
        let aim = fail();
        drop(inner);
        eventually("it failed", BEFORE_THE_LEASE, async || aim.fired() == 1).await;
        right("the count of one that was dropped is written").await;
        outer.unlock().await.unwrap();
    }
    clean(&server).await;
}

/// The holder learns of it before the next renewal.
#[tokio::test]
async fn i8_a_hold_count_that_finds_no_hold_reports_the_loss() {
    let (server, proxy) = proxied().await;
    // The next renewal is later than the test waits.
    let builder = watchlock::Client::builder(&proxy.url()).watchdog_lease(LONG * 10);
    let client = builder.connect().await.unwrap();
    let outer = client.get_lock("gone").lock().await.unwrap();
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    let refused = answer("OOM command not allowed when used memory > 'maxmemory'.");
    let aim = proxy.inject(refused).on(calls(RELEASE, "gone"));
    let aim = aim.arm();
    server.cmd(&["DEL", "gone"]).await;
    drop(inner);
    assert_eq!(soon(outer.lost()).await, LostReason::Missing);
    assert_eq!(aim.fired(), 1);
    clean(&server).await;
}

/// Two writes travel over two connections, and the earlier one runs last.
#[tokio::test]
async fn i2_hold_counts_that_were_written_in_the_wrong_order_are_put_right() {
    let (server, proxy) = proxied().await;
    let client = watchlock::Client::connect(&proxy.url()).await.unwrap();
    let outer = client.get_lock("order").lock().await.unwrap();
    let first = outer.reenter(Lease::Watchdog).await.unwrap();
    let second = outer.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(count(&server, "order").await, 3);
    let late = Fault::DelayRequest(ms(700));
    let aim = proxy.inject(late).on(calls(RELEASE, "order")).arm();
    let unlocking = tokio::spawn(first.unlock());
    eventually("it is on its way", BEFORE_THE_LEASE, async || {
        aim.fired() == 1
    })
    .await;
    // Over the keeper's connection.
    drop(second);
    soon(unlocking).await.unwrap().unwrap();
    assert_eq!(outer.hold_count(), 1);
    eventually("Redis has the last count", BEFORE_THE_LEASE, async || {
        count(&server, "order").await == 1
    })
    .await;
    outer.unlock().await.unwrap();
    clean(&server).await;
}

/// The caller of an unanswered try is polled after the keeper has sent the next one, under the same hold id: it sees
/// the end of the old command, not of the new try.
#[tokio::test]
async fn i2_the_silence_of_an_old_try_does_not_end_the_next_one() {
    let (server, proxy) = proxied().await;
    let builder = hasty(&proxy.url()).command_timeout(TIMEOUT * 3);
    let client = builder.connect().await.unwrap();
    let lock = client.get_lock("twice");
    // Connected, so that the first poll sends the try.
    lock.lock().await.unwrap().unlock().await.unwrap();
    let tries = proxy.count(calls(ACQUIRE, "twice"));
    let silent = proxy
        .inject(Fault::SwallowRequest)
        .on(calls(ACQUIRE, "twice"))
        .arm();
    let slow = Fault::DelayReply(TIMEOUT * 2);
    let slow = proxy.inject(slow).on(calls(ACQUIRE, "twice")).nth(2).arm();
    let mut acquiring = Box::pin(lock.lock());
    assert!(poll_once(&mut acquiring).await.is_none());
    eventually("the next try is on its way", BEFORE_THE_LEASE, async || {
        slow.fired() == 1
    })
    .await;
    assert_eq!(silent.fired(), 1);
    let guard = soon(acquiring).await.unwrap();
    assert_eq!(
        tries.seen(),
        2,
        "the second try is the one that was answered"
    );
    assert_eq!(count(&server, "twice").await, 1);
    guard.unlock().await.unwrap();
}

/// A script goes by its text once; where that call is refused, those behind it are sent theirs.
#[tokio::test]
async fn a_text_that_is_refused_costs_those_behind_it_no_renewal() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).watchdog_lease(SHORT * 3);
    let client = builder.connect().await.unwrap();
    let lock = async |name| client.get_lock(name).lock().await.unwrap();
    let guards = [lock("first").await, lock("second").await];
    let of = |command: &str, key: &str| calls(VERIFY, key).and(Match::command(command));
    let no = answer("ERR not this one");
    let first = proxy.inject(no).on(of("EVAL", "first")).always().arm();
    let digests = proxy.count(of("EVALSHA", "second"));
    let texts = proxy.count(of("EVAL", "second"));
    eventually("the second is renewed", LONG, async || texts.seen() == 1).await;
    // At first, and again behind the text of the first.
    assert_eq!((digests.seen(), first.fired()), (2, 1));
    drop(guards);
}

/// A new connection takes sixteen at first, and its answers come late, so most are sent when their callers give up.
#[tokio::test]
async fn a_release_that_waited_in_the_client_is_sent_once() {
    let (server, proxy) = proxied().await;
    let client = Client::builder(&proxy.url()).command_timeout(ms(1_000));
    let client = client.connect().await.unwrap();
    let mut guards = Vec::new();
    for number in 0..40 {
        let lock = client.get_lock(format!("{number}"));
        guards.push(lock.lock_with_lease(HALF_A_MINUTE).await.unwrap());
    }
    proxy.refuse();
    proxy.reset_all();
    eventually("nothing is connected", LONG, async || {
        !client.stats().connected
    })
    .await;
    proxy.accept();
    let releases = proxy.inject(Fault::DelayReply(ms(700)));
    let releases = releases.on(Match::script(RELEASE)).always().arm();
    let unlocks = guards.into_iter().map(LockGuard::unlock);
    let unlocks = soon(join_all(unlocks)).await;
    let late = unlocks.iter().filter(|unlocked| unlocked.is_err());
    assert!(late.count() > 0, "all were answered in time");
    client.shutdown(LONG).await;
    assert_eq!(releases.seen(), 40);
    clean(&server).await;
}
