//! What a server refuses for long: how much a wait puts up with. `tests/kinds` has the error of each refusal.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use watchlock::{Backoff, Client, Clock, Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault};
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use super::{ACQUIRE, BEFORE_THE_LEASE, REENTER, RELEASE, calls, hasty, minute, proxied};
use crate::common::{LONG, SHORT, clean, connect, ms, soon, subscribed, try_once};

fn is_refused(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused {
            transient: true,
            ..
        }
    )
}

/// `lock` tolerates refusals for `unavailable_after`, and no longer.
#[tokio::test]
async fn a_lasting_refusal_ends_the_wait_with_the_servers_error() {
    let server = RedisServer::start();
    let client = watchlock::Client::builder(&server.url()).unavailable_after(SHORT);
    let client = client.connect().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let began = std::time::Instant::now();
    let refused = soon(client.get_lock("full").lock()).await.unwrap_err();
    assert!(is_refused(&refused), "{refused:?}");
    assert!(began.elapsed() >= SHORT);
    let said = std::error::Error::source(&refused).unwrap().to_string();
    assert!(said.contains("OOM") || said.contains("maxmemory"), "{said}");
}

/// However long it waited for a stranger before, `unavailable_after` counts from the beginning of the trouble.
#[tokio::test]
async fn patience_with_a_server_begins_when_the_trouble_does() {
    let patience = SHORT * 3;
    let server = RedisServer::start();
    let client = crate::common::without_polls(&server).unavailable_after(patience);
    let client = client.connect().await.unwrap();
    let stranger = connect(&server).await;
    let held = stranger.get_lock("long").lock().await.unwrap();
    let lock = client.get_lock("long");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "long").await;
    // The end of a fixed lease shows that more than its patience has passed.
    let clock = stranger
        .get_lock("clock")
        .lock_with_lease(patience + SHORT)
        .await;
    let clock = clock.unwrap();
    clock.lost().await;
    drop(clock);
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    held.unlock().await.unwrap();
    eventually("it was refused and tried again", LONG, async || {
        // Redis 6.2 counts what fails in a script as `ERR`.
        let mut refused = Vec::new();
        for code in ["errorstat_OOM", "errorstat_ERR"] {
            refused.extend(server.info("errorstats", code).await);
        }
        refused.iter().any(|refused| refused != "count=1")
    })
    .await;
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let guard = soon(waiter).await.unwrap();
    guard
        .expect("one refused try is no outage")
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}

/// A try was under way when the process was stopped, for longer than its patience. The server is well.
#[tokio::test]
async fn patience_with_a_server_does_not_count_while_the_process_is_stopped() {
    let patience = SHORT * 2;
    let (server, proxy) = proxied().await;
    let held = connect(&server).await.get_lock("stopped").lock().await;
    let worker = Worker::rust();
    let patience_ms = u64::try_from(patience.as_millis()).unwrap();
    let opening = json!({"url": proxy.url(), "command_timeout_ms": 1000, "unavailable_after_ms": patience_ms});
    worker.call("open", opening).await.unwrap();
    let tries = proxy.count(calls(ACQUIRE, "stopped"));
    let waits = |owner: &'static str| {
        let fields = json!({"owner": owner, "kind": "lock", "name": "stopped"});
        (owner, worker.request("lock", fields))
    };
    let waiters = ["a", "b"].map(waits);
    subscribed(&server, "stopped").await;
    let silent = proxy.inject(Fault::SwallowReply);
    let silent = silent.on(calls(ACQUIRE, "stopped")).arm();
    eventually("a try is under way", LONG, async || silent.fired() == 1).await;
    worker.freeze();
    tokio::time::sleep(patience * 2).await;
    worker.resume();
    let before = tries.seen();
    eventually("they go on waiting", LONG, async || {
        tries.seen() > before + 1
    })
    .await;
    held.unwrap().unlock().await.unwrap();
    // Either of them may be first, as both came at once.
    let through = waiters.map(async |(owner, waiter)| {
        soon(waiter).await.outcome.expect("it waited");
        worker.unlock(owner, "stopped").await.unwrap();
    });
    join_all(through).await;
}

