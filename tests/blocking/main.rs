//! Locks without `async`: on plain threads, on those of `spawn_blocking`, inside of a runtime, and when a hold is lost.
#![cfg(feature = "blocking")]

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use watchlock::blocking::{Blocking, Client, Handle};
use watchlock::kind::LockKind;
use watchlock::{Ended, Error, Lease, LockGuard, LostReason, Quorum, Ttl};
use watchlock_test::Redis;

const MINUTE: Duration = Duration::from_secs(60);

fn client(redis: &Redis) -> Client {
    redis.client_builder().connect_blocking().unwrap()
}

/// Every verb of a handle.
fn used<K: LockKind>(lock: &Handle<K>) {
    lock.lock().unwrap().unlock().unwrap();
    let guard = lock.lock_with_lease(MINUTE).unwrap();
    assert!(lock.is_locked().unwrap());
    assert!(matches!(lock.remain_time_to_live().unwrap(), Ttl::Left(_)));
    guard.verify().unwrap();
    guard.extend(MINUTE).unwrap();
    let again = guard.reenter(MINUTE).unwrap();
    assert_eq!(guard.lost_within(Duration::ZERO), None);
    again.unlock().unwrap();
    let of_async: LockGuard = guard.into_async().into();
    assert!(of_async.is_valid());
    drop(of_async);

    let got = lock.try_lock(MINUTE, Lease::Watchdog).unwrap();
    let of_async: LockGuard = got.expect("free after a drop").into_async().into();
    let (view, guard) = (Blocking::from(of_async.hold()), Blocking::from(of_async));
    let refused = Blocking::from(guard.detach().unwrap_err().into_guard()).let_expire();
    drop(refused.unwrap_err());
    assert_eq!(view.ended(), Ended::Released);
    assert!(
        lock.run(|guard| guard.verify().and(guard.verify()))
            .unwrap()
            .is_ok()
    );
    let ran = lock.try_run(MINUTE, Lease::Watchdog, |guard| {
        guard.verify().and(guard.verify())
    });
    assert!(ran.unwrap().expect("it is free").is_ok());
    assert!(matches!(lock.unlock(), Err(Error::NotOwner { .. })));
    assert!(!lock.force_unlock().unwrap());
    assert!(!lock.is_held() && lock.hold_count() == 0);
}

#[test]
fn a_plain_thread_has_every_kind_and_verb() {
    let redis = Redis::start();
    let client = client(&redis);
    let owner = client.new_owner();
    used(&client.get_lock("plain"));
    used(&client.get_fenced_lock("fenced"));
    used(&client.get_fair_lock("fair"));
    used(&client.get_spin_lock("spin"));
    used(&client.get_simple_lock("simple"));
    used(&client.get_read_write_lock("rw").read_lock());
    used(&client.get_read_write_lock("rw").write_lock());

    let owned = owner.get_lock("plain");
    let outer = owned.lock().unwrap();
    assert_eq!(owned.lock().unwrap().hold_count(), 2);
    assert_eq!(owned.holders().unwrap()[0].client, Some(client.id()));
    assert_eq!(owned.waiters().unwrap(), 0);
    outer.detach().unwrap();
    owned.unlock().unwrap();

    let fenced = client.get_fenced_lock("fenced");
    let token = fenced.run(|guard| guard.token()).unwrap();
    assert!(fenced.lock().unwrap().token() > token);
    let writer = client.get_read_write_lock("rw").write_lock();
    let reader = writer.lock().unwrap().downgrade().unwrap();
    assert!(reader.is_valid());
    drop(reader);

    let tick = client.get_lock("tick");
    assert_eq!(tick.once_per(MINUTE, |_| 1).unwrap(), Some(1));
    assert_eq!(tick.once_per(MINUTE, |_| 1).unwrap(), None);
    let imports = client.get_semaphore("imports").with_permits(2);
    let permit = imports.acquire().unwrap();
    assert!(permit.is_valid() && permit.verify().is_ok());
    assert_eq!(permit.lost_within(Duration::ZERO), None);
    assert!(
        imports
            .try_acquire_many(2, Duration::ZERO, MINUTE)
            .unwrap()
            .is_none()
    );
    permit.release().unwrap();
    assert_eq!(imports.run(|_| 1).unwrap(), 1);
    assert_eq!(imports.available_permits().unwrap(), 2);
    let leased = client.get_permit_expirable_semaphore("leased");
    assert!(leased.try_set_permits(3).unwrap());
    let forgotten = leased.acquire().unwrap();
    let id = forgotten.ids()[0];
    forgotten.forget().unwrap();
    assert!(leased.release_permit(id).unwrap(), "it stayed taken");
    let permit = leased.acquire().unwrap();
    let id = permit.ids()[0];
    permit.release().unwrap();
    assert!(!leased.release_permit(id).unwrap(), "it was given back");
    let latch = client.get_count_down_latch("latch");
    assert!(latch.try_set_count(2).unwrap());
    assert_eq!(latch.count_down().unwrap(), 1);
    assert!(!latch.wait_within(Duration::ZERO).unwrap());
    thread::scope(|scope| {
        let waits = scope.spawn(|| latch.wait());
        assert_eq!(latch.count_down().unwrap(), 0);
        waits.join().unwrap().unwrap();
    });
    assert!(latch.wait_within(MINUTE).unwrap());
    assert_eq!(
        (latch.count().unwrap(), latch.delete().unwrap()),
        (0, false)
    );
    assert!(client.shutdown(MINUTE).is_clean());
    client.shutting_down();
    assert!(matches!(tick.lock(), Err(Error::Closed)));
}

