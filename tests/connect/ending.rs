//! Shutdown, and the end of the last clone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::task::spawn_blocking;
use watchlock::{Client, Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, connect, ms, poll_once, script, soon, subscribed};

async fn ends(server: &RedisServer) {
    eventually("no key, no channel, no connection", LONG, async || {
        server.connections().await == 0 && server.keys().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_client_that_holds_nothing_is_shut_down_at_once() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let started = Instant::now();
    soon(client.shutdown(LONG * 10)).await;
    assert!(started.elapsed() < LONG);
    let lock = client.get_lock("closed");
    assert!(matches!(lock.lock().await, Err(Error::Closed)));
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(matches!(tried, Err(Error::Closed)));
    assert!(matches!(lock.is_locked().await, Err(Error::Closed)));
    assert!(matches!(lock.force_unlock().await, Err(Error::Closed)));
    assert!(matches!(
        lock.remain_time_to_live().await,
        Err(Error::Closed)
    ));
    ends(&server).await;
}

#[tokio::test]
async fn a_shutdown_is_announced_and_holds_stay_good_until_they_are_given_back() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).watchdog_lease(ms(900));
    let client = builder.connect().await.unwrap();
    let guard = client.get_lock("good").lock().await.unwrap();
    let closing = client.clone();
    let shutdown = tokio::spawn(async move { closing.shutdown(LONG * 10).await });
    soon(client.shutting_down()).await;

    let lost = poll_once(&mut Box::pin(guard.lost())).await;
    assert!(lost.is_none(), "it is not lost yet: {lost:?}");
    assert!(guard.is_valid() && guard.check().is_ok());
    let refused = client.get_lock("new").lock().await;
    assert!(matches!(refused, Err(Error::Closed)));
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    assert!(client.get_lock("good").is_locked().await.unwrap());
    // Longer than the lease: the hold is still renewed.
    tokio::time::sleep(ms(1_500)).await;
    assert!(guard.is_valid() && server.exists("good").await);
    inner.unlock().await.unwrap();
    assert!(!shutdown.is_finished());
    guard.unlock().await.unwrap();
    soon(shutdown).await.unwrap();
    ends(&server).await;
}

/// Its caller gets its answer at once, without waiting for the server; so does a caller that asks to share a hold.
#[tokio::test]
async fn a_try_that_is_on_its_way_is_ended_by_a_shutdown() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).watchdog_lease(LONG * 10);
    let builder = builder.command_timeout(LONG * 2);
    let client = builder.connect().await.unwrap();
    let reading = client.get_read_write_lock("shared").read_lock();
    let holding = reading.lock_with_lease(LONG).await.unwrap();
    let (lock, more) = (client.get_lock("asked"), reading.lock_with_lease(LONG * 5));
    let (mut asking, mut joining) = (Box::pin(lock.lock()), Box::pin(more));
    server.freeze();
    assert!(poll_once(&mut asking).await.is_none() && poll_once(&mut joining).await.is_none());
    let closing = client.clone();
    let shutdown = tokio::spawn(async move { closing.shutdown(LONG * 10).await });
    assert!(matches!(soon(asking).await, Err(Error::Closed)));
    assert!(matches!(soon(joining).await, Err(Error::Closed)));
    assert!(!shutdown.is_finished());
    server.resume();
    holding.unlock().await.unwrap();
    soon(shutdown).await.unwrap();
    ends(&server).await;
}

#[tokio::test]
async fn a_hold_beyond_the_time_out_is_lost_and_released() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("late").lock().await.unwrap();
    let view = guard.hold();
    soon(client.shutdown(ms(100))).await;
    assert!(!guard.is_valid() && !view.is_valid());
    let reason = LostReason::Shutdown;
    assert!(matches!(view.check(), Err(Error::Lost { reason: r, .. }) if r == reason));
    assert_eq!(soon(guard.lost()).await, reason);
    assert!(guard.reenter(Lease::Watchdog).await.is_err());
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: r, .. }) if r == reason));
    ends(&server).await;
}

/// Its caller gets its answer when the client ends, though the server never answers.
#[tokio::test]
async fn an_unlock_that_is_on_its_way_ends_with_its_client() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    let guard = client.get_lock("given back").lock().await.unwrap();
    server.freeze();
    let mut unlocking = Box::pin(guard.unlock());
    assert!(poll_once(&mut unlocking).await.is_none());
    let report = soon(client.shutdown(ms(100))).await;
    assert_eq!(report.unreleased, ["given back"]);
    let ended = soon(unlocking).await;
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    server.resume();
}

/// `Closed` comes before `Lost`: no lock can be taken through this client any more.
#[tokio::test]
async fn an_owner_whose_client_has_ended_answers_closed() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("late");
    let guard = lock.lock().await.unwrap();
    soon(client.shutdown(ms(100))).await;
    assert!(matches!(soon(lock.lock()).await, Err(Error::Closed)));
    let tried = soon(lock.try_lock(Duration::ZERO, Lease::Watchdog)).await;
    assert!(matches!(tried, Err(Error::Closed)));
    drop(guard);
    ends(&server).await;
}

