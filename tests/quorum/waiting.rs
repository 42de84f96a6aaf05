//! Waiting: woken by the nodes, in turn, and never in vain.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use watchlock::{Backoff, Clock, Error, Lease, QuorumBuilder, QuorumLock, Ttl};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, ms, poll_once, soon, subscribed};
use crate::{Five, end, of, try_once};

/// Polls once a minute: whatever happens sooner was not a poll. So it must hear the answers of all nodes, also on a machine
/// that stands still for a moment.
fn without_polls(five: &Five) -> QuorumBuilder {
    let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    five.builder().node_timeout(ms(5_000)).backoff(minute)
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_nodes() {
    let five = Five::start();
    let (quorum, other) = (
        five.connect().await,
        without_polls(&five).connect().await.unwrap(),
    );
    for round in 0..3 {
        let guard = quorum.get_lock("x").lock().await.unwrap();
        let lock = other.get_lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        for server in &five.0 {
            subscribed(server, "x").await;
        }
        end(guard).await;
        let got = tokio::time::timeout(LONG, waiting).await;
        end(got
            .unwrap_or_else(|_| panic!("round {round}"))
            .unwrap()
            .unwrap())
        .await;
    }
    five.clean().await;
}

#[tokio::test]
async fn a_waiter_is_woken_by_one_node_when_the_others_send_nothing() {
    let five = Five::start();
    let (quorum, other) = (
        five.connect().await,
        without_polls(&five).connect().await.unwrap(),
    );
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    let lock = other.get_lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    for server in &five.0 {
        subscribed(server, "x").await;
    }
    for server in [0, 1, 2, 3] {
        let heard = five.0[server]
            .cmd(&["CLIENT", "KILL", "TYPE", "pubsub"])
            .await;
        drop(heard);
    }
    end(guard).await;
    end(soon(waiting).await.unwrap().unwrap()).await;
}

#[tokio::test]
async fn local_waiters_come_in_turn_and_one_at_a_time() {
    let five = Five::start();
    let quorum = five.connect().await;
    let inside = Arc::new(AtomicU32::new(0));
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let first = quorum.get_lock("x").lock().await.unwrap();
    let mut tasks = Vec::new();
    for number in 0..8 {
        let lock = quorum.get_lock("x");
        let mut waiting = Box::pin(async move { lock.lock().await });
        assert!(poll_once(&mut waiting).await.is_none());
        let (inside, order) = (Arc::clone(&inside), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = waiting.await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            order.lock().push(number);
            tokio::time::sleep(ms(2)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            end(guard).await;
        }));
    }
    end(first).await;
    for done in soon(join_all(tasks)).await {
        done.unwrap();
    }
    assert_eq!(*order.lock(), (0..8).collect::<Vec<_>>());
    five.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_that_want_one_lock_all_get_it() {
    let five = Five::start();
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let quorum = five.connect().await;
        for _ in 0..3 {
            let (quorum, inside) = (quorum.clone(), Arc::clone(&inside));
            tasks.push(tokio::spawn(async move {
                for _ in 0..6 {
                    let guard = quorum.get_lock("x").lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    end(guard).await;
                }
            }));
        }
    }
    let all = tokio::time::timeout(LONG * 2, join_all(tasks)).await;
    for done in all.expect("everybody gets it") {
        done.unwrap();
    }
    five.clean().await;
}

#[tokio::test]
async fn a_wait_ends_in_time_and_says_busy() {
    let five = Five::start();
    let (quorum, other) = (five.connect().await, five.connect().await);
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    for lock in [quorum.get_lock("x"), other.get_lock("x")] {
        let waited = lock.try_lock(ms(200), Lease::Watchdog);
        assert!(soon(waited).await.unwrap().is_none());
    }
    end(guard).await;
    five.clean().await;
}