/// As after a suspend, which comes while commands are in flight.
#[tokio::test]
async fn patience_with_a_server_does_not_count_while_the_machine_sleeps() {
    let (server, proxy) = proxied().await;
    let (clock, ahead) = Clock::driven();
    let builder = Client::builder(&proxy.url()).clock(clock);
    let client = builder.unavailable_after(SHORT).connect().await.unwrap();
    let owner = client.new_owner();
    let kept = owner.get_lock("kept").lock_with_lease(LONG * 100).await;
    let kept = kept.unwrap();
    proxy.hold(Direction::Replies);
    let tried = proxy.count(calls(ACQUIRE, "asleep"));
    let entered = proxy.count(calls(REENTER, "kept"));
    let lock = client.get_lock("asleep");
    let waiter = tokio::spawn(async move { lock.lock().await });
    let own = owner.get_lock("kept");
    let level = tokio::spawn(async move { own.lock_with_lease(LONG * 100).await });
    eventually("both are in flight", LONG, async || {
        tried.seen() > 0 && entered.seen() > 0
    })
    .await;
    ahead.advance(LONG);
    // The connections of before get no replies any more.
    proxy.reset_all();
    proxy.heal();
    for guard in [waiter, level] {
        let guard = soon(guard).await.unwrap();
        guard.expect("the server is well").unlock().await.unwrap();
    }
    kept.unlock().await.unwrap();
    clean(&server).await;
}

