//! Spin locks: the plain lock of that name, whose waiters poll by a backoff of their own and listen to nothing.

use std::time::Duration;

use watchlock::{Backoff, Client, ConfigError, Error, Lease, Lock, LockGuard, SpinLock};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, count, ms, poll_once, soon, subscribed, without_polls};

/// Longer than a test waits: a waiter that gets in earlier did not poll.
fn rare() -> Backoff {
    Backoff::new().base(ms(60_000)).cap(ms(60_000))
}

fn waiting(lock: SpinLock) -> tokio::task::JoinHandle<Result<LockGuard, Error>> {
    tokio::spawn(async move { lock.lock().await })
}

#[tokio::test]
async fn a_spin_waiter_polls_and_subscribes_to_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    // The client's own polls would come once a minute.
    let builder = Client::builder(&proxy.url()).backoff(rare());
    let client = builder.connect().await.unwrap();
    let guard = holder
        .get_lock("spin")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
    let waiter = waiting(client.get_spin_lock("spin"));
    let polls = || proxy.commands().get("EVALSHA").copied().unwrap_or(0);
    eventually("it polls", LONG, async || polls() > 20).await;
    assert!(!proxy.commands().contains_key("SUBSCRIBE"));
    assert!(server.channels().await.is_empty());
    guard.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn polls_come_more_and_more_rarely_up_to_the_cap() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    let guard = holder
        .get_lock("rare")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
    let growing = Backoff::new().base(ms(1)).factor(10.0).cap(ms(60_000));
    let lock = client.get_spin_lock_with("rare", growing);
    let busy = lock.try_lock(ms(900), Lease::Watchdog).await.unwrap();
    assert!(busy.is_none());
    // At the call, and after at most 1, 10, 100 and 1000 ms, of which the last may not have come.
    let polls = proxy.commands()["EVALSHA"];
    assert!(polls <= 7, "{polls}");
    guard.unlock().await.unwrap();
}

/// A lease that ends later than the previous answer said: somebody else has the lock, or it was renewed.
#[tokio::test]
async fn while_the_lock_changes_hands_polls_do_not_become_rarer() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    server.cmd(&["HSET", "busy", "stranger:1", "1"]).await;
    server.cmd(&["PEXPIRE", "busy", "60000"]).await;
    // 1, 10, 100, 1000, … ms: six polls in the time of a test.
    let growing = Backoff::new().base(ms(1)).factor(10.0).cap(ms(60_000));
    let waiter = waiting(client.get_spin_lock_with("busy", growing.jitter(false)));
    let polls = || proxy.commands().get("EVALSHA").copied().unwrap_or(0);
    let mut lease_ms = 60_000;
    eventually("it polls", LONG, async || {
        lease_ms += 100;
        server
            .cmd(&["PEXPIRE", "busy", &lease_ms.to_string()])
            .await;
        polls() > 40
    })
    .await;
    server.cmd(&["DEL", "busy"]).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// A waiter that polls hears of no release, so others cannot use an answer that it got a while ago.
#[tokio::test]
async fn one_try_behind_a_spin_waiter_that_polls_rarely_asks() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    for spins in [false, true] {
        let client = without_polls(&server).connect().await.unwrap();
        let guard = holder
            .get_lock("rare")
            .lock_with_lease(LONG * 4)
            .await
            .unwrap();
        let asked = server.calls_of("evalsha").await;
        let waiter = waiting(client.get_spin_lock_with("rare", rare()));
        eventually("it got its answer", LONG, async || {
            server.calls_of("evalsha").await > asked
        })
        .await;
        let lock: Box<dyn Lock> = if spins {
            Box::new(client.get_spin_lock("rare"))
        } else {
            Box::new(client.get_lock("rare"))
        };
        let once = async || lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        assert!(soon(once()).await.unwrap().is_none(), "it is held");
        guard.unlock().await.unwrap();
        // The waiter may get it instead, as it came first.
        let got = soon(once()).await.unwrap();
        drop(got);
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    clean(&server).await;
}

