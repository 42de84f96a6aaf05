//! Servers that are far away: a renewal may take a good part of a lease, on a connection that is well.

use std::time::Duration;

use tokio::time::Instant;

use watchlock::{Client, Error, Handle, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Proxy};

use super::{BEFORE_THE_LEASE, HALF_A_MINUTE, VERIFY, calls, proxied};
use crate::common::{SHORT, clean, ms, soon};

/// So long that a machine that stands still for a moment loses no hold.
const LEASE: Duration = Duration::from_secs(2);
/// How many holds share a pipeline.
const HOLDS: usize = 20;
const LEASES: u32 = 20;

/// One hold of a client of its own, and many of another one.
async fn held(proxy: &Proxy) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for holds in [1, HOLDS] {
        let client = Client::builder(&proxy.url()).watchdog_lease(LEASE);
        // To connect takes several round trips.
        let client = client.connect_timeout(HALF_A_MINUTE).connect().await;
        let client = client.unwrap();
        let locks = (0..holds).map(|number| client.get_lock(&format!("far:{holds}:{number}")));
        let locks: Vec<_> = locks.collect();
        let got = futures_util::future::join_all(locks.iter().map(Handle::lock)).await;
        guards.extend(got.into_iter().map(Result::unwrap));
    }
    guards
}

/// Returns how often the one hold is renewed while it lives for [`LEASES`], over `round_trip`.
async fn renewals_over(round_trip: Duration) -> u64 {
    let (server, proxy) = proxied().await;
    proxy.latency(round_trip);
    let guards = held(&proxy).await;
    let renewals = proxy.count(calls(VERIFY, "far:1:0"));
    let accepted = proxy.accepted();
    let end = Instant::now() + LEASE * LEASES;
    eventually("twenty leases pass", HALF_A_MINUTE * 2, async || {
        for guard in &guards {
            guard.check().unwrap();
        }
        Instant::now() >= end
    })
    .await;
    assert_eq!(proxy.accepted(), accepted, "no connection is replaced");
    proxy.latency(Duration::ZERO);
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    clean(&server).await;
    renewals.seen()
}

#[tokio::test]
async fn a_renewal_that_takes_a_quarter_of_the_lease_costs_no_hold_and_no_connection() {
    let renewals = renewals_over(LEASE / 4).await;
    let periods = u64::from(LEASES) * 3;
    // The first try is answered in time. A period is up to two tenths shorter, so that renewals travel together.
    assert!(renewals <= periods * 10 / 8 + 1, "{renewals} renewals");
}

/// The next try goes out before the first one is answered, and both count.
#[tokio::test]
async fn a_renewal_that_is_answered_late_counts() {
    let renewals = renewals_over(LEASE * 9 / 20).await;
    let most = u64::from(LEASES) * 4 + 2;
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
