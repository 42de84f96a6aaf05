//! F2, F14 and F16: the holder is frozen, asleep, or its runtime is gone.

use std::time::{Duration, Instant};

use serde_json::json;
use watchlock::{Client, Clock, Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault};
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use super::{ACQUIRE, BEFORE_THE_LEASE, HALF_A_MINUTE, calls, minute, proxied};
use crate::common::{
    LONG, SHORT, clean, connect, connect_short, gone, is_free, ms, poll_once, soon,
};

/// How much later than promised a busy machine may be.
const SLACK: Duration = Duration::from_millis(500);

#[tokio::test]
async fn f2_i3_i8_a_holder_frozen_past_its_lease_learns_of_its_loss_and_harms_nobody() {
    let server = RedisServer::start();
    let worker = Worker::rust();
    worker.open(&server.url(), Some(SHORT)).await.unwrap();
    worker.lock("a", "frozen", None).await.unwrap();
    let client = connect(&server).await;
    worker.freeze();
    let guard = soon(client.get_lock("frozen").lock_with_lease(HALF_A_MINUTE))
        .await
        .unwrap();
    let ours = server.hash("frozen").await;
    server.reset_calls().await;
    worker.resume();
    eventually("the loss is reported", BEFORE_THE_LEASE, async || {
        !worker.lost().is_empty()
    })
    .await;
    let late = worker.unlock("a", "frozen").await.unwrap_err();
    assert_eq!(late.kind, "lost", "{late:?}");
    // Its late release was sent and touched nothing, and no renewal came before it.
    eventually("its release was sent", BEFORE_THE_LEASE, async || {
        server.calls_of("hdel").await > 0
    })
    .await;
    assert_eq!(server.calls_of("pexpire").await, 0);
    assert_eq!(server.hash("frozen").await, ours);
    guard.unlock().await.unwrap();
    clean(&server).await;
}

/// What a process sent before it stood still is not overdue at once: the server may have answered in time.
#[tokio::test]
async fn f2_the_time_for_which_a_process_stood_still_is_not_the_servers_silence() {
    let (server, proxy) = proxied().await;
    let worker = Worker::rust();
    let fields = json!({"url": proxy.url(), "command_timeout_ms": 2_000});
    worker.call("open", fields).await.unwrap();
    let acquires = proxy.count(calls(ACQUIRE, "still"));
    proxy.hold(Direction::Replies);
    let fields = json!({"owner": "a", "kind": "lock", "name": "still"});
    let granted = worker.request("lock", fields);
    eventually("it was sent", BEFORE_THE_LEASE, async || {
        acquires.seen() == 1
    })
    .await;
    worker.freeze();
    tokio::time::sleep(ms(2_500)).await; // the fault
    worker.resume();
    tokio::time::sleep(ms(500)).await; // the rest of the way of the reply
    proxy.heal();
    soon(granted).await.outcome.unwrap();
    assert_eq!(acquires.seen(), 1, "no try but the first");
    worker.unlock("a", "still").await.unwrap();
    clean(&server).await;
}

/// During a suspend timers stand still and leases do not.
#[tokio::test]
async fn f14_i8_after_a_suspend_the_first_look_says_that_it_is_over() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock);
    let client = client.connect().await.unwrap();
    let kept = client.get_lock("kept").lock().await.unwrap();
    let fixed = client
        .get_lock("fixed")
        .lock_with_lease(HALF_A_MINUTE)
        .await
        .unwrap();
    let longer = client.get_lock("longer");
    let longer = longer.lock_with_lease(HALF_A_MINUTE * 20).await.unwrap();
    ahead.advance(HALF_A_MINUTE);
    assert!(longer.is_valid() && longer.valid_for() < HALF_A_MINUTE * 19);
    longer.unlock().await.unwrap();
    for guard in [kept, fixed] {
        assert!(!guard.is_valid());
        assert!(matches!(guard.check(), Err(Error::Lost { .. })));
        let woken = Instant::now();
        assert_eq!(soon(guard.lost()).await, LostReason::Expired);
        assert!(woken.elapsed() < SLACK + ms(250), "looked for late");
        assert!(guard.unlock().await.unwrap_err().is_lost());
    }
    // Redis did not really sleep: the client sends a last release behind the lost hold.
    clean(&server).await;
}