/// Redisson's release publishes nothing, and listening waiters sleep until the lease ends.
#[tokio::test]
async fn i5_the_release_of_a_spin_lock_wakes_listening_waiters() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let guard = holder.get_spin_lock("x");
    let guard = guard.lock_with_lease(LONG * 4).await.unwrap();
    let lock = client.get_lock("x");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "x").await;
    guard.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_release_of_this_client_lets_the_next_one_in_at_once() {
    let server = RedisServer::start();
    let client = without_polls(&server).connect().await.unwrap();
    let lock = client.get_spin_lock_with("here", rare());
    let guard = lock.lock_with_lease(LONG * 4).await.unwrap();
    let waiters: Vec<_> = (0..3).map(|_| waiting(lock.clone())).collect();
    guard.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    assert!(server.channels().await.is_empty());
    clean(&server).await;
}

#[tokio::test]
async fn a_spin_waiter_gets_in_when_the_holders_lease_ends() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let guard = holder
        .get_lock("ends")
        .lock_with_lease(ms(800))
        .await
        .unwrap();
    guard.let_expire().unwrap();
    let waiter = waiting(client.get_spin_lock_with("ends", rare()));
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_listening_waiter_behind_a_spin_waiter_is_woken_and_so_is_that_one() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let guard = holder
        .get_lock("both")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
    let spin = waiting(client.get_spin_lock_with("both", rare()));
    let plain = client.get_lock("both");
    let plain = tokio::spawn(async move { plain.lock().await });
    subscribed(&server, "both").await;
    guard.unlock().await.unwrap();
    for waiter in [spin, plain] {
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn i5_a_rare_spin_waiter_does_not_slow_the_polls_of_listening_waiters_behind_it() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    server.cmd(&["HSET", "slow", "somebody:1", "1"]).await;
    let spin = waiting(client.get_spin_lock_with("slow", rare()));
    let plain = client.get_lock("slow");
    let plain = tokio::spawn(async move { plain.lock().await });
    subscribed(&server, "slow").await;
    server.cmd(&["DEL", "slow"]).await;
    for waiter in [spin, plain] {
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
}

type Waits = std::pin::Pin<Box<dyn Future<Output = Result<LockGuard, Error>>>>;

/// A waiter in the queue, polled once.
async fn queued(lock: impl Lock + 'static) -> Waits {
    let mut waits: Waits = Box::pin(async move { lock.lock().await });
    assert!(poll_once(&mut waits).await.is_none());
    waits
}

/// A rare spin waiter whose next poll is at least half a minute away, and a plain waiter that comes then.
async fn late(client: &Client, name: &str) -> [Waits; 2] {
    let lock = client.get_spin_lock_with(name, rare());
    let mut spin = queued(lock.clone()).await;
    let behind = async { lock.try_lock(ms(300), Lease::Watchdog).await };
    let behind = tokio::select! {
        behind = behind => behind,
        _ = &mut spin => panic!("it is held"),
    };
    assert!(behind.unwrap().is_none(), "so long it waits already");
    [spin, queued(client.get_lock(name)).await]
}

#[tokio::test]
async fn i5_the_client_subscribes_at_once_for_a_waiter_behind_a_rare_spin_waiter() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let guard = holder
        .get_lock("late")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
    let waiters = late(&client, "late").await;
    subscribed(&server, "late").await;
    guard.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap().unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn i5_a_waiter_behind_a_rare_spin_waiter_that_may_not_listen_polls_at_its_own_pace() {
    let server = RedisServer::start();
    let rights = ["reset", "on", ">secret", "~*", "resetchannels", "+@all"];
    let user = [&["ACL", "SETUSER", "deaf"], &rights[..]].concat();
    server.cmd(&user).await;
    let url = server.url().replace("//", "//deaf:secret@");
    let client = Client::connect(&url).await.unwrap();
    server.cmd(&["HSET", "deaf", "somebody:1", "1"]).await;
    let waiters = late(&client, "deaf").await;
    server.cmd(&["DEL", "deaf"]).await;
    for waiter in waiters {
        let polled = tokio::time::timeout(LONG / 3, waiter).await;
        let guard = polled.expect("by the polls of the waiter behind");
        guard.unwrap().unlock().await.unwrap();
    }
}

#[tokio::test]
async fn an_owner_enters_its_plain_hold_by_a_spin_handle() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let (plain, spin) = (owner.get_lock("one"), owner.get_spin_lock("one"));
    let outer = plain.lock().await.unwrap();
    let inner = spin.lock().await.unwrap();
    assert_eq!((plain.hold_count(), spin.hold_count()), (2, 2));
    assert_eq!(count(&server, "one").await, 2);
    let other = client.get_spin_lock("one");
    let busy = other.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(busy.unwrap().is_none());
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_backoff_out_of_its_ranges_is_refused_by_every_verb_before_anything_is_sent() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    server.reset_calls().await;
    let good = Backoff::new();
    let bad = [
        good.base(Duration::ZERO),
        good.cap(Duration::ZERO),
        good.cap(Duration::MAX),
        good.base(ms(2_000)),
        good.factor(0.5),
        good.factor(f64::NAN),
    ];
    for backoff in bad {
        let owner = client.new_owner();
        let locks = [
            client.get_spin_lock_with("bad", backoff),
            owner.get_spin_lock_with("bad", backoff),
        ];
        for lock in locks {
            let refused = [
                lock.lock().await.map(drop),
                lock.is_locked().await.map(drop),
                lock.force_unlock().await.map(drop),
            ];
            for refused in refused {
                let typed = matches!(refused, Err(Error::Config(ConfigError::OutOfRange { .. })));
                assert!(typed, "{backoff:?}: {refused:?}");
            }
            assert_eq!(lock.name(), "bad");
        }
    }
    assert_eq!(server.calls_of("evalsha").await, 0);
    assert!(server.keys().await.is_empty());
}