#[tokio::test]
async fn a_shutdown_reports_the_holds_that_were_left() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).key_prefix("app:");
    let client = builder.connect().await.unwrap();
    let late = client.get_lock("late").lock().await.unwrap();
    let other = client.get_lock("other").lock().await.unwrap();
    drop(client.get_lock("early").lock().await.unwrap());
    let report = soon(client.shutdown(ms(100))).await;
    let mut held = report.held.clone();
    held.sort();
    assert_eq!(held, ["late", "other"]);
    assert!(report.unreleased.is_empty() && !report.is_clean());
    assert!(late.check().is_err() && other.check().is_err());
    ends(&server).await;
    assert!(
        soon(client.shutdown(LONG)).await.is_clean(),
        "reported once"
    );
}

#[tokio::test]
async fn a_shutdown_reports_releases_that_redis_did_not_confirm() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let held = client.get_lock("held").lock().await.unwrap();
    let given_back = client.get_lock("given back").lock().await.unwrap();
    server.freeze();
    drop(given_back);
    let report = soon(client.shutdown(ms(100))).await;
    assert_eq!(report.held, ["held"]);
    let mut unreleased = report.unreleased.clone();
    unreleased.sort();
    assert_eq!(unreleased, ["given back", "held"]);
    drop(held);
    server.resume();
}

#[tokio::test]
async fn a_shutdown_in_time_leaves_nothing() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("soon").lock().await.unwrap();
    let shutdown = client.shutdown(LONG);
    let giving_back = async {
        client.shutting_down().await;
        guard.unlock().await
    };
    let (report, unlocked) = soon(async { tokio::join!(shutdown, giving_back) }).await;
    unlocked.unwrap();
    assert!(report.is_clean(), "{report:?}");
    ends(&server).await;
}

#[tokio::test]
async fn a_shutdown_ends_every_wait() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = connect(&server).await;
    let guard = holder.get_lock("wait").lock().await.unwrap();
    let lock = client.get_lock("wait");
    let mut waiters: Vec<_> = (0..3).map(|_| Box::pin(lock.lock())).collect();
    for waiter in &mut waiters {
        assert!(poll_once(waiter).await.is_none());
    }
    subscribed(&server, "wait").await;
    soon(client.shutdown(LONG)).await;
    for waiter in waiters {
        assert!(matches!(soon(waiter).await, Err(Error::Closed)));
    }
    guard.unlock().await.unwrap();
    drop(holder);
    drop(client);
    ends(&server).await;
}

#[tokio::test]
async fn a_body_may_finish_during_a_shutdown() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("body");
    let closing = client.clone();
    let value = lock
        .run(async |guard| {
            let shutdown = tokio::spawn(async move { closing.shutdown(LONG).await });
            client.shutting_down().await;
            assert!(guard.is_valid());
            (shutdown, 7)
        })
        .await;
    let (shutdown, value) = value.unwrap();
    assert_eq!(value, 7);
    soon(shutdown).await.unwrap();
    ends(&server).await;
}

#[tokio::test]
async fn a_client_ends_with_waiters_that_are_dropped() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let guard = holder.get_lock("nobody").lock().await.unwrap();
    {
        let client = connect(&server).await;
        let lock = client.get_lock("nobody");
        let mut waiter = Box::pin(lock.lock());
        assert!(poll_once(&mut waiter).await.is_none());
        subscribed(&server, "nobody").await;
    }
    eventually("nobody listens", LONG, async || {
        server.channels().await.is_empty()
    })
    .await;
    guard.unlock().await.unwrap();
    drop(holder);
    ends(&server).await;
}

/// A reader that comes while the client ends leaves no level behind in the shared hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_readers_do_not_delay_a_shutdown() {
    let server = RedisServer::start();
    for _ in 0..40 {
        let client = connect(&server).await;
        let lock = client.get_read_write_lock("read").read_lock();
        let held = lock.lock().await.unwrap();
        let read = Arc::new(AtomicU64::new(0));
        let reading = spawn_blocking({
            let (lock, read, runtime) = (lock.clone(), Arc::clone(&read), Handle::current());
            // Most of these enter without a command.
            move || loop {
                match runtime.block_on(lock.lock()) {
                    Ok(guard) => drop(guard),
                    Err(error) => return error,
                }
                read.fetch_add(1, Ordering::Relaxed);
            }
        });
        eventually("they come", LONG, async || {
            read.load(Ordering::Relaxed) > 100
        })
        .await;
        let closing = client.clone();
        let shutdown = tokio::spawn(async move { closing.shutdown(LONG * 10).await });
        assert!(matches!(soon(reading).await.unwrap(), Error::Closed));
        held.unlock().await.unwrap();
        let report = soon(shutdown).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}

