//! F3, F4 and F15: a command may have run, or may run later, and nobody hears of it.

use std::time::Duration;

use watchlock::{Backoff, Client, Clock, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};

use super::{
    ACQUIRE, BEFORE_THE_LEASE, HALF_A_MINUTE, REENTER, RELEASE, TIMEOUT, VERIFY, calls, hasty,
    minute, proxied,
};
use crate::common::{
    LONG, SHORT, clean, connect, count, gone, ms, poll_once, soon, subscribed, try_once,
};

/// The client tries a second connection within a lease, however long a command may take.
#[tokio::test]
async fn f3_i8_a_connection_that_fell_silent_costs_no_hold() {
    let (server, proxy) = proxied().await;
    let builder = Client::builder(&proxy.url()).watchdog_lease(SHORT * 4);
    let client = builder.command_timeout(HALF_A_MINUTE).connect().await;
    let client = client.unwrap();
    let guard = client.get_lock("silent").lock().await.unwrap();
    let renewals = proxy.count(calls(VERIFY, "silent"));
    let silence = Fault::SwallowRequest;
    proxy.inject(silence).on(calls(VERIFY, "silent")).arm();
    eventually("renewed after it", BEFORE_THE_LEASE, async || {
        renewals.seen() >= 4
    })
    .await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    clean(&server).await;
}

/// The lease of a late grant counts from when it was asked for.
#[tokio::test]
async fn i8_validity_counts_from_the_send_however_late_the_reply() {
    let (server, proxy) = proxied().await;
    let lease = SHORT * 5;
    let builder = Client::builder(&proxy.url()).watchdog_lease(lease);
    let client = builder.connect().await.unwrap();
    let delay = ms(600);
    let late = || Fault::DelayReply(delay);
    let most = lease.checked_sub(delay).unwrap();

    proxy.inject(late()).on(calls(ACQUIRE, "late")).arm();
    let guard = client.get_lock("late").lock().await.unwrap();
    assert!(guard.valid_for() < most, "acquire");
    let mut before = guard.valid_for();
    proxy.inject(late()).on(calls(VERIFY, "late")).arm();
    eventually("it is renewed", BEFORE_THE_LEASE, async || {
        let now = guard.valid_for();
        std::mem::replace(&mut before, now) < now
    })
    .await;
    assert!(before < most, "renewal");

    let fixed = client
        .get_lock("fixed")
        .lock_with_lease(SHORT)
        .await
        .unwrap();
    proxy.inject(late()).on(calls(REENTER, "fixed")).arm();
    fixed.extend(lease).await.unwrap();
    assert!(fixed.valid_for() < most, "extension");
    drop((guard, fixed));
    clean(&server).await;
}

/// A second connection granted and released the same attempt before the first command ran.
#[tokio::test]
async fn f4_i7_an_acquire_that_runs_after_the_hold_leaves_no_ghost() {
    let (server, proxy) = proxied().await;
    for (name, by_drop, backoff) in [
        ("unlocked", false, Backoff::new()),
        ("dropped", true, Backoff::new()),
        ("without polls", true, minute()),
    ] {
        let client = hasty(&proxy.url()).backoff(backoff);
        let client = client.connect().await.unwrap();
        let late = Fault::DelayRequest(TIMEOUT * 5);
        proxy.inject(late).on(calls(ACQUIRE, name)).arm();
        let guard = soon(client.get_lock(name).lock_with_lease(HALF_A_MINUTE)).await;
        let guard = guard.unwrap();
        server.reset_calls().await;
        if by_drop {
            drop(guard);
        } else {
            guard.unlock().await.unwrap();
        }
        eventually("the old acquire ran", BEFORE_THE_LEASE, async || {
            server.calls_of("hset").await == 1
        })
        .await;
        let end = BEFORE_THE_LEASE;
        eventually("no ghost", end, async || !server.exists(name).await).await;
    }
}