/// A caller that is polled so often, and goes away.
async fn comes_and_goes(lock: &QuorumLock, polls: u32) {
    let mut acquiring = Box::pin(lock.lock());
    for _ in 0..polls {
        if let Some(got) = poll_once(&mut acquiring).await {
            return drop(got.unwrap());
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn callers_that_go_away_leave_nothing() {
    let five = Five::start();
    let quorum = five.connect().await;
    let lock = quorum.get_lock("x");
    for polls in 0..12 {
        comes_and_goes(&lock, polls).await;
        let guard = soon(lock.lock()).await.unwrap();
        end(guard).await;
    }
    five.clean().await;
}

/// What it has begun is finished in the background, and undone.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing_though_nobody_comes_after_it() {
    let five = Five::start();
    let quorum = five.connect().await;
    for polls in 1..12 {
        comes_and_goes(&quorum.get_lock(&format!("x{polls}")), polls).await;
    }
    five.clean().await;
}

/// A single try beside a round that gets the lock learns it from that round: nobody can subscribe here, and with a poll
/// once a minute, and a command time-out as long, nothing else would report it in time.
#[tokio::test]
async fn local_tries_hear_that_somebody_else_got_it() {
    let five = Five::start();
    let patient = without_polls(&five).command_timeout(ms(60_000));
    let quorum = patient.connect().await.unwrap();
    for server in &five.0 {
        server
            .cmd(&["ACL", "SETUSER", "default", "resetchannels"])
            .await;
    }
    let lock = quorum.get_lock("x");
    let mut first = Box::pin(lock.lock());
    assert!(poll_once(&mut first).await.is_none());
    let mut beside = Box::pin(lock.try_lock(Duration::ZERO, Lease::Watchdog));
    assert!(poll_once(&mut beside).await.is_none());
    let guard = soon(first).await.unwrap();
    assert!(soon(beside).await.unwrap().is_none());
    end(guard).await;
    five.clean().await;
}

#[tokio::test]
async fn a_caller_that_is_not_polled_holds_nobody_up() {
    let five = Five::start();
    let quorum = five
        .builder()
        .command_timeout(ms(800))
        .connect()
        .await
        .unwrap();
    let lock = quorum.get_lock("x");
    // It has begun its round, and is left there.
    let mut stuck = Box::pin(lock.lock());
    assert!(poll_once(&mut stuck).await.is_none());
    let next = quorum.get_lock("x");
    let guard = soon(next.lock()).await.unwrap();
    end(guard).await;
    // Polled again, it goes on where it was.
    end(soon(stuck).await.unwrap()).await;
    five.clean().await;
}

/// A command time-out for each of them would be too long for the test.
#[tokio::test]
async fn callers_that_are_not_polled_delay_the_next_one_for_a_moment_each() {
    let five = Five::start();
    let patient = five.builder().command_timeout(LONG / 3);
    let quorum = patient.connect().await.unwrap();
    let lock = quorum.get_lock("x");
    let guard = lock.lock().await.unwrap();
    let mut unpolled = [(); 4].map(|()| Box::pin(lock.lock()));
    for waiting in &mut unpolled {
        assert!(poll_once(waiting).await.is_none());
    }
    end(guard).await;
    end(soon(lock.lock()).await.unwrap()).await;
    for waiting in unpolled {
        end(soon(waiting).await.unwrap()).await;
    }
    five.clean().await;
}

/// Each grant is kept for it for twice as long as the one before.
#[tokio::test]
async fn a_caller_that_is_polled_rarely_gets_the_lock_in_the_end() {
    let five = Five::start();
    let quorum = five.connect().await;
    let lock = quorum.get_lock("x");
    let mut rarely = Box::pin(lock.lock());
    let got = soon(async {
        loop {
            if let Some(got) = poll_once(&mut rarely).await {
                return got;
            }
            tokio::time::sleep(ms(250)).await; // the fault
        }
    });
    end(got.await.unwrap()).await;
    five.clean().await;
}

/// No message announces the end of a lease, and the poll is too late for the test.
#[tokio::test]
async fn a_waiter_comes_when_the_leases_of_a_majority_end() {
    let five = Five::start();
    let other = without_polls(&five).connect().await.unwrap();
    for (place, server) in five.0.iter().enumerate() {
        server.cmd(&["HSET", "x", "dead:1", "1"]).await;
        // Three leases are practically endless.
        let lease = if place < 2 { "700" } else { "600000" };
        server.cmd(&["PEXPIRE", "x", lease]).await;
    }
    let ttl = other.get_lock("x").remain_time_to_live().await.unwrap();
    assert!(matches!(ttl, Ttl::Left(left) if left > LONG), "{ttl:?}");
    // Now the leases of a majority end soon.
    five.0[2].cmd(&["PEXPIRE", "x", "700"]).await;
    assert!(try_once(&other.get_lock("x")).await.is_none());
    let waited = soon(other.get_lock("x").lock()).await;
    end(waited.unwrap()).await;
}

/// Nothing else wakes them: nobody can subscribe here, and they poll once a minute.
#[tokio::test]
async fn a_shutdown_ends_the_wait_of_all_at_once() {
    let five = Five::start();
    let other = five.connect().await;
    let guard = other.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    let quorum = without_polls(&five).connect().await.unwrap();
    for server in &five.0 {
        server
            .cmd(&["ACL", "SETUSER", "default", "resetchannels"])
            .await;
    }
    let lock = quorum.get_lock("x");
    let mut waiting = [Box::pin(lock.lock()), Box::pin(lock.lock())];
    for waiter in &mut waiting {
        assert!(poll_once(waiter).await.is_none());
    }
    // It hears of the round of the first one, which pauses from then on.
    assert!(try_once(&lock).await.is_none());
    quorum.shutdown(ms(100)).await;
    let at_once = tokio::time::timeout(ms(10_000), join_all(waiting)).await;
    for ended in at_once.expect("before the next poll") {
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    }
    end(guard).await;
    five.clean().await;
}

/// The waiter in front makes its next round in a minute.
#[tokio::test]
async fn one_try_behind_a_waiter_without_a_quorum_says_that_there_is_none() {
    let five = Five::start();
    let quorum = without_polls(&five).command_timeout(ms(300)).connect();
    let quorum = quorum.await.unwrap();
    for server in &five.0 {
        server.kill();
    }
    let lock = quorum.get_lock("x");
    let mut in_front = Box::pin(lock.lock());
    assert!(poll_once(&mut in_front).await.is_none());
    for _ in 0..2 {
        let tried = soon(lock.try_lock(Duration::ZERO, Lease::Watchdog)).await;
        assert!(matches!(tried, Err(Error::NoQuorum { .. })), "{tried:?}");
    }
}

/// While it stands still a process makes no rounds, so it does not know how long there was no quorum.
#[tokio::test]
async fn a_wait_does_not_fail_because_the_process_stood_still() {
    let five = Five::start();
    let (clock, ahead) = Clock::driven();
    let often = Backoff::new().base(ms(20)).cap(ms(20));
    let builder = five.builder().clock(clock).backoff(often);
    let quorum = builder.unavailable_after(ms(30_000)).connect();
    let quorum = quorum.await.unwrap();
    for server in &five.0[..3] {
        server.kill();
    }
    let lock = quorum.get_lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    let rounds = async |more: u64| {
        let count = async || five.0[4].calls_of("evalsha").await;
        let before = count().await;
        eventually("it asks", LONG, async || {
            waiting.is_finished() || count().await >= before + more
        })
        .await;
    };
    rounds(3).await;
    ahead.advance(ms(60_000));
    rounds(3).await;
    assert!(!waiting.is_finished());
    for _ in 0..60 {
        ahead.advance(ms(500));
        rounds(1).await;
    }
    let failed = soon(waiting).await.unwrap();
    assert!(matches!(failed, Err(Error::NoQuorum { .. })), "{failed:?}");
}

/// Proxies before three of the servers, and a quorum through them that tries often.
fn behind_proxies(five: &Five) -> (Vec<Proxy>, QuorumBuilder) {
    let proxies: Vec<_> = five.0[..3].iter().map(Proxy::to).collect();
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let often = Backoff::new().base(ms(20)).cap(ms(20));
    (proxies, of(&urls).backoff(often))
}

/// A round takes longer than each of its parts may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_fails_when_all_rounds_take_long() {
    let five = Five::start();
    let (proxies, builder) = behind_proxies(&five);
    let builder = builder.connect_timeout(ms(200));
    let builder = builder.command_timeout(ms(800)).node_timeout(ms(800));
    let quorum = builder.unavailable_after(ms(2_000)).connect();
    let quorum = quorum.await.unwrap();
    let lock = quorum.get_lock("x");
    end(lock.lock().await.unwrap()).await;
    proxies[0].latency(ms(650));
    let silent = &five.0[1..3];
    silent.iter().for_each(RedisServer::freeze);
    let failed = soon(lock.lock()).await;
    silent.iter().for_each(RedisServer::resume);
    assert!(matches!(failed, Err(Error::NoQuorum { .. })), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_behind_a_refusal_is_refused_and_not_told_busy() {
    let five = Five::start();
    let (proxies, builder) = behind_proxies(&five);
    let quorum = builder.connect().await.unwrap();
    let holder = of(&five.urls()[..3]).connect().await.unwrap();
    let held = holder.get_lock("x").lock().await.unwrap();
    let lock = quorum.get_lock("x");
    let (waits, behind) = (lock.clone(), lock.clone());
    let waits = tokio::spawn(async move { waits.lock().await });
    let behind = tokio::spawn(async move { behind.lock().await });
    eventually("it knows that it is busy", LONG, async || {
        five.0[0].calls_of("evalsha").await > 2
    })
    .await;
    let text = "NOPERM User default has no permissions to run the 'evalsha' command";
    let refuses = |proxy: &Proxy| {
        let fault = proxy.inject(Fault::Answer(text.to_owned()));
        fault.on(Match::command("EVALSHA")).always().arm()
    };
    let refused: Vec<_> = proxies.iter().map(refuses).collect();
    let first = soon(waits).await.unwrap();
    assert!(matches!(first, Err(Error::Denied { .. })), "{first:?}");
    let single = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(matches!(single, Err(Error::Denied { .. })), "{single:?}");
    let second = soon(behind).await.unwrap();
    assert!(matches!(second, Err(Error::Denied { .. })), "{second:?}");
    drop(refused);
    proxies.iter().for_each(Proxy::heal);
    end(held).await;
}

/// Also when somebody else waits between them, and makes the rounds by then.
#[tokio::test]
async fn who_waits_behind_another_enters_the_hold_that_its_owner_got() {
    let five = Five::start();
    let (quorum, near) = (five.connect().await, five.connect().await);
    let held = near.get_lock("x").lock().await.unwrap();
    let owner = quorum.new_owner();
    let (own, other) = (owner.get_lock("x"), quorum.get_lock("x"));
    let mut first = Box::pin(own.lock());
    assert!(poll_once(&mut first).await.is_none());
    let mut between = Box::pin(other.lock());
    assert!(poll_once(&mut between).await.is_none());
    let mut second = Box::pin(own.lock());
    assert!(poll_once(&mut second).await.is_none());
    end(held).await;
    let first = soon(first).await.unwrap();
    let second = soon(second).await.unwrap();
    assert_eq!(second.hold_count(), 2);
    end(second).await;
    end(first).await;
    end(soon(between).await.unwrap()).await;
}

/// The one that comes second may look at the owner just before the first is granted, and queue just behind that.
#[tokio::test(flavor = "multi_thread")]
async fn two_acquires_of_one_owner_at_the_same_time_both_get_in() {
    let five = Five::start();
    let quorum = five.connect().await;
    for round in 0..300 {
        let owner = quorum.new_owner();
        let acquires = [0, 1].map(|place| {
            let lock = owner.get_lock("x");
            tokio::spawn(async move {
                for _ in 0..place * round {
                    tokio::task::yield_now().await;
                }
                lock.lock().await
            })
        });
        for guard in soon(join_all(acquires)).await {
            end(guard.unwrap().unwrap()).await;
        }
    }
    five.clean().await;
}

#[tokio::test]
async fn outside_of_a_runtime_it_is_an_error() {
    let five = Five::start();
    let quorum = five.connect().await;
    let lock = quorum.get_lock("x");
    let outside = std::thread::spawn(move || {
        futures_executor(lock.try_lock(Duration::ZERO, Lease::Watchdog))
    });
    let error = outside.join().unwrap().expect_err("no runtime");
    assert!(matches!(error, Error::Config(_)), "{error}");
}

/// Polls on no runtime.
fn futures_executor<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    let waker = futures_util::task::noop_waker();
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::sleep(ms(1));
    }
}

/// `connect` refuses a server in cluster mode. One that was away then, and turns out to be one, must stay out, too.
#[tokio::test]
async fn a_late_server_in_cluster_mode_stays_out() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let three = RedisServer::options().cluster_of_one().start();
    let proxy = Proxy::to(&three);
    let builder = of(&[one.url(), two.url(), proxy.url()]);
    assert!(builder.connect().await.is_err());
    proxy.refuse();
    let quorum = of(&[one.url(), two.url(), proxy.url()]);
    let quorum = quorum.connect().await.unwrap();
    let before = three.calls_of("hello").await;
    proxy.accept();
    eventually("it is asked again and again", LONG, async || {
        let guard = quorum.get_lock("x").lock().await.unwrap();
        assert!(!three.exists("x").await, "it votes");
        end(guard).await;
        three.calls_of("hello").await >= before + 2
    })
    .await;
}
