//! A child by `fork` has the parent's values, but neither its keeper nor its connections: there everything is
//! closed, nothing is sent and nothing blocks, and the parent goes on as if there were no child.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use watchlock::{Client, Error, Lease, LostReason, MultiLock};
use watchlock_support::fork::in_child;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, count, ms, poll_once, subscribed};

/// On a runtime without threads, which goes on in the child.
fn start() -> (RedisServer, Runtime, Client) {
    let server = RedisServer::start();
    let home = Builder::new_current_thread().enable_all().build();
    let home = home.expect("a runtime");
    let client = home.block_on(Client::connect(&server.url()));
    (server, home, client.expect("a client"))
}

/// What `future` ends with, in the child.
fn ended<T>(home: &Runtime, what: &str, future: impl Future<Output = T>) -> Result<T, String> {
    let soon = async { tokio::time::timeout(ms(500), future).await };
    let ended = home.block_on(soon);
    ended.map_err(|_| format!("{what} waits"))
}

fn closed<T: Debug>(
    home: &Runtime,
    what: &str,
    future: impl Future<Output = Result<T, Error>>,
) -> Result<(), String> {
    match ended(home, what, future)? {
        Err(Error::Closed) => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    }
}

fn that(what: &str, holds: bool) -> Result<(), String> {
    holds.then_some(()).ok_or_else(|| format!("not so: {what}"))
}

/// How often a field of a lock was written or deleted.
async fn writes(server: &RedisServer) -> u64 {
    server.calls_of("hset").await + server.calls_of("hdel").await
}

/// The parent's locks are untouched: so many levels of "watched" and "fixed", and so many writes.
#[track_caller]
fn untouched(server: &RedisServer, home: &Runtime, written: u64) {
    home.block_on(async {
        assert_eq!(count(server, "watched").await, 2);
        assert_eq!(count(server, "fixed").await, 1);
        assert_eq!(writes(server).await, written);
    });
}

#[test]
fn in_a_forked_child_everything_is_closed() {
    let (server, home, client) = start();
    let owner = client.new_owner();
    let (lock, stranger) = (owner.get_lock("watched"), client.get_lock("watched"));
    let guard = home.block_on(lock.lock()).unwrap();
    home.block_on(lock.lock()).unwrap().detach().unwrap();
    let mut fixed = Some(
        home.block_on(client.get_lock("fixed").lock_for(LONG))
            .unwrap(),
    );
    let view = guard.hold();
    let mut guard = Some(guard);
    let scripts = home.block_on(server.calls_of("evalsha"));
    let written = home.block_on(writes(&server));

    let (home_, server_) = (&home, &server);
    in_child(LONG, || {
        let home = home_;
        let held = guard.take().ok_or("a guard")?;
        let other = fixed.take().ok_or("another")?;
        that("nothing is valid", !held.is_valid() && !view.is_valid())?;
        that(
            "not for a moment",
            held.valid_for().is_zero() && view.valid_for().is_zero(),
        )?;
        that("nothing is held", !lock.is_held() && lock.hold_count() == 0)?;
        that("no level is there", held.hold_count() == 0)?;
        that("check", matches!(held.check(), Err(Error::Closed)))?;
        that(
            "the view's check",
            matches!(view.check(), Err(Error::Closed)),
        )?;
        let told = ended(home, "lost", held.lost())?;
        that("lost is told", told == LostReason::KeeperEnded)?;
        that("to the view", ended(home, "the view", view.lost())? == told)?;
        closed(home, "lock", stranger.lock())?;
        closed(home, "an owner's lock", lock.lock())?;
        closed(
            home,
            "try_lock",
            lock.try_lock(Duration::ZERO, Lease::Watchdog),
        )?;
        closed(home, "run", stranger.run(async |_| ()))?;
        closed(home, "is_locked", lock.is_locked())?;
        closed(home, "remain_time_to_live", lock.remain_time_to_live())?;
        closed(home, "force_unlock", lock.force_unlock())?;
        closed(home, "a handle's unlock", lock.unlock())?;
        closed(home, "a scope", client.scope(stranger.lock()))?;
        closed(home, "reenter", held.reenter(Lease::Watchdog))?;
        closed(home, "extend", other.extend(LONG))?;
        closed(home, "verify", held.verify())?;
        closed(home, "unlock", held.unlock())?;
        ended(home, "shutdown", client.shutdown(LONG))?;
        drop(other);
        Ok(())
    })
    .unwrap();

    untouched(server_, &home, written);
    assert_eq!(home.block_on(server.calls_of("evalsha")), scripts);
    let guard = guard.expect("the parent's");
    assert!(guard.is_valid() && guard.hold_count() == 2);
    home.block_on(async {
        lock.unlock().await.unwrap();
        guard.unlock().await.unwrap();
        drop(fixed);
        clean(&server).await;
    });
}

