//! `on_lost`, which reports lost holds to the application, and `stats`.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use watchlock::{Client, ClientBuilder, Lease, LostHold, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use super::{Log, unheard};
use crate::common::{LONG, SHORT, ms, soon, subscribed, without_polls};

#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<LostHold>>>);

impl Losses {
    fn of(&self, builder: ClientBuilder) -> ClientBuilder {
        let losses = self.clone();
        builder.on_lost(move |lost| losses.0.lock().push(lost.clone()))
    }

    async fn until(&self, count: usize) -> Vec<LostHold> {
        eventually("so many losses", LONG, async || {
            self.0.lock().len() >= count
        })
        .await;
        let mut losses = self.0.lock().clone();
        losses.sort_by(|one, other| one.name.cmp(&other.name));
        losses
    }
}

fn short(server: &RedisServer) -> ClientBuilder {
    Client::builder(&server.url()).watchdog_lease(SHORT)
}

/// The caller that gives the lock back and the keeper's job for the one who waits read the same answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_a_release_finds_is_reported_once() {
    const ROUNDS: usize = 60;
    let _unheard = unheard().await;
    let (server, losses) = (RedisServer::start(), Losses::default());
    let client = losses.of(without_polls(&server)).connect().await.unwrap();
    let lock = client.get_lock("gone");
    for _ in 0..ROUNDS {
        let guard = lock.lock().await.unwrap();
        let other = lock.clone();
        let waiter = tokio::spawn(async move { other.lock().await });
        subscribed(&server, "gone").await;
        // A hold is passed on inside its client for 10 ms. That they are over is the point.
        tokio::time::sleep(ms(30)).await;
        server.cmd(&["DEL", "gone"]).await;
        let released = tokio::spawn(guard.unlock()).await.unwrap();
        assert!(released.unwrap_err().is_lost());
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    assert_eq!(losses.until(ROUNDS).await.len(), ROUNDS);
    assert_eq!(client.stats().lost, ROUNDS as u64);
}

#[tokio::test]
async fn each_lost_hold_of_each_kind_is_reported_once() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let losses = Losses::default();
    let client = losses
        .of(short(&server).key_prefix("app:"))
        .connect()
        .await
        .unwrap();
    let guards = [
        client.get_fair_lock("fair").lock().await.unwrap(),
        client
            .get_fenced_lock("fenced")
            .lock()
            .await
            .unwrap()
            .into(),
        client.get_lock("plain").lock().await.unwrap(),
        client
            .get_read_write_lock("read")
            .read_lock()
            .lock()
            .await
            .unwrap(),
        client.get_simple_lock("simple").lock().await.unwrap(),
        client.get_spin_lock("spin").lock().await.unwrap(),
        client
            .get_read_write_lock("write")
            .write_lock()
            .lock()
            .await
            .unwrap()
            .into(),
    ];
    let inner = guards[2].reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(client.stats().holds, 7);
    server.cmd(&["FLUSHALL"]).await;
    let reported = losses.until(7).await;
    assert_eq!(client.stats().lost, 7);
    for lost in &reported {
        assert_eq!(lost.name, lost.kind);
        assert_eq!(lost.reason, LostReason::Missing);
        assert!(lost.held_for < LONG);
    }
    drop((inner, guards));

    let fixed = client.get_lock("a").lock_with_lease(ms(50)).await.unwrap();
    assert_eq!(soon(fixed.lost()).await, LostReason::Expired);
    let forced = client.get_lock("b").lock().await.unwrap();
    client.get_lock("b").force_unlock().await.unwrap();
    assert_eq!(soon(forced.lost()).await, LostReason::Forced);
    let late = client.get_lock("c").lock().await.unwrap();
    server.cmd(&["DEL", "app:c"]).await;
    assert!(late.unlock().await.is_err_and(|error| error.is_lost()));
    let reported = losses.until(10).await;
    let reasons = [LostReason::Expired, LostReason::Forced, LostReason::Missing];
    for (lost, reason) in reported.iter().zip(reasons) {
        assert_eq!(lost.reason, reason, "{lost:?}");
    }
    assert!(reported[0].held_for >= ms(40), "{:?}", reported[0]);

    // Two readers of one client are two holds.
    let both = client.get_read_write_lock("d").read_lock();
    let readers = [both.lock().await.unwrap(), both.lock().await.unwrap()];
    assert_eq!(client.stats().holds, 2);
    server.cmd(&["DEL", "app:d"]).await;
    losses.until(12).await;
    drop((fixed, forced, readers));

    let left = client.get_lock("e").lock().await.unwrap();
    soon(client.shutdown(Duration::ZERO)).await;
    assert!(left.unlock().await.is_err());
    drop(client);
    assert_eq!(losses.until(12).await.len(), 12, "a shutdown is no loss");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i8_a_callback_that_sleeps_for_a_lease_costs_no_hold() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let builder = short(&server).on_lost(|_| std::thread::sleep(SHORT + SHORT / 2));
    let client = builder.connect().await.unwrap();
    let kept = client.get_lock("kept").lock().await.unwrap();
    for name in ["one", "two"] {
        let lost = client.get_lock(name).lock().await.unwrap();
        server.cmd(&["DEL", name]).await;
        soon(lost.lost()).await;
    }
    let lost = tokio::time::timeout(SHORT * 2, kept.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    kept.unlock().await.unwrap();
    assert_eq!(client.stats().lost, 2);
    soon(client.shutdown(LONG)).await;
}

