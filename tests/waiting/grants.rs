//! A grant and its caller: not collected, collected by another caller of the same owner, or refused at that very
//! moment.

use std::hint::spin_loop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use watchlock::{Client, Error, Lease, LockGuard, ReentrantLock};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, clean, connect, gone, ms, poll_once, soon, subscribed};

type Trying = Pin<Box<dyn Future<Output = Result<Option<LockGuard>, Error>> + Send>>;

/// A client, and a wait of its own for `line` that was granted and is no longer polled.
async fn granted(server: &RedisServer, lease: Lease) -> (Client, Trying) {
    let builder = Client::builder(&server.url()).watchdog_lease(SHORT);
    let builder = builder.command_timeout(ms(800)).pass_on(false);
    let client = builder.connect().await.unwrap();
    let lock = client.get_lock("line");
    let first = lock.lock().await.unwrap();
    let mut waiting: Trying = Box::pin(async move { lock.try_lock(LONG * 10, lease).await });
    assert!(poll_once(&mut waiting).await.is_none());
    subscribed(server, "line").await;
    let grants = server.calls_of("hset").await;
    first.unlock().await.unwrap();
    eventually("it was granted", LONG, async || {
        server.calls_of("hset").await > grants
    })
    .await;
    (client, waiting)
}

/// It is taken back after a command time-out, or ends with its lease before; the keeper is done with it, and looks
/// after everything else.
/// any more, and looks after everything else.
#[tokio::test]
async fn i9_a_grant_that_nobody_collects_leaves_the_keeper_at_rest() {
    for lease in [Lease::Watchdog, Lease::Fixed(ms(150))] {
        let server = RedisServer::start();
        let (client, waiting) = granted(&server, lease).await;
        let kept = client.get_lock("kept").lock().await.unwrap();
        gone(&server, "line").await;
        eventually("the job of the name is over", LONG, async || {
            server.channels().await.is_empty()
        })
        .await;
        let renewals = server.calls_of("pexpire").await;
        eventually("the other hold is renewed on and on", LONG, async || {
            server.calls_of("pexpire").await >= renewals + 6
        })
        .await;
        kept.check().unwrap();
        soon(client.shutdown(ms(100))).await;
        drop(waiting);
        clean(&server).await;
    }
}

/// A caller that comes back to it later starts afresh: it never gets a hold that is over.
#[tokio::test]
async fn i8_a_grant_that_is_over_when_it_is_collected_is_asked_for_once_more() {
    for lease in [Lease::Watchdog, Lease::Fixed(ms(400))] {
        let server = RedisServer::start();
        let (_client, waiting) = granted(&server, lease).await;
        gone(&server, "line").await;
        let guard = soon(waiting).await.unwrap().expect("nobody has it");
        guard.check().unwrap();
        guard.unlock().await.unwrap();
        clean(&server).await;
    }
}

/// The second acquire looks whether its owner has the lock while the first one is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_behind_a_hold_of_its_own_owner() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    for round in 0..1_000 {
        let owner = client.new_owner();
        let lock = owner.get_lock(&format!("own-{round}"));
        let all = [(); 4].map(|()| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await })
        });
        let mut guards = Vec::new();
        for acquiring in all {
            guards.push(soon(acquiring).await.unwrap().unwrap());
        }
        assert_eq!(lock.hold_count(), 4);
        drop(guards);
    }
    clean(&server).await;
}

type Acquiring = Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + Send>>;

/// Queues, and is no longer polled.
async fn queued(lock: ReentrantLock) -> Acquiring {
    let mut acquiring: Acquiring = Box::pin(async move { lock.lock().await });
    assert!(poll_once(&mut acquiring).await.is_none());
    acquiring
}

/// A caller goes away at the moment of its grant, and at the same moment another one of its owner enters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i8_nobody_enters_a_hold_whose_grant_goes_back() {
    const ROUNDS: usize = 20;
    const CROWD: usize = 10_000;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let line = client.get_lock("line");
    let mut held = line.lock().await.unwrap();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let owner = client.new_owner();
        let leaves = queued(owner.get_lock("line")).await;
        rounds.push((owner, leaves, queued(line.clone()).await));
    }
    // The many waiters behind it make the moment long, if a grant touches them at all.
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        let mut waiting = Box::pin(line.try_lock(LONG * 10, Lease::Watchdog));
        assert!(poll_once(&mut waiting).await.is_none());
        crowd.push(waiting);
    }
    for (owner, leaves, next) in rounds {
        let left = Arc::new(AtomicBool::new(false));
        let leaving = spawn_blocking({
            let (lock, left) = (owner.get_lock("line"), Arc::clone(&left));
            move || {
                // On a machine that stands still the moment may be missed: nobody collects this grant.
                let begun = Instant::now();
                while !lock.is_held() && begun.elapsed() < ms(5_000) {
                    spin_loop();
                }
                drop(leaves);
                left.store(true, Ordering::SeqCst);
            }
        });
        let entering = spawn_blocking({
            let (lock, runtime) = (owner.get_lock("line"), Handle::current());
            move || {
                while !lock.is_held() && !left.load(Ordering::SeqCst) {
                    spin_loop();
                }
                runtime.block_on(lock.try_lock(ms(50), Lease::Watchdog))
            }
        });
        held.unlock().await.unwrap();
        soon(leaving).await.unwrap();
        // A late answer is busy, since others wait.
        if let Some(guard) = soon(entering).await.unwrap().unwrap() {
            guard.check().expect("what was entered is held");
            guard.unlock().await.unwrap();
        }
        held = soon(next).await.unwrap();
    }
    drop(crowd);
    held.unlock().await.unwrap();
    clean(&server).await;
}
