//! Servers that are far away: a renewal may take a good part of a lease, on a connection that is well.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use watchlock::{Client, Clock, Error, Handle, Lease, LockGuard};
use watchlock_support::proxy::{Direction, Fault, Proxy};
use watchlock_support::{StallWatch, eventually};

use super::{BEFORE_THE_LEASE, HALF_A_MINUTE, VERIFY, calls, proxied};
use crate::common::{LONG, SHORT, clean, connect, ms, poll_once, soon, subscribed};

/// So long that a machine that stands still for a moment loses no hold.
const LEASE: Duration = Duration::from_secs(2);
/// How many holds share a pipeline.
const HOLDS: usize = 20;
/// For how long they live.
const LIFE: Duration = Duration::from_secs(40);

/// One hold of a client of its own, and many of another one.
async fn held(proxy: &Proxy, lease: Duration) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for holds in [1, HOLDS] {
        let client = Client::builder(&proxy.url())
            .watchdog_lease(lease)
            .command_timeout(lease / 2);
        // To connect takes several round trips.
        let client = client.connect_timeout(HALF_A_MINUTE).connect().await;
        let client = client.unwrap();
        let locks = (0..holds).map(|number| client.get_lock(&format!("far:{holds}:{number}")));
        let locks: Vec<_> = locks.collect();
        let got = join_all(locks.iter().map(Handle::lock)).await;
        guards.extend(got.into_iter().map(Result::unwrap));
    }
    guards
}

/// Returns how often the one hold is renewed in its [`LIFE`], over `round_trip`. A hold that is lost while the machine
/// stands still says nothing.
async fn renewals_over(round_trip: Duration, lease: Duration) -> u64 {
    for _ in 0..3 {
        let watch = StallWatch::start();
        let lost = match renewals_of_a_life(round_trip, lease).await {
            Ok(renewals) => return renewals,
            Err(lost) => lost,
        };
        let stall = watch.longest();
        assert!(stall > lease / 10, "{lost}, stall {stall:?}");
    }
    panic!("the machine stood still each time");
}

async fn renewals_of_a_life(round_trip: Duration, lease: Duration) -> Result<u64, Error> {
    let (server, proxy) = proxied().await;
    proxy.latency(round_trip);
    let guards = held(&proxy, lease).await;
    let renewals = proxy.count(calls(VERIFY, "far:1:0"));
    let accepted = proxy.accepted();
    let end = Instant::now() + LIFE;
    let mut lives = Ok(());
    eventually("they lived", HALF_A_MINUTE * 2, async || {
        lives = guards.iter().try_for_each(LockGuard::check);
        lives.is_err() || Instant::now() >= end
    })
    .await;
    lives?;
    assert_eq!(proxy.accepted(), accepted, "no connection is replaced");
    proxy.latency(Duration::ZERO);
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    clean(&server).await;
    Ok(renewals.seen())
}

fn leases_of(lease: Duration) -> u64 {
    LIFE.as_secs() / lease.as_secs()
}

#[tokio::test]
async fn a_renewal_that_takes_a_quarter_of_the_lease_costs_no_hold_and_no_connection() {
    let renewals = renewals_over(LEASE / 4, LEASE).await;
    let periods = leases_of(LEASE) * 3;
    // The first try is answered in time. A period is up to two tenths shorter, so that renewals travel together.
    assert!(renewals <= periods * 10 / 8 + 1, "{renewals} renewals");
}

/// The next try goes out before the first one is answered, and both count.
#[tokio::test]
async fn a_renewal_that_is_answered_late_counts() {
    // The first renewal is answered a tenth of the lease before its end.
    let lease = LEASE * 2;
    let renewals = renewals_over(lease * 9 / 20, lease).await;
    let most = leases_of(lease) * 4 + 2;
    assert!(renewals <= most, "{renewals} renewals");
}

/// What is sent after it is not answered.
#[tokio::test]
async fn a_late_answer_prolongs_from_its_own_send() {
    let (server, proxy) = proxied().await;
    let lease = SHORT * 4;
    let builder = Client::builder(&proxy.url()).watchdog_lease(lease);
    let client = builder.command_timeout(HALF_A_MINUTE).connect().await;
    let guard = client.unwrap().get_lock("late").lock().await.unwrap();
    let verify = || calls(VERIFY, "late");
    let delay = lease / 2;
    proxy.inject(Fault::DelayReply(delay)).on(verify()).arm();
    let silent = proxy.inject(Fault::SwallowRequest).on(verify());
    let silent = silent.nth(2).always().arm();
    let mut before = guard.valid_for();
    eventually("it is renewed", BEFORE_THE_LEASE, async || {
        let now = guard.valid_for();
        std::mem::replace(&mut before, now) < now
    })
    .await;
    assert!(silent.fired() > 0, "another try went out before");
    let most = lease.checked_sub(delay).unwrap();
    assert!(before < most, "{before:?}");
    silent.cancel();
    guard.unlock().await.unwrap();
    clean(&server).await;
}

