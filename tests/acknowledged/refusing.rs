//! Grants that do not count, and how an acquire ends then.

use std::time::Duration;

use watchlock::{Client, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};

use crate::common::{LONG, ms, script, soon, try_once};
use crate::{Pair, WITHIN, few, of};

/// For so long tries may fail.
const UNAVAILABLE: Duration = Duration::from_secs(3);

/// Who waits without a limit gets the error in the end. The next try must not find the permit that the last one got.
#[tokio::test]
async fn without_replicas_who_waits_for_ever_is_refused_in_the_end() {
    let pair = Pair::start().await;
    let client = pair.builder().unavailable_after(UNAVAILABLE);
    let client = client.connect().await.unwrap();
    pair.replica.freeze();
    let lock = client.get_lock("lock");
    of(&soon(lock.lock()).await.unwrap_err());
    let fair = client.get_fair_lock("fair");
    of(&soon(fair.lock()).await.unwrap_err());
    for permits in [1, 5] {
        let semaphore = client.get_semaphore(&format!("of {permits}"));
        let semaphore = semaphore.with_permits(permits);
        of(&soon(semaphore.acquire()).await.unwrap_err());
    }
    pair.replica.resume();
}

#[tokio::test]
async fn a_permit_that_is_being_given_back_is_nobody_elses() {
    let pair = Pair::start().await;
    let proxy = Proxy::to(&pair.master);
    let client = Client::builder(&proxy.url())
        .acknowledged_by(1, WITHIN)
        .command_timeout(4 * WITHIN)
        .connect()
        .await
        .unwrap();
    pair.replica.freeze();
    let release = Match::script(&script("permits/release.lua"));
    let slow = proxy.inject(Fault::DelayRequest(ms(1000))).on(release);
    let slow = slow.always().arm();
    let semaphore = client.get_semaphore("x").with_permits(1);
    let got = semaphore.try_acquire(ms(1000), Lease::Watchdog).await;
    of(&got.map(|permit| permit.is_some()).unwrap_err());
    assert!(slow.fired() > 0);
    pair.replica.resume();
}

/// When the wait ends, the last try has no answer yet. The error is the refusal of the try before it.
#[tokio::test]
async fn a_last_try_without_an_answer_hides_no_refusal() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    pair.replica.freeze();
    let before = pair.master.calls_of("wait").await;
    let lock = client.get_lock("x");
    let trying = tokio::spawn(async move { lock.try_lock(4 * WITHIN, Lease::Watchdog).await });
    eventually("it tries again", LONG, async || {
        pair.master.calls_of("wait").await >= before + 2
    })
    .await;
    pair.master.freeze();
    let refused = soon(trying).await.unwrap();
    pair.master.resume();
    few(refused);
    pair.replica.resume();
}

/// Nothing is retried that would fail again.
#[tokio::test]
async fn who_may_not_wait_for_replicas_is_denied_at_once() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let warm = try_once(&client, "warm").await.unwrap().unwrap();
    warm.unlock().await.unwrap();
    let denied = ["ACL", "SETUSER", "default", "-wait"];
    pair.master.cmd(&denied).await;
    let before = pair.master.calls_of("evalsha").await;
    for name in ["x", "y"] {
        let lock = client.get_lock(name);
        let refused = soon(lock.lock()).await.unwrap_err();
        assert!(matches!(refused, Error::Denied { .. }), "{refused:?}");
        assert!(!pair.master.exists(name).await, "it is given back");
    }
    let scripts = pair.master.calls_of("evalsha").await - before;
    assert!(scripts <= 8, "{scripts} scripts");
}

/// Redis ends a `WAIT` with an error when its server becomes a replica.
#[tokio::test]
async fn a_server_that_becomes_a_replica_meanwhile_refuses_for_now() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let warm = try_once(&client, "warm").await.unwrap().unwrap();
    warm.unlock().await.unwrap();
    pair.replica.freeze();
    let trying = tokio::spawn({
        let client = client.clone();
        async move { try_once(&client, "x").await.map(|guard| guard.is_some()) }
    });
    eventually("it waits for replicas", LONG, async || {
        let blocked = pair.master.info("clients", "blocked_clients").await;
        blocked.as_deref() == Some("1")
    })
    .await;
    let port = pair.replica.port().to_string();
    pair.master.cmd(&["REPLICAOF", "127.0.0.1", &port]).await;
    let refused = trying.await.unwrap().unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
    pair.replica.resume();
}