/// The caller waited on after an unanswered try, and went away before that ran.
#[tokio::test]
async fn f4_i9_a_waiter_that_went_away_leaves_no_ghost() {
    let (server, proxy) = proxied().await;
    let stranger = connect(&server).await;
    let held = stranger
        .get_lock("left")
        .lock_with_lease(HALF_A_MINUTE)
        .await;
    let client = hasty(&proxy.url()).connect().await.unwrap();
    let late = Fault::DelayRequest(TIMEOUT * 12);
    proxy.inject(late).on(calls(ACQUIRE, "left")).arm();
    let lock = client.get_lock("left");
    let waiter = tokio::spawn(async move { lock.lock_with_lease(HALF_A_MINUTE).await });
    subscribed(&server, "left").await;
    waiter.abort();
    server.reset_calls().await;
    held.unwrap().unlock().await.unwrap();
    eventually("the old acquire ran", BEFORE_THE_LEASE, async || {
        server.calls_of("hset").await == 1
    })
    .await;
    let end = BEFORE_THE_LEASE;
    eventually("no ghost", end, async || !server.exists("left").await).await;
}

#[tokio::test]
async fn f4_a_stalled_server_runs_an_abandoned_command_and_it_is_undone() {
    let (server, proxy) = proxied().await;
    let client = hasty(&proxy.url()).connect().await.unwrap();
    let lock = client.get_lock("stalled");
    server.freeze();
    let given_up = soon(lock.try_lock(Duration::ZERO, HALF_A_MINUTE)).await;
    assert!(matches!(given_up, Err(Error::Unavailable { .. })));
    let waited = soon(lock.try_lock(TIMEOUT, HALF_A_MINUTE)).await;
    assert!(matches!(waited, Err(Error::Unavailable { .. })));
    server.resume();
    let other = connect(&server).await;
    let taken = other
        .get_lock("stalled")
        .try_lock(BEFORE_THE_LEASE, Lease::Watchdog)
        .await;
    taken
        .unwrap()
        .expect("free long before the lease")
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}

/// A client for which no command is ever overdue: it cleans up nothing because of the time that a command took.
async fn unhurried(proxy: &Proxy) -> Client {
    let builder = Client::builder(&proxy.url()).command_timeout(HALF_A_MINUTE * 2);
    builder.connect().await.unwrap()
}

/// The same with others in line: they get in right after.
#[tokio::test]
async fn f15_i9_a_dropped_caller_leaves_the_lock_to_those_behind_it() {
    let (server, proxy) = proxied().await;
    let client = unhurried(&proxy).await;
    let late = Fault::DelayReply(ms(500));
    proxy.inject(late).on(calls(ACQUIRE, "line")).arm();
    let lock = client.get_lock("line");
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock_with_lease(HALF_A_MINUTE).await }
    });
    eventually("it was granted", BEFORE_THE_LEASE, async || {
        server.exists("line").await
    })
    .await;
    let second = tokio::spawn(async move { lock.lock().await });
    first.abort();
    let guard = soon(second).await.unwrap().unwrap();
    assert_eq!(count(&server, "line").await, 1);
    guard.unlock().await.unwrap();
    gone(&server, "line").await;
}

/// The client gives up an open but deaf connection after a command time-out.
#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let (server, proxy) = proxied().await;
    let client = hasty(&proxy.url()).connect().await.unwrap();
    let accepted = proxy.accepted();
    proxy
        .inject(Fault::SwallowRequest)
        .on(calls(ACQUIRE, "a"))
        .arm();
    let silent = try_once(&client, "a").await;
    assert!(matches!(silent, Err(Error::Unavailable { .. })));
    // The next commands of the same runtime go over another connection.
    let free = async || matches!(try_once(&client, "b").await, Ok(Some(_)));
    assert!(free().await);
    assert!(proxy.accepted() > accepted);
    drop(client);
    clean(&server).await;
}

/// Nothing comes any more behind the reply to an earlier command. No other command asks.
#[tokio::test]
async fn a_connection_that_falls_silent_behind_a_late_reply_is_replaced() {
    let (server, proxy) = proxied().await;
    let client = hasty(&proxy.url()).connect().await.unwrap();
    let lock = client.get_lock("a");
    let guard = lock.lock_with_lease(HALF_A_MINUTE * 4).await.unwrap();
    eventually("the keeper is connected", LONG, async || {
        proxy.commands().contains_key("PING")
    })
    .await;
    let accepted = proxy.accepted();
    let asks = Match::arg("b");
    let late = Fault::DelayReply(TIMEOUT / 2);
    let late = proxy.inject(late).on(asks).arm();
    let lost = proxy
        .inject(Fault::SwallowReply)
        .on(calls(VERIFY, "a"))
        .arm();
    let other = client.get_lock("b");
    let asking = tokio::spawn(async move { other.is_locked().await });
    eventually("it is asked", LONG, async || late.fired() == 1).await;
    let silent = guard.verify().await;
    assert!(matches!(silent, Err(Error::Unavailable { .. })));
    assert_eq!(lost.fired(), 1);
    assert!(!asking.await.unwrap().unwrap());
    eventually("the silent connection is replaced", LONG, async || {
        proxy.accepted() > accepted
    })
    .await;
    guard.unlock().await.unwrap();
    drop((client, lock));
    clean(&server).await;
}