/// A round trip that is usual for the link is no silence, several are one.
#[tokio::test]
async fn f3_a_connection_that_fell_silent_is_found_within_the_lease_from_far_away() {
    let (server, proxy) = proxied().await;
    proxy.latency(ms(100));
    let builder = Client::builder(&proxy.url()).watchdog_lease(SHORT * 4);
    let client = builder.command_timeout(HALF_A_MINUTE).connect().await;
    let guard = client.unwrap().get_lock("silent").lock().await.unwrap();
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

/// Whoever asks for a lease that is over before the grant arrives hears of it, and stops nobody behind it.
#[tokio::test]
async fn a_lease_shorter_than_the_round_trip_is_an_error_in_time() {
    let (server, proxy) = proxied().await;
    let client = Client::builder(&proxy.url()).unavailable_after(LEASE);
    let client = client.connect().await.unwrap();
    proxy.latency(ms(200));
    let lock = client.get_lock("far");
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock_with_lease(ms(150)).await.map(drop) }
    });
    let behind = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
    let waited = soon(waiting).await.unwrap();
    let error = waited.expect_err("it cannot hold it for a moment");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("came after the lease"), "{cause}");
    soon(behind).await.unwrap().unwrap();
    proxy.latency(Duration::ZERO);
    clean(&server).await;
}

/// However long it is willing to wait.
#[tokio::test]
async fn a_long_wait_for_a_lease_shorter_than_the_round_trip_stops_nobody_behind_it() {
    let (server, proxy) = proxied().await;
    let client = Client::builder(&proxy.url()).unavailable_after(LEASE);
    let client = client.connect().await.unwrap();
    proxy.latency(ms(200));
    let lock = client.get_lock("far");
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.try_lock(Duration::MAX, ms(150)).await.map(drop) }
    });
    let behind = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
    soon(behind).await.unwrap().unwrap();
    let waited = soon(waiting).await.unwrap();
    let error = waited.expect_err("it cannot hold it for a moment");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    proxy.latency(Duration::ZERO);
    clean(&server).await;
}

/// The first whose wait ends goes, and the next one is tried for. The answer to that comes when its wait is over, too.
#[tokio::test]
async fn all_whose_wait_for_a_busy_lock_ends_together_are_told_that_it_is_busy() {
    let (server, proxy) = proxied().await;
    let stranger = connect(&server).await.get_lock("far");
    let held = stranger.lock_with_lease(HALF_A_MINUTE).await.unwrap();
    let client = Client::connect(&proxy.url()).await.unwrap();
    proxy.latency(ms(200));
    let lock = client.get_lock("far");
    let waits = (0..5).map(|_| lock.try_lock(ms(1_500), Lease::Watchdog));
    for waited in soon(join_all(waits)).await {
        assert!(matches!(waited, Ok(None)), "{waited:?}");
    }
    held.unlock().await.unwrap();
    proxy.latency(Duration::ZERO);
    clean(&server).await;
}

/// Nobody answered the release yet, which took far less than a command time-out so far.
#[tokio::test]
async fn a_wait_that_ends_while_the_lock_is_given_back_ends_busy() {
    let (server, proxy) = proxied().await;
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&proxy.url()).clock(clock);
    let client = client.command_timeout(LONG).connect().await.unwrap();
    let lock = client.get_lock("back");
    let held = lock.lock_with_lease(LONG * 100).await.unwrap();
    let mut waiting = Box::pin(lock.try_lock(LONG * 2, Lease::Watchdog));
    assert!(poll_once(&mut waiting).await.is_none());
    subscribed(&server, "back").await;
    ahead.advance((LONG * 2).saturating_sub(ms(2_000)));
    proxy.hold(Direction::Requests);
    let mut unlocking = Box::pin(held.unlock());
    assert!(poll_once(&mut unlocking).await.is_none());
    ahead.advance(ms(3_000));
    let waited = soon(waiting).await;
    assert!(matches!(waited, Ok(None)), "{waited:?}");
    proxy.heal();
    soon(unlocking).await.unwrap();
    clean(&server).await;
}

/// It keeps trying for no time at all, and the connection of this runtime is only being made.
#[tokio::test]
async fn a_first_try_that_waits_for_its_connection_is_no_failure() {
    let (server, proxy) = proxied().await;
    let client = Client::builder(&proxy.url()).unavailable_after(Duration::ZERO);
    let client = client.connect().await.unwrap();
    proxy.latency(ms(300));
    let lock = client.get_lock("new");
    let taking = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async { lock.lock().await?.unlock().await })
    });
    soon(taking).await.unwrap().unwrap();
    proxy.latency(Duration::ZERO);
    clean(&server).await;
}