#[tokio::test]
async fn a_callback_that_panics_is_logged_and_called_again() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let losses = Losses::default();
    let heard = losses.clone();
    let builder = short(&server).on_lost(move |lost| {
        heard.0.lock().push(lost.clone());
        assert!(lost.name != "bad", "the application's bug");
    });
    let client = builder.connect().await.unwrap();
    for name in ["bad", "good"] {
        let guard = client.get_lock(name).lock().await.unwrap();
        server.cmd(&["DEL", name]).await;
        soon(guard.lost()).await;
    }
    assert_eq!(losses.until(2).await.len(), 2);
    eventually("it is logged", LONG, async || {
        log.count(tracing::Level::ERROR, &["on_lost panicked", "bad"]) == 1
    })
    .await;
}

/// The runtime of the test has one thread, which stands still.
#[tokio::test]
async fn the_alarm_goes_off_while_runtime_and_log_are_blocked() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let losses = Losses::default();
    let client = losses.of(short(&server)).connect().await.unwrap();
    let guard = client.get_lock("x").lock_with_lease(ms(100)).await.unwrap();
    log.block(true);
    let since = std::time::Instant::now();
    while losses.0.lock().is_empty() && since.elapsed() < LONG {
        std::thread::sleep(ms(1));
    }
    assert_eq!(losses.0.lock()[0].reason, LostReason::Expired);
    log.block(false);
    drop(guard);
}

#[tokio::test]
async fn stats_show_what_is_held_what_waits_and_what_fails() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url())
        .watchdog_lease(SHORT)
        .command_timeout(ms(100));
    let client = builder.connect().await.unwrap();
    let calm = client.stats();
    assert!(calm.connected && !calm.polling, "{calm:?}");
    assert_eq!(
        (calm.holds, calm.waiters, calm.lost, calm.failing_for),
        (0, 0, 0, None)
    );
    let guard = client.get_lock("x").lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = client.get_lock("x");
        async move { lock.lock().await }
    });
    eventually("it waits", LONG, async || {
        (client.stats().holds, client.stats().waiters) == (1, 1)
    })
    .await;
    eventually("it listens", LONG, async || {
        !server.channels().await.is_empty()
    })
    .await;
    proxy.refuse();
    proxy.reset_all();
    eventually("all is down", LONG, async || {
        let stats = client.stats();
        stats.polling && stats.failing_for.is_some() && !stats.connected
    })
    .await;
    waiting.abort();
    drop(guard);
    eventually("the release is repeated", LONG, async || {
        let stats = client.stats();
        stats.unreleased == 1 && stats.waiters == 0 && stats.holds == 0
    })
    .await;
    proxy.accept();
    eventually("all is well", LONG, async || {
        let stats = client.stats();
        stats.unreleased == 0 && !stats.polling && stats.connected
    })
    .await;
    let guard = client.get_lock("x").lock().await.unwrap();
    eventually("renewals work", LONG, async || {
        client.stats().failing_for.is_none()
    })
    .await;
    guard.unlock().await.unwrap();
    soon(client.shutdown(LONG)).await;
    let over = client.stats();
    assert_eq!(
        (over.holds, over.waiters, over.unreleased),
        (0, 0, 0),
        "{over:?}"
    );
}

/// The last hold is given up during an outage, so no renewal shows that it is over.
#[tokio::test]
async fn what_is_held_no_more_does_not_fail_for_ever() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url())
        .watchdog_lease(SHORT)
        .command_timeout(ms(100));
    let client = builder.connect().await.unwrap();
    let guard = client.get_lock("x").lock().await.unwrap();
    proxy.refuse();
    proxy.reset_all();
    eventually("renewals fail", LONG, async || {
        client.stats().failing_for.is_some()
    })
    .await;
    drop(guard);
    proxy.accept();
    eventually("nothing fails", LONG / 3, async || {
        client.stats().failing_for.is_none()
    })
    .await;
}

/// A place in a fair queue is given back by a release that finds no hold. That is no loss.
#[tokio::test]
async fn a_wait_that_ends_without_a_grant_is_no_loss() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let losses = Losses::default();
    let holder = Client::connect(&server.url()).await.unwrap();
    let waiter = losses.of(short(&server)).connect().await.unwrap();
    let held = holder.get_fair_lock("line").lock().await.unwrap();
    for _ in 0..3 {
        let lock = waiter.get_fair_lock("line");
        assert!(lock.try_lock(ms(50), LONG).await.unwrap().is_none());
    }
    eventually("no place is left", LONG, async || {
        server.keys().await == ["line"]
    })
    .await;
    held.unlock().await.unwrap();
    // A real loss comes behind whatever was reported before.
    let lost = waiter.get_lock("lost").lock().await.unwrap();
    assert!(holder.get_lock("lost").force_unlock().await.unwrap());
    let reported = losses.until(1).await;
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(reported[0].name, "lost");
    drop(lost);
}

#[tokio::test]
async fn a_permit_is_a_hold_of_the_kind_semaphore() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let losses = Losses::default();
    let client = losses.of(short(&server)).connect().await.unwrap();
    let permit = client.get_semaphore("permits").with_permits(3);
    let permit = permit.acquire_many(2).await.unwrap();
    assert_eq!(client.stats().holds, 1);
    server.cmd(&["DEL", "permits"]).await;
    let reported = losses.until(1).await;
    assert_eq!((reported[0].kind, reported.len()), ("semaphore", 1));
    drop(permit);
}