#[test]
fn a_quorum_blocks_too() {
    let redis = Redis::start();
    let builder = Quorum::builder([redis.url()]).clock(redis.clock());
    let quorum = builder.restart_delay(Duration::ZERO).connect_blocking();
    let quorum = quorum.unwrap();
    quorum.get_lock("plain").lock().unwrap().unlock().unwrap();
    let owner = quorum.new_owner();
    let guard = owner.get_fenced_lock("fenced").lock().unwrap();
    assert!(guard.token().as_u64() > 0);
    drop(guard);
    assert!(quorum.shutdown(MINUTE).is_clean());
}

/// What several threads do under one lock.
fn exclude_each_other(lock: &Handle<watchlock::kind::Reentrant>, inside: &AtomicU32) {
    for _ in 0..50 {
        let guard = lock.lock().unwrap();
        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
        thread::yield_now();
        inside.fetch_sub(1, Ordering::Relaxed);
        guard.unlock().unwrap();
    }
}

#[test]
fn threads_exclude_each_other() {
    let redis = Redis::start();
    let (client, inside) = (client(&redis), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| exclude_each_other(&client.get_lock("shared"), &inside));
        }
    });
}

#[tokio::test]
async fn a_blocking_client_works_inside_of_a_runtime() {
    let redis = Redis::start();
    // It blocks the thread of this runtime, for longer than a task of tokio may be polled without an await.
    let client = client(&redis);
    let lock = client.get_lock("task");
    exclude_each_other(&lock, &AtomicU32::new(0));
    for _ in 0..100 {
        assert_eq!(lock.lock().unwrap().lost_within(Duration::ZERO), None);
    }

    let of_async = redis.client().await.unwrap();
    let blocking = Client::from(of_async.clone());
    let held = of_async.get_lock("other").lock().await.unwrap();
    let waits = tokio::task::spawn_blocking(move || blocking.get_lock("other").lock());
    while of_async.get_lock("other").waiters().await.unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    held.unlock().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    guard.into_async().unlock().await.unwrap();
}

#[test]
fn a_loss_ends_what_blocks() {
    let redis = Redis::start();
    redis.stop_clock();
    let client = client(&redis);
    let guard = client.get_lock("lost").lock().unwrap();
    let lose = || {
        redis.lose_data();
        redis.advance(Duration::from_secs(11)); // the next renewal is due
    };
    thread::scope(|scope| {
        let lost = [
            scope.spawn(|| guard.lost_within(MINUTE)),
            scope.spawn(|| Some(guard.lost())),
            scope.spawn(|| Some(Blocking::from(guard.hold()).lost())),
        ];
        assert_eq!(guard.lost_within(Duration::from_millis(50)), None);
        lose();
        for lost in lost {
            assert_eq!(lost.join().unwrap(), Some(LostReason::Missing));
        }
    });
    assert!(guard.unlock().unwrap_err().is_lost());
    let ran = client.get_lock("run").run(|guard| {
        lose();
        guard.lost()
    });
    assert!(ran.unwrap_err().is_lost());
}