/// A runtime whose tasks run only inside `block_on`.
fn resting() -> tokio::runtime::Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Its command, and the answer, are on a connection of a runtime that rests.
#[test]
fn i9_an_unlock_that_was_dropped_is_completed_at_the_end_of_the_client() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (home, look) = (resting(), resting());
    for _ in 0..3 {
        let client = home.block_on(Client::connect(&proxy.url())).unwrap();
        let lock = client.get_lock("hour");
        let guard = home.block_on(lock.lock_with_lease(LONG * 720)).unwrap();
        let mut unlocking = Box::pin(guard.unlock());
        assert!(home.block_on(poll_once(&mut unlocking)).is_none());
        drop(unlocking);
        drop(lock);
        // Outside of a runtime this waits for the keeper.
        drop(client);
        assert!(!look.block_on(server.exists("hour")));
    }
}

#[test]
fn i9_an_acquire_that_was_dropped_is_undone_at_the_end_of_the_client() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (home, look) = (resting(), resting());
    for _ in 0..3 {
        let client = home.block_on(Client::connect(&proxy.url())).unwrap();
        let warm = client.get_lock("warm");
        home.block_on(async { warm.lock().await.unwrap().unlock().await.unwrap() });
        let lock = client.get_lock("hour");
        proxy.hold(Direction::Replies);
        let mut taking = Box::pin(lock.lock_with_lease(LONG * 720));
        home.block_on(async {
            assert!(poll_once(&mut taking).await.is_none());
            eventually("it is taken", LONG, async || server.exists("hour").await).await;
        });
        drop(taking);
        drop((lock, warm));
        proxy.heal();
        drop(client);
        assert!(!look.block_on(server.exists("hour")));
    }
}

/// As much as the keeper does in one go: the guards of thousands of holds, and the last handle.
#[test]
fn i7_thousands_of_guards_that_were_dropped_are_released_at_the_end_of_the_client() {
    let server = RedisServer::start();
    let (home, look) = (resting(), resting());
    // Thousands at once take a second on a slow machine.
    let client = Client::builder(&server.url()).command_timeout(LONG);
    let client = home.block_on(client.connect()).unwrap();
    let taken: Vec<_> = home.block_on(async {
        let taking = (0..5_000).map(|i| {
            let lock = client.get_lock(&format!("hold-{i}"));
            async move { lock.lock_with_lease(LONG * 720).await.unwrap() }
        });
        futures_util::future::join_all(taking).await
    });
    drop(taken);
    drop(client);
    assert_eq!(look.block_on(server.keys()), Vec::<String>::new());
}

/// Nobody holds it, and its key may stay.
#[tokio::test]
async fn a_shutdown_reports_attempts_that_redis_has_not_taken_back() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let before = client.get_lock("before").lock().await.unwrap();
    before.unlock().await.unwrap();
    proxy.hold(Direction::Replies);
    let lock = client.get_lock("attempted");
    let tries = tokio::spawn(async move { lock.try_lock(ms(10), Lease::Watchdog).await });
    eventually("it is sent", LONG, async || !server.keys().await.is_empty()).await;
    let tried = soon(tries).await.unwrap();
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    let report = soon(client.shutdown(Duration::ZERO)).await;
    assert_eq!(report.unreleased, ["attempted"]);
}

/// The first release finds nothing, because the acquire runs behind it.
#[tokio::test]
async fn a_shutdown_reports_an_attempt_that_ran_behind_its_release() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let before = client.get_lock("before").lock().await.unwrap();
    before.unlock().await.unwrap();
    let of = |name| Match::script(&script(name)).and(Match::key("attempted"));
    let late = Fault::DelayRequest(LONG);
    let late = proxy.inject(late).on(of("lock/acquire.lua")).arm();
    let lock = client.get_lock("attempted");
    let tries = tokio::spawn(async move { lock.try_lock(ms(10), Lease::Watchdog).await });
    eventually("it is sent", LONG, async || late.fired() > 0).await;
    let tried = soon(tries).await.unwrap();
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    let repeats = proxy
        .inject(Fault::SwallowRequest)
        .on(of("lock/release.lua"))
        .nth(2)
        .always()
        .arm();
    let report = soon(client.shutdown(Duration::ZERO)).await;
    assert!(repeats.fired() > 0);
    assert_eq!(report.unreleased, ["attempted"]);
}

/// Far away, the end of the client comes before the repeats of that release are answered.
#[tokio::test]
async fn a_shutdown_does_not_report_what_redis_has_taken_back() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).command_timeout(ms(2_000));
    let client = builder.connect().await.unwrap();
    let before = client.get_lock("before").lock().await.unwrap();
    before.unlock().await.unwrap();
    // Its first answer is lost, so an acquire of it might still run behind its release.
    let acquire = Match::command("EVALSHA").and(Match::key("doubted"));
    let lost = proxy.inject(Fault::ResetAfter).on(acquire).arm();
    let guard = soon(client.get_lock("doubted").lock()).await.unwrap();
    assert_eq!(lost.fired(), 1);
    proxy.latency(ms(1_100));
    let report = soon(client.shutdown(Duration::ZERO)).await;
    assert_eq!(report.held, ["doubted"]);
    assert!(report.unreleased.is_empty(), "{report:?}");
    assert!(!server.exists("doubted").await);
    drop(guard);
}