/// For as long as the old acquire may do harm, and no longer. There may be thousands of such releases at a time, so each
/// has few repeats.
#[tokio::test]
async fn f4_the_release_behind_an_unanswered_acquire_is_repeated_for_its_lease() {
    let (server, proxy) = proxied().await;
    let quick = Backoff::new().cap(ms(100));
    let client = hasty(&proxy.url()).backoff(quick).connect().await.unwrap();
    proxy
        .inject(Fault::SwallowReply)
        .on(calls(ACQUIRE, "twice"))
        .arm();
    let releases = proxy.count(calls(RELEASE, "twice"));
    let lease = SHORT * 4;
    let guard = soon(client.get_lock("twice").lock_with_lease(lease))
        .await
        .unwrap();
    drop(guard);
    eventually("it is repeated", LONG, async || releases.seen() >= 3).await;
    eventually("and then no more", LONG, async || {
        let before = releases.seen();
        // Silence is what is looked at. The pauses between repeats grow to half of the lease.
        tokio::time::sleep(lease * 5 / 8).await;
        releases.seen() == before
    })
    .await;
    assert!(releases.seen() <= 15, "{}", releases.seen());
    clean(&server).await;
}

/// Also with a command time-out that is too short for one silence to mean anything.
#[tokio::test]
async fn f3_a_silent_connection_is_replaced_however_short_a_command_may_take() {
    let (_server, proxy) = proxied().await;
    let (clock, ahead) = Clock::driven();
    ahead.stop();
    let builder = Client::builder(&proxy.url()).clock(clock);
    let builder = builder.watchdog_lease(SHORT * 2).command_timeout(ms(50));
    let client = builder.connect().await.unwrap();
    let guard = client.get_lock("silent").lock().await.unwrap();
    eventually("the keeper is connected", BEFORE_THE_LEASE, async || {
        proxy.commands().contains_key("PING")
    })
    .await;
    let before = proxy.accepted();
    proxy.black_hole(Direction::Replies);
    // A renewal is due, and a connection that is quiet is not asked yet.
    ahead.advance(ms(900));
    eventually("it is replaced", BEFORE_THE_LEASE, async || {
        proxy.accepted() > before
    })
    .await;
    proxy.heal();
    drop(guard);
    client.shutdown(Duration::ZERO).await;
}

/// Its answer comes later than the keeper looks for it.
#[tokio::test]
async fn f4_an_acquire_that_was_dropped_on_a_slow_link_is_released_once() {
    let (server, proxy) = proxied().await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    let warm = client.get_lock("warm").lock().await.unwrap();
    warm.unlock().await.unwrap();
    let aim = proxy
        .inject(Fault::DelayReply(ms(500)))
        .on(calls(ACQUIRE, "slow"))
        .arm();
    let releases = proxy.count(calls(RELEASE, "slow"));
    let lock = client.get_lock("slow");
    let mut dropped = Box::pin(lock.lock());
    assert!(poll_once(&mut dropped).await.is_none());
    eventually("it is under way", LONG, async || aim.fired() == 1).await;
    drop(dropped);
    eventually("it is released", LONG, async || releases.seen() > 0).await;
    tokio::time::sleep(ms(1_000)).await; // silence is what is looked at
    assert_eq!(releases.seen(), 1);
    clean(&server).await;
}