#[test]
fn f16_guards_that_die_with_their_runtime_are_given_back() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let home = runtime();
    let client = home.block_on(connect(&server));
    let doomed = runtime();
    doomed.block_on(async {
        for i in 0..100 {
            let lock = client.get_lock(&format!("doomed-{i}"));
            let guard = lock.lock().await.unwrap();
            tokio::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
        }
        assert_eq!(server.keys().await.len(), 100);
    });
    drop(doomed);
    home.block_on(async {
        let end = BEFORE_THE_LEASE;
        eventually("all are given back", end, async || {
            server.keys().await.is_empty()
        })
        .await;
        assert!(is_free(&client, "doomed-7").await);
    });
}

/// Also when that runtime is the client's first one, and its lanes ended with it.
#[test]
fn f16_a_client_outlives_the_runtime_it_was_made_on() {
    let server = RedisServer::start();
    let first = tokio::runtime::Runtime::new().unwrap();
    let client = first.block_on(connect_short(&server));
    let kept = first.block_on(client.get_lock("kept").lock()).unwrap();
    drop(first);
    let second = tokio::runtime::Builder::new_current_thread();
    let second = { second }.enable_all().build().unwrap();
    second.block_on(async {
        assert!(is_free(&client, "other").await);
        let renewals = server.calls_of("pexpire").await;
        eventually("renewed on and on", BEFORE_THE_LEASE, async || {
            server.calls_of("pexpire").await >= renewals + 6
        })
        .await;
        kept.check().unwrap();
        kept.unlock().await.unwrap();
        clean(&server).await;
    });
}

#[tokio::test]
async fn f16_a_forgotten_guard_is_kept_until_the_client_is_shut_down() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    std::mem::forget(client.get_lock("leaked").lock().await.unwrap());
    let renewals = server.calls_of("pexpire").await;
    eventually("it is renewed", BEFORE_THE_LEASE, async || {
        server.calls_of("pexpire").await >= renewals + 4
    })
    .await;
    assert!(server.exists("leaked").await);
    client.shutdown(Duration::ZERO).await;
    gone(&server, "leaked").await;
}