/// When the waiter ahead left, its next poll was planned at least half a minute ahead.
#[tokio::test]
async fn i5_a_polling_waiter_behind_a_rare_spin_waiter_that_gives_up_has_its_own_pace() {
    let server = RedisServer::start();
    let (holder, client) = (connect(&server).await, connect(&server).await);
    let guard = holder
        .get_lock("pace")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
    let mut rarely = queued(client.get_spin_lock_with("pace", rare())).await;
    let lock = client.get_spin_lock("pace");
    let behind = async { lock.try_lock(ms(300), Lease::Watchdog).await };
    let behind = tokio::select! {
        behind = behind => behind,
        _ = &mut rarely => panic!("it is held"),
    };
    assert!(behind.unwrap().is_none(), "so long it waits already");
    let waits = queued(lock.clone()).await;
    guard.unlock().await.unwrap();
    drop(rarely);
    let polled = tokio::time::timeout(LONG / 3, waits).await;
    let guard = polled.expect("by its own polls");
    guard.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// A try that has to ask leaves no answer from which the next one could return busy.
#[tokio::test]
async fn two_tries_behind_a_spin_waiter_that_polls_rarely_ask() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = Client::builder(&proxy.url()).backoff(minute);
    let client = builder.command_timeout(LONG).connect().await.unwrap();
    let guard = holder
        .get_lock("two")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
    let mut spin = queued(client.get_spin_lock_with("two", rare())).await;
    // When this one has given up, the first one has heard that the lock is busy.
    let quick = client.get_spin_lock_with("two", rare());
    let behind = async { quick.try_lock(ms(300), Lease::Watchdog).await };
    let behind = tokio::select! {
        behind = behind => behind,
        _ = &mut spin => panic!("it is held"),
    };
    assert!(behind.unwrap().is_none());
    guard.unlock().await.unwrap();
    proxy.hold(Direction::Requests);
    let lock = client.get_lock("two");
    let mut first = Box::pin(lock.try_lock(Duration::ZERO, Lease::Watchdog));
    let mut second = Box::pin(lock.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut first).await.is_none());
    assert!(poll_once(&mut second).await.is_none(), "nobody knows");
    drop((spin, first));
    proxy.heal();
    let got = soon(second).await.unwrap().expect("the lock is free");
    got.unlock().await.unwrap();
}