#[test]
fn a_lost_term_is_followed_by_another_one() {
    let redis = Redis::start();
    let election = client(&redis).get_election("leader");
    let mut terms = 0;
    let led = election.lead(|term| {
        terms += 1;
        if terms == 1 {
            redis.lose_data();
            redis.advance(Duration::from_secs(31));
        }
        (term.is_valid(), terms, election.leader().unwrap())
    });
    let (valid, terms, leader) = led.unwrap();
    assert!(valid && terms == 2 && leader.is_some());
    assert!(!election.is_leader());
}

#[test]
fn what_cannot_be_reached_is_an_error() {
    let refused = Client::connect("redis://127.0.0.1:1/").unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    assert!(matches!(Client::connect("nowhere"), Err(Error::Config(_))));
}

#[test]
fn a_hold_that_was_lost_while_the_process_stood_still_is_reported_as_lost() {
    let redis = Redis::start();
    let client = client(&redis);
    let lock = client.get_lock("stop");
    let guard = lock.lock_with_lease(Duration::from_millis(200)).unwrap();
    let stops = "sleep 0.05; kill -STOP $PPID; sleep 0.5; kill -CONT $PPID";
    let mut stops = Command::new("sh").args(["-c", stops]).spawn().unwrap();
    let lost = guard.lost_within(Duration::from_millis(300));
    stops.wait().unwrap();
    assert_eq!(lost, Some(LostReason::Expired));
}

#[test]
fn a_blocking_client_of_a_runtime_that_ended_goes_on() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let of_async = runtime.block_on(redis.client()).unwrap();
    let held = runtime.block_on(of_async.get_lock("a").lock()).unwrap();
    let client = Client::from(of_async);
    drop(runtime);
    assert!(
        client
            .get_lock("a")
            .try_lock(Duration::ZERO, Lease::Watchdog)
            .unwrap()
            .is_none()
    );
    Blocking::from(held).unlock().unwrap();
    client.get_lock("a").lock().unwrap().unlock().unwrap();
    let latch = client.get_count_down_latch("l");
    latch.try_set_count(1).unwrap();
    assert!(!latch.wait_within(Duration::from_millis(20)).unwrap());
    latch.count_down().unwrap();
    latch.wait().unwrap();
    assert!(client.shutdown(MINUTE).is_clean());
    assert!(matches!(latch.wait(), Err(Error::Closed)));
    assert!(matches!(latch.wait_within(MINUTE), Err(Error::Closed)));
}

#[test]
fn a_shutdown_inside_of_a_term_ends_the_campaign() {
    let redis = Redis::start();
    let client = client(&redis);
    let election = client.get_election("leader");
    let led = election.lead(|_| client.shutdown(Duration::from_millis(50)));
    assert!(matches!(led, Err(Error::Closed)), "{led:?}");
    let client = self::client(&redis);
    let tick = client.get_lock("tick");
    let ran = tick.once_per(Duration::from_millis(200), |_| {
        thread::sleep(Duration::from_millis(400));
    });
    assert!(ran.unwrap_err().is_lost());
    let ran = tick.once_per(MINUTE, |_| {
        client
            .get_lock("inner")
            .run(|_| tick.once_per(MINUTE, |_| ()).unwrap())
            .unwrap()
    });
    assert_eq!(ran.unwrap(), Some(None));
}

#[test]
fn the_limits_of_blocking_waits_end_with_the_clock() {
    const HOUR: Duration = Duration::from_secs(3600);
    let redis = Redis::start();
    redis.stop_clock();
    let client = client(&redis);
    let held = client.get_lock("busy");
    let held = held.lock_with_lease(1000 * HOUR).unwrap();
    let latch = client.get_count_down_latch("latch");
    latch.try_set_count(1).unwrap();
    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| {
                let lock = client.get_lock("busy");
                lock.try_lock(HOUR, Lease::Watchdog).unwrap().is_none()
            }),
            scope.spawn(|| held.lost_within(HOUR).is_none()),
            scope.spawn(|| !latch.wait_within(HOUR).unwrap()),
        ];
        for _ in 0..500 {
            if waits.iter().all(ScopedJoinHandle::is_finished) {
                break;
            }
            redis.advance(HOUR / 10);
            thread::sleep(Duration::from_millis(10));
        }
        let over = waits.each_ref().map(ScopedJoinHandle::is_finished);
        if over == [true; 3] {
            assert!(waits.into_iter().all(|wait| wait.join().unwrap()));
        } else {
            // Ends them all.
            client.shutdown(Duration::ZERO);
            panic!("{over:?}");
        }
    });
}