/// What it got was not collected and was given back, and the next try finds no connection.
#[tokio::test]
async fn a_call_that_started_again_has_sent_something() {
    let (server, proxy) = proxied().await;
    let client = hasty(&proxy.url()).connect().await.unwrap();
    let lock = client.get_lock("again");
    let mut taking = Box::pin(lock.try_lock(ms(3_000), HALF_A_MINUTE));
    assert!(poll_once(&mut taking).await.is_none());
    eventually("it was granted", LONG, async || {
        server.calls_of("hset").await > 0
    })
    .await;
    gone(&server, "again").await;
    proxy.refuse();
    proxy.reset_all();
    eventually("nothing is connected", LONG, async || {
        !client.stats().connected
    })
    .await;
    let error = soon(taking).await.expect_err("there is no server");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.was_sent());
    proxy.accept();
    clean(&server).await;
}

/// Nobody knows whether it was granted.
#[tokio::test]
async fn a_call_that_the_end_of_its_client_cuts_off_may_have_been_sent() {
    let (server, proxy) = proxied().await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    let lock = client.get_lock("cut");
    proxy.hold(Direction::Replies);
    let mut taking = Box::pin(lock.lock());
    assert!(poll_once(&mut taking).await.is_none());
    eventually("it was granted", LONG, async || {
        server.calls_of("hset").await > 0
    })
    .await;
    let ending = tokio::spawn(async move { client.shutdown(Duration::ZERO).await });
    let error = soon(taking).await.expect_err("the client is closed");
    assert!(matches!(error, Error::Closed), "{error:?}");
    assert!(error.was_sent());
    proxy.heal();
    soon(ending).await.unwrap();
    clean(&server).await;
}

/// What a call came to when its command had no answer, and no connection could be made after that.
async fn after_a_lost_reply<T: std::fmt::Debug>(
    proxy: &Proxy,
    aim: Match,
    call: impl Future<Output = Result<T, Error>>,
) -> Error {
    let lost = proxy.inject(Fault::SwallowReply).on(aim).arm();
    let mut call = Box::pin(call);
    assert!(poll_once(&mut call).await.is_none());
    eventually("it was sent", LONG, async || lost.fired() == 1).await;
    proxy.refuse();
    proxy.reset_all();
    let error = soon(call).await.expect_err("there is no server");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    proxy.accept();
    error
}

/// The last try of each was certainly not sent, the first one was.
#[tokio::test]
async fn a_call_that_was_repeated_has_sent_something() {
    let (server, proxy) = proxied().await;
    let client = hasty(&proxy.url()).unavailable_after(TIMEOUT * 4);
    let client = client.connect().await.unwrap();
    let lock = client.get_lock("twice");
    let guard = lock.lock_with_lease(HALF_A_MINUTE).await.unwrap();
    let entering = guard.reenter(HALF_A_MINUTE);
    let error = after_a_lost_reply(&proxy, calls(REENTER, "twice"), entering).await;
    assert!(error.was_sent(), "to enter again");
    eventually("it is back", LONG, async || guard.verify().await.is_ok()).await;
    let verifying = guard.verify();
    let error = after_a_lost_reply(&proxy, calls(VERIFY, "twice"), verifying).await;
    assert!(error.was_sent(), "to verify");
    soon(guard.unlock()).await.unwrap();
    clean(&server).await;
}

/// The caller's own release was not sent.
#[tokio::test]
async fn an_unlock_that_the_background_repeated_has_sent_something() {
    let (server, proxy) = proxied().await;
    let client = Client::builder(&proxy.url()).command_timeout(ms(5_000));
    let client = client.connect().await.unwrap();
    let lock = client.get_lock("back");
    let guard = lock.lock_with_lease(HALF_A_MINUTE).await.unwrap();
    proxy.refuse();
    proxy.reset_all();
    eventually("nothing is connected", LONG, async || {
        !client.stats().connected
    })
    .await;
    let mut unlocking = Box::pin(guard.unlock());
    assert!(poll_once(&mut unlocking).await.is_none());
    let lost = proxy.inject(Fault::SwallowReply);
    let lost = lost.on(calls(RELEASE, "back")).always().arm();
    let unlocking = tokio::spawn(unlocking);
    eventually("the caller's release failed", LONG, async || {
        client.stats().unreleased > 0
    })
    .await;
    proxy.accept();
    eventually("it was sent", LONG, async || lost.fired() > 0).await;
    let error = soon(unlocking).await.unwrap().expect_err("nobody answers");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.was_sent());
    lost.cancel();
    clean(&server).await;
}