#[test]
fn in_a_forked_child_several_locks_as_one_are_closed() {
    let (server, home, client) = start();
    let both = MultiLock::new(["a", "b"].map(|name| client.get_lock(name))).unwrap();
    let guard = home.block_on(both.lock()).unwrap();
    let view = guard.hold();
    let mut held = Some(guard);
    in_child(LONG, || {
        let guard = held.take().ok_or("a guard")?;
        that("nothing is valid", !guard.is_valid() && !view.is_valid())?;
        that("check", matches!(guard.check(), Err(Error::Closed)))?;
        let told = ended(&home, "lost", guard.lost())?;
        that("lost is told", told == LostReason::KeeperEnded)?;
        that(
            "to the view",
            ended(&home, "the view", view.lost())? == told,
        )?;
        closed(&home, "reenter", guard.reenter(Lease::Watchdog))?;
        closed(&home, "verify", guard.verify())?;
        closed(&home, "unlock", guard.unlock())?;
        closed(&home, "lock", both.lock())
    })
    .unwrap();
    let guard = held.expect("the parent's");
    home.block_on(async {
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
        clean(&server).await;
    });
}

/// A thread of the parent looks at the hold again and again, and may be at it in the moment of the fork.
#[test]
fn in_a_forked_child_no_drop_of_several_locks_as_one_blocks() {
    let (server, home, client) = start();
    let both = MultiLock::new(["a", "b"].map(|name| client.get_lock(name))).unwrap();
    let guard = home.block_on(both.lock()).unwrap();
    let view = guard.hold();
    let done = AtomicBool::new(false);
    let mut held = Some(guard);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(view.is_valid());
            }
        });
        let mut dropped = Ok(());
        for _ in 0..50 {
            dropped = dropped.and_then(|()| {
                in_child(LONG, || {
                    drop(held.take());
                    Ok(())
                })
            });
        }
        done.store(true, Ordering::Relaxed);
        dropped.unwrap();
    });
    home.block_on(async {
        held.expect("the parent's").unlock().await.unwrap();
        clean(&server).await;
    });
}

/// Children that drop everything while a thread of the parent takes the locks inside again and again: now and then
/// one is taken at the moment of the fork, and nobody in the child would ever give it back.
#[test]
fn in_a_forked_child_no_drop_blocks_or_gives_back() {
    let (server, home, client) = start();
    let owner = client.new_owner();
    let lock = owner.get_lock("watched");
    let guard = home.block_on(lock.lock()).unwrap();
    home.block_on(lock.lock()).unwrap().detach().unwrap();
    let short = client.get_lock("fixed");
    let fixed = home.block_on(short.lock_for(LONG)).unwrap();
    let stranger = client.get_lock("watched");
    let mut waiting = Box::pin(stranger.lock());
    home.block_on(async {
        assert!(poll_once(&mut waiting).await.is_none());
        subscribed(&server, "watched").await;
    });
    // Not all scripts: the parent's keeper asks for the lock that somebody waits for.
    let written = home.block_on(writes(&server));

    let done = AtomicBool::new(false);
    let mut all = Some((waiting, guard, fixed, owner, client.clone()));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _home = home.enter();
            let busy = client.get_lock("watched");
            while !done.load(Ordering::Relaxed) {
                assert_eq!(lock.hold_count(), 2);
                let tried = Box::pin(busy.try_lock(Duration::ZERO, Lease::Watchdog));
                let tried = futures_util::FutureExt::now_or_never(tried);
                assert!(matches!(tried, Some(Ok(None))));
            }
        });
        let mut dropped = Ok(());
        for _ in 0..50 {
            dropped = dropped.and_then(|()| {
                in_child(LONG, || {
                    drop(all.take());
                    Ok(())
                })
            });
        }
        done.store(true, Ordering::Relaxed);
        dropped.unwrap();
    });

    untouched(&server, &home, written);
    let (waiting, guard, fixed, owner, _client) = all.expect("the parent's");
    assert!(guard.is_valid() && guard.hold_count() == 2);
    home.block_on(async {
        guard.unlock().await.unwrap();
        drop((fixed, owner));
        waiting.await.unwrap().unlock().await.unwrap();
        clean(&server).await;
    });
}

/// Outside of any runtime the last handle waits for its keeper; a child has none.
#[test]
fn in_a_forked_child_the_last_handle_waits_for_nobody() {
    let (_server, home, client) = start();
    let lock = client.get_lock("x");
    drop(lock);
    let mut last = Some(client);
    // One that is quick is enough: a busy machine may be slow five times in a row, hardly twenty times.
    let quick = (0..20).any(|_| {
        in_child(LONG, || {
            let began = Instant::now();
            drop(last.take());
            that("it is quick", began.elapsed() < ms(400))
        })
        .is_ok()
    });
    assert!(quick);
    let client = last.expect("the parent's");
    home.block_on(client.shutdown(LONG));
}