/// Between two troubles the server answered: the time of the second one counts from its own beginning.
#[tokio::test]
async fn patience_with_a_server_begins_anew_with_each_trouble() {
    let patience = SHORT * 3;
    let (server, proxy) = proxied().await;
    let polls = Backoff::new().base(ms(20)).cap(ms(100));
    let builder = Client::builder(&proxy.url()).backoff(polls);
    let client = builder.unavailable_after(patience).connect().await.unwrap();
    let stranger = crate::common::connect(&server).await;
    let held = stranger.get_lock("twice").lock().await.unwrap();
    let lock = client.get_lock("twice");
    let tries = proxy.count(calls(ACQUIRE, "twice"));
    let waiter = tokio::spawn(async move { lock.lock().await });
    crate::common::subscribed(&server, "twice").await;
    let trouble = async || {
        let loading = Fault::Answer("LOADING Redis is loading the dataset in memory".into());
        let aim = proxy.inject(loading).on(calls(ACQUIRE, "twice")).arm();
        eventually("one try is refused", LONG, async || aim.fired() == 1).await;
    };
    trouble().await;
    let before = tries.seen();
    eventually("and the next is answered", LONG, async || {
        tries.seen() > before + 1
    })
    .await;
    // The end of a fixed lease shows that more than its patience has passed.
    let clock = stranger
        .get_lock("clock")
        .lock_with_lease(patience + SHORT)
        .await
        .unwrap();
    clock.lost().await;
    drop(clock);
    trouble().await;
    held.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap();
    guard
        .expect("two refused tries are no outage")
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn one_try_that_is_refused_is_one_try() {
    let (server, proxy) = proxied().await;
    let client = Client::builder(&proxy.url())
        .command_timeout(LONG)
        .connect()
        .await
        .unwrap();
    for (name, fault, tries) in [
        (
            "refused",
            Fault::Answer("LOADING Redis is loading the dataset in memory".into()),
            1,
        ),
        // On the caller's lane, and on the keeper's, which may have been cut as well.
        ("cut", Fault::ResetBefore, 3),
    ] {
        let aim = proxy.inject(fault).on(calls(ACQUIRE, name)).always().arm();
        let tried = soon(try_once(&client, name)).await;
        assert!(tried.unwrap_err().is_transient());
        assert_eq!(aim.fired(), tries, "{name}");
        aim.cancel();
    }
    clean(&server).await;
}

/// Asking again would not change it: neither a waiter nor a release asks again.
#[tokio::test]
async fn a_denied_command_is_sent_once() {
    let (server, proxy) = proxied().await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    let lock = client.get_lock("denied");
    let denied = |script| {
        let text = "NOPERM User default has no permissions to run the 'evalsha' command";
        let denied = proxy.inject(Fault::Answer(text.into()));
        denied.on(calls(script, "denied")).always().arm()
    };
    let acquires = denied(ACQUIRE);
    let error = soon(lock.lock()).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert_eq!(acquires.fired(), 1);
    acquires.cancel();
    let guard = lock.lock().await.unwrap();
    let releases = denied(RELEASE);
    let error = soon(guard.unlock()).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert_eq!(releases.fired(), 1);
    releases.cancel();
    assert!(lock.force_unlock().await.unwrap(), "left to its lease");
    clean(&server).await;
}

/// The keeper repeats it until the lease is over, and then gives up: the lock is free in Redis, and so it is here.
#[tokio::test]
async fn a_release_that_is_refused_to_the_end_of_its_lease_holds_nobody_up() {
    let (server, proxy) = proxied().await;
    let builder = Client::builder(&proxy.url()).command_timeout(ms(500));
    let client = builder.unavailable_after(LONG).connect().await.unwrap();
    let lock = client.get_lock("kept");
    let guard = lock.lock_with_lease(SHORT).await.unwrap();
    let loading = Fault::Answer("LOADING Redis is loading the dataset in memory".into());
    let refused = proxy.inject(loading).on(calls(RELEASE, "kept"));
    let refused = refused.always().arm();
    let view = guard.hold();
    drop(guard);
    let again = soon(lock.lock()).await.unwrap();
    assert!(refused.fired() >= 2 && !view.is_valid());
    refused.cancel();
    again.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_reentry_that_is_refused_is_repeated_with_pauses() {
    let (server, proxy) = proxied().await;
    let builder = Client::builder(&proxy.url()).unavailable_after(ms(3_000));
    let client = builder.connect().await.unwrap();
    let outer = client.get_lock("pause").lock().await.unwrap();
    let loading = Fault::Answer("LOADING Redis is loading the dataset in memory".into());
    let aim = proxy
        .inject(loading)
        .on(calls(REENTER, "pause"))
        .always()
        .arm();
    let refused = soon(outer.reenter(Lease::Watchdog)).await;
    assert!(refused.unwrap_err().is_transient());
    assert!((2..40).contains(&aim.fired()), "{}", aim.fired());
    aim.cancel();
    outer.unlock().await.unwrap();
    clean(&server).await;
}

/// However long the pauses are between tries for a lock that is busy.
#[tokio::test]
async fn a_reentry_that_is_refused_once_is_repeated_soon() {
    let (server, proxy) = proxied().await;
    let builder = hasty(&proxy.url()).backoff(minute());
    let client = builder.connect().await.unwrap();
    let outer = client.get_lock("soon").lock().await.unwrap();
    let loading = Fault::Answer("LOADING Redis is loading the dataset in memory".into());
    let aim = proxy.inject(loading).on(calls(REENTER, "soon")).arm();
    let asked = Instant::now();
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    assert!(asked.elapsed() < BEFORE_THE_LEASE / 3);
    assert_eq!(aim.fired(), 1);
    for guard in [inner, outer] {
        guard.unlock().await.unwrap();
    }
    clean(&server).await;
}

/// A level that was refused is none: the hold does not last for as long as that level would have.
#[tokio::test]
async fn a_limited_level_that_is_refused_lengthens_no_hold() {
    let (_server, proxy) = proxied().await;
    let client = Client::builder(&proxy.url()).watchdog_lease(SHORT);
    let client = client.connect().await.unwrap();
    let lock = client.get_lock("limit");
    let limited = Lease::AtMost(SHORT * 2);
    let guard = lock.try_lock(Duration::ZERO, limited).await.unwrap();
    let guard = guard.expect("it is free");
    let denied = Fault::Answer("NOPERM this user has no permissions to run EVALSHA".into());
    let denied = proxy.inject(denied).on(calls(REENTER, "limit")).arm();
    let longer = guard.reenter(Lease::AtMost(LONG * 100)).await;
    assert!(matches!(longer, Err(Error::Denied { .. })));
    assert_eq!(denied.fired(), 1);
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
}