/// The answer lay unread until the lease was over: the call must not return a hold.
#[tokio::test]
async fn f16_i1_a_grant_that_is_collected_too_late_is_not_returned() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("late");
    let lease = ms(300);
    // Connected, so that the first poll sends the try.
    lock.lock().await.unwrap().unlock().await.unwrap();
    server.reset_calls().await;
    for patience in [Duration::ZERO, SHORT] {
        let mut acquiring = Box::pin(lock.try_lock(patience, lease));
        assert!(poll_once(&mut acquiring).await.is_none());
        eventually("it was granted", BEFORE_THE_LEASE, async || {
            server.calls_of("hset").await > 0
        })
        .await;
        gone(&server, "late").await;
        match soon(acquiring).await {
            Ok(Some(guard)) => guard.check().expect("what is returned is held"),
            Ok(None) => panic!("nobody else was there"),
            Err(Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        clean(&server).await;
        server.reset_calls().await;
    }
}

/// As before, with a reply that took longer than the lease.
#[tokio::test]
async fn i1_a_grant_whose_reply_took_longer_than_the_lease_is_not_returned() {
    let (server, proxy) = proxied().await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    let late = Fault::DelayReply(ms(500));
    proxy.inject(late).on(calls(ACQUIRE, "slow")).arm();
    let lock = client.get_lock("slow");
    let too_late = lock.try_lock(Duration::ZERO, ms(200)).await;
    assert!(
        matches!(too_late, Err(Error::Unavailable { .. })),
        "{too_late:?}"
    );
    clean(&server).await;
    let late = Fault::DelayReply(ms(500));
    proxy.inject(late).on(calls(ACQUIRE, "slow")).arm();
    let guard = lock.try_lock(BEFORE_THE_LEASE, ms(200)).await.unwrap();
    guard.expect("the second try was in time").check().unwrap();
    clean(&server).await;
}

/// The drift: the client stops relying on the lease before Redis may let anybody in.
#[tokio::test]
async fn i8_validity_ends_a_hundredth_and_two_milliseconds_before_the_lease() {
    let server = RedisServer::start();
    let client = Client::builder(&server.url()).backoff(minute());
    let client = client.connect().await.unwrap();
    let fixed = client
        .get_lock("fixed")
        .lock_with_lease(Duration::from_secs(100))
        .await
        .unwrap();
    assert!(fixed.valid_for() <= ms(98_998));
    assert!(fixed.valid_for() + BEFORE_THE_LEASE > ms(98_998));
    let watched = client.get_lock("watched");
    let watched = watched
        .try_lock(SHORT, Lease::Watchdog)
        .await
        .unwrap()
        .unwrap();
    assert!(watched.valid_for() <= ms(29_698));
    fixed.extend(Duration::from_secs(1000)).await.unwrap();
    assert!(fixed.valid_for() <= ms(989_998));
}

/// Whatever the server answered then, it could not help.
#[tokio::test]
async fn i8_who_asks_about_a_hold_learns_of_its_loss_though_nobody_answers() {
    let (_server, proxy) = proxied().await;
    // The test does not wait for so long.
    let client = Client::builder(&proxy.url()).command_timeout(LONG * 2);
    let client = client.connect().await.unwrap();
    let lock = client.get_lock("silent");
    let guard = lock.lock_with_lease(SHORT).await.unwrap();
    let inner = guard.reenter(SHORT).await.unwrap();
    proxy.black_hole(Direction::Replies);
    let entering = async { guard.reenter(Lease::Watchdog).await.map(drop) };
    let (extending, verifying) = (guard.extend(HALF_A_MINUTE), guard.verify());
    let asking = async { tokio::join!(entering, extending, verifying, inner.unlock()) };
    let (entered, extended, verified, unlocked) = Box::pin(soon(asking)).await;
    for (call, answer) in [
        ("reenter", entered),
        ("extend", extended),
        ("verify", verified),
        ("unlock of an inner level", unlocked),
    ] {
        let reason = match answer {
            Err(Error::Lost { reason, .. }) => reason,
            other => panic!("{call}: {other:?}"),
        };
        assert_eq!(reason, LostReason::Expired, "{call}");
    }
}

/// A loss is reported before the lease can end in Redis.
#[tokio::test]
async fn i8_a_hold_that_is_not_renewed_is_lost_before_its_key_is_gone() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    // The drift of these leases is ten times what a busy machine may need to report it.
    let lock = client.get_lock("fixed");
    let asked = Instant::now();
    let guard = lock.lock_with_lease(Duration::from_secs(6)).await.unwrap();
    // Redis counts from when it took the lock, the client from before it asked.
    let under_way = i64::try_from(asked.elapsed().as_millis()).unwrap();
    let limit = guard.valid_for();
    let began = Instant::now();
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(!guard.is_valid());
    assert!(
        began.elapsed() + ms(20) >= limit,
        "{:?} of {limit:?}",
        began.elapsed()
    );
    let early = server.pttl("fixed").await;
    assert!(early <= 62 + 2 + under_way, "not before its time: {early}");
    assert!(guard.unlock().await.unwrap_err().is_lost());
    clean(&server).await;
}

/// A caller without a time-out, with a lease that is shorter than the way to Redis.
#[tokio::test]
async fn i6_a_caller_granted_the_lock_too_late_again_and_again_gets_an_error() {
    let (server, proxy) = proxied().await;
    let builder = Client::builder(&proxy.url()).unavailable_after(ms(3_000));
    let client = builder.connect().await.unwrap();
    let late = Fault::DelayReply(ms(300));
    let aim = proxy
        .inject(late)
        .on(calls(ACQUIRE, "short"))
        .always()
        .arm();
    let refused = soon(client.get_lock("short").lock_with_lease(ms(100))).await;
    assert!(
        matches!(refused, Err(Error::Unavailable { .. })),
        "{refused:?}"
    );
    assert!(aim.fired() > 1, "it was tried again");
    clean(&server).await;
}
