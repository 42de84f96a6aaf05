//! Taking several locks: all or none, in any order, never waiting while holding one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use watchlock::{Client, Clock, Error, Lease, Lock, LockGuard, LockInfo, ReentrantLock, Ttl};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{
    LONG, clean, connect, gone, is_free, ms, poll_once, soon, subscribed, try_once,
};
use crate::{end, mixed, multi};

#[tokio::test]
async fn it_has_all_of_its_locks_or_none() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let all = multi(&client, &["c", "a", "b"]);
    assert_eq!(all.name(), "c, a, b");
    assert!(!all.is_locked().await.unwrap());
    assert_eq!(all.remain_time_to_live().await.unwrap(), Ttl::Free);

    let guard = all.lock().await.unwrap();
    assert_eq!(guard.name(), "c, a, b");
    assert_eq!(server.keys().await.len(), 3);
    assert!(guard.is_valid() && guard.valid_for() > Duration::from_secs(20));
    guard.check().unwrap();
    guard.verify().await.unwrap();
    assert!(all.is_locked().await.unwrap());
    assert!(matches!(
        all.remain_time_to_live().await.unwrap(),
        Ttl::Left(_)
    ));
    for name in ["a", "b", "c"] {
        assert!(
            try_once(&client, name).await.unwrap().is_none(),
            "{name} is held"
        );
    }
    end(guard).await;
    assert!(server.keys().await.is_empty());

    let stranger = client.get_lock("b").lock().await.unwrap();
    let got = all.try_lock(Duration::ZERO, Lease::Watchdog).await.unwrap();
    assert!(got.is_none(), "one is busy");
    assert_eq!(server.keys().await, ["b"], "nothing is left of the rest");
    assert!(all.is_locked().await.unwrap(), "one is held");
    end(stranger).await;
}

#[tokio::test]
async fn it_waits_with_nothing_in_hand() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    for busy in ["a", "b", "c"] {
        let stranger = other.get_lock(busy).lock().await.unwrap();
        let all = multi(&client, &["a", "b", "c"]);
        let waiting = tokio::spawn(async move { all.lock().await });
        subscribed(&server, busy).await;
        for free in ["a", "b", "c"].into_iter().filter(|name| *name != busy) {
            eventually("what it tried is free again", LONG, async || {
                is_free(&other, free).await
            })
            .await;
        }
        stranger.unlock().await.unwrap();
        end(soon(waiting).await.unwrap().unwrap()).await;
    }
}

#[tokio::test]
async fn its_locks_may_be_of_several_clients_servers_and_kinds() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let (here, there) = (connect(&one).await, connect(&two).await);
    let all = mixed([
        here.get_lock("plain").into(),
        there.get_fenced_lock("fenced").into(),
        here.get_spin_lock("spin").into(),
        there.get_simple_lock("simple").into(),
        multi(&here, &["within", "as well"]).into(),
    ]);
    let guard = all.lock_with_lease(Duration::from_secs(10)).await.unwrap();
    guard.verify().await.unwrap();
    guard.extend(Duration::from_secs(20)).await.unwrap();
    assert!(guard.valid_for() > Duration::from_secs(15));
    assert_eq!(guard.fencing_token(), None);
    assert_eq!(one.keys().await.len(), 4);
    assert!(two.exists("fenced").await && two.exists("simple").await);
    end(guard).await;
    assert!(one.keys().await.is_empty());
    assert_eq!(two.keys().await, ["redisson_lock_token:{fenced}"]);
}

#[tokio::test]
async fn an_error_of_one_is_its_error_and_the_rest_is_given_back() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    for wrong in ["a", "b", "c"] {
        server.cmd(&["SET", wrong, "no lock"]).await;
        let all = multi(&client, &["a", "b", "c"]);
        for error in [
            all.lock().await.expect_err("no lock"),
            all.try_lock(LONG, Lease::Watchdog)
                .await
                .expect_err("no lock"),
        ] {
            assert!(matches!(error, Error::WrongType { .. }), "{error}");
            assert_eq!(error.lock(), Some(wrong));
            assert!(error.to_string().contains(wrong));
        }
        eventually("the rest is free", LONG, async || {
            server.keys().await == [wrong]
        })
        .await;
        server.cmd(&["DEL", wrong]).await;
    }
}

#[tokio::test]
async fn a_closed_client_of_one_closes_it() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let both = mixed([client.get_lock("a").into(), other.get_lock("b").into()]);
    other.shutdown(LONG).await;
    let error = both.lock().await.expect_err("closed");
    assert!(matches!(error, Error::Closed), "{error}");
    gone(&server, "a").await;
}

/// While it waits for the lock of another client.
#[tokio::test]
async fn a_client_of_one_that_is_closed_during_a_wait_closes_it() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let stranger = connect(&server).await.get_lock("b").lock().await.unwrap();
    let both = mixed([client.get_lock("a").into(), other.get_lock("b").into()]);
    let waiting = tokio::spawn(async move { both.try_lock(LONG, Lease::Watchdog).await });
    // It tried the first one, and waits for the second one with nothing in hand.
    subscribed(&server, "b").await;
    client.shutdown(LONG).await;
    end(stranger).await;
    let error = soon(waiting).await.unwrap().expect_err("closed");
    assert!(matches!(error, Error::Closed), "{error}");
    clean(&server).await;
}

/// A client with a short command time-out, behind a link that can be cut.
async fn behind(server: &RedisServer, timeout: Duration) -> (Proxy, Client) {
    let proxy = Proxy::to(server);
    let builder = Client::builder(&proxy.url())
        .command_timeout(timeout)
        .unavailable_after(ms(600));
    (proxy, builder.connect().await.expect("a client"))
}

#[tokio::test]
async fn i6_with_a_silent_server_among_its_own_it_returns_in_time_and_gives_the_rest_back() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let timeout = ms(400);
    let (_link, here) = behind(&one, timeout).await;
    let (silent, there) = behind(&two, timeout).await;
    // The silent one is the first that it waits for, and one of the rest.
    for names in [["a", "b"], ["b", "a"]] {
        let both = mixed([
            here.get_lock(names[0]).into(),
            there.get_lock(names[1]).into(),
        ]);
        end(both.lock().await.unwrap()).await;
        silent.black_hole(Direction::Both);
        for wait in [Duration::ZERO, ms(100), ms(900)] {
            let before = Instant::now();
            let error = both
                .try_lock(wait, Lease::Watchdog)
                .await
                .expect_err("silence");
            let took = before.elapsed();
            assert!(matches!(error, Error::Unavailable { .. }), "{error}");
            assert_eq!(error.lock(), Some(names[1]));
            assert!(
                took <= wait.max(timeout) + ms(50),
                "{took:?} for a wait of {wait:?}"
            );
            gone(&one, names[0]).await;
        }
        let error = soon(both.lock()).await.expect_err("silence");
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        gone(&one, names[0]).await;
        silent.heal();
        eventually("it works again", LONG, async || match both.lock().await {
            Ok(guard) => guard.unlock().await.is_ok(),
            Err(_) => false,
        })
        .await;
    }
}

#[tokio::test]
async fn a_transient_error_is_retried_while_the_wait_lasts() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let (_link, here) = behind(&one, ms(300)).await;
    let (silent, there) = behind(&two, ms(300)).await;
    let both = mixed([here.get_lock("a").into(), there.get_lock("b").into()]);
    end(both.lock().await.unwrap()).await;
    silent.black_hole(Direction::Both);
    let trying = tokio::spawn(async move { both.try_lock(LONG, Lease::Watchdog).await });
    eventually("the first is in", LONG, async || one.exists("a").await).await;
    // The other one does not answer: it gives up this round, and waits for that one while it holds nothing.
    gone(&one, "a").await;
    silent.heal();
    let guard = soon(trying).await.unwrap().expect("it may pass");
    // The caller's own connection may still be the silent one, so a release could go unheard.
    drop(guard.expect("free"));
    gone(&one, "a").await;
    gone(&two, "b").await;
}

#[tokio::test]
async fn i6_a_wait_ends_in_time_when_one_stays_busy() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let all = multi(&client, &["a", "b", "c"]);
    for busy in ["a", "b", "c"] {
        let stranger = other.get_lock(busy).lock().await.unwrap();
        for wait in [Duration::ZERO, ms(1), ms(150)] {
            let before = Instant::now();
            let got = all.try_lock(wait, Lease::Watchdog).await.unwrap();
            assert!(got.is_none());
            assert!(
                before.elapsed() <= wait + ms(3_050),
                "{:?}",
                before.elapsed()
            );
            assert!(before.elapsed() + ms(20) >= wait.min(ms(100)), "it waited");
        }
        end(stranger).await;
    }
    clean(&server).await;
}

#[tokio::test]
async fn a_fixed_lease_is_the_asked_one_from_the_start() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let client = connect(&server).await;
    let (link, there) = behind(&other, LONG).await;
    let all = mixed([client.get_lock("a").into(), there.get_lock("b").into()]);
    end(all.lock().await.unwrap()).await;
    // The second one does not answer: what a crash would leave now has no longer lease than requested.
    link.hold(Direction::Requests);
    let mut taking = Box::pin(all.lock_with_lease(ms(5_000)));
    eventually("the first is in", LONG, async || {
        assert!(poll_once(&mut taking).await.is_none());
        server.exists("a").await
    })
    .await;
    assert!(server.pttl("a").await <= 5_000);
    link.heal();
    let guard = soon(taking).await.unwrap();
    assert!(guard.valid_for() <= ms(5_000));
    assert!(other.pttl("b").await <= 5_000);
    end(guard).await;
}

#[tokio::test]
async fn a_pair_costs_one_command_for_each_lock_and_goes_out_side_by_side() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let all = multi(&client, &names);
    // The servers know the scripts, and the lanes are open.
    end(all.lock().await.unwrap()).await;
    let scripts = |proxy: &Proxy| proxy.commands().get("EVALSHA").copied().unwrap_or_default();
    let before = scripts(&proxy);
    let round_trip = ms(100);
    proxy.latency(round_trip);
    let start = Instant::now();
    let guard = all.lock().await.unwrap();
    let taken = start.elapsed();
    end(guard).await;
    let pair = start.elapsed();
    assert_eq!(scripts(&proxy) - before, 8 + 8);
    // One round trip for the first, one for the rest, one to give all back: the link's time, not the machine's.
    assert!(taken < 3 * round_trip, "{taken:?}");
    assert!(pair < 4 * round_trip, "{pair:?}");
}

#[tokio::test]
async fn the_one_with_a_queue_is_waited_for_first_and_its_place_is_kept_in_turn() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let all = mixed([
        client.get_lock("a").into(),
        client.get_fair_lock("fair").into(),
    ]);
    end(all.lock().await.unwrap()).await;
    let held = other.get_lock("a").lock().await.unwrap();
    let stranger = other.get_fair_lock("fair").lock().await.unwrap();
    let waiting = tokio::spawn({
        let all = all.clone();
        async move { all.lock().await }
    });
    let queued = async |length: i64| {
        eventually("it is queued", LONG, async || {
            server
                .query::<i64>(&["LLEN", "redisson_lock_queue:{fair}"])
                .await
                == length
        })
        .await;
    };
    queued(1).await;
    end(held).await;
    assert!(is_free(&other, "a").await, "it waits with nothing in hand");
    let behind = tokio::spawn({
        let lock = other.get_fair_lock("fair");
        async move { lock.lock().await }
    });
    queued(2).await;
    end(stranger).await;
    let guard = soon(waiting).await.unwrap().unwrap();
    assert!(!behind.is_finished(), "first come, first served");
    end(guard).await;
    end(soon(behind).await.unwrap().unwrap()).await;
}

#[tokio::test]
async fn i6_the_lock_that_is_not_heard_of_in_time_is_the_one_that_the_error_names() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let (_link, here) = behind(&one, ms(300)).await;
    let (silent, there) = behind(&two, ms(300)).await;
    let both = mixed([here.get_lock("a").into(), there.get_lock("b").into()]);
    end(both.lock().await.unwrap()).await;
    // It ends sooner than the command time-out of the try for the second one.
    one.cmd(&["HSET", "a", "stranger:1", "1"]).await;
    one.cmd(&["PEXPIRE", "a", "550"]).await;
    silent.black_hole(Direction::Both);
    let error = both.try_lock(ms(650), Lease::Watchdog).await;
    let error = error.expect_err("the second one is silent");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert_eq!(error.lock(), Some("b"));
    gone(&one, "a").await;
}

/// A lock that only waiters get, until it is open.
struct Shy(ReentrantLock, Instant);

#[async_trait::async_trait]
impl Lock for Shy {
    fn name(&self) -> &str {
        self.0.name()
    }
    async fn try_lock(&self, wait: Duration, lease: Lease) -> Result<Option<LockGuard>, Error> {
        if wait.is_zero() && Instant::now() < self.1 {
            return Ok(None);
        }
        self.0.try_lock(wait, lease).await
    }
    async fn unlock(&self) -> Result<(), Error> {
        self.0.unlock().await
    }
    fn hold_count(&self) -> u32 {
        self.0.hold_count()
    }
    async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        self.0.remain_time_to_live().await
    }
    async fn force_unlock(&self) -> Result<bool, Error> {
        self.0.force_unlock().await
    }
    fn info(&self) -> LockInfo {
        self.0.info()
    }
}

#[tokio::test]
async fn a_wait_is_not_given_up_before_its_end_for_a_pause() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    for _ in 0..6 {
        // Round after round finds one busy, and pauses are long by the time that all are free.
        let open = Instant::now() + ms(350);
        let shy = |name| -> Arc<dyn Lock> { Arc::new(Shy(client.get_lock(name), open)) };
        let both = mixed([shy("a"), shy("b")]);
        let got = both.try_lock(ms(400), Lease::Watchdog).await.unwrap();
        end(got.expect("its wait was not over")).await;
    }
}

#[tokio::test]
async fn a_wait_goes_on_after_a_round_that_took_long() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let (_link, here) = behind(&one, ms(1_000)).await;
    let (silent, there) = behind(&two, ms(1_000)).await;
    let both = mixed([here.get_lock("a").into(), there.get_lock("b").into()]);
    end(both.lock().await.unwrap()).await;
    silent.hold(Direction::Requests);
    let waiting = tokio::spawn(async move { both.try_lock(ms(2_900), Lease::Watchdog).await });
    eventually("the first is in", LONG, async || one.exists("a").await).await;
    gone(&one, "a").await;
    // A command time-out is over, and two more are left.
    silent.heal();
    let got = soon(waiting).await.unwrap().expect("it is heard of");
    end(got.expect("both are free")).await;
}

#[tokio::test]
async fn the_clock_of_a_client_does_not_end_the_wait() {
    let server = RedisServer::start();
    let (proxy, (clock, ahead)) = (Proxy::to(&server), Clock::driven());
    proxy.latency(ms(20));
    let builder = Client::builder(&proxy.url()).clock(clock);
    let client = builder.connect().await.unwrap();
    ahead.advance(Duration::from_secs(60));
    let both = multi(&client, &["a", "b"]);
    let guard = both.try_lock(ms(5_000), Lease::Watchdog).await.unwrap();
    end(guard.expect("both are free")).await;
}

/// As the wait for one lock is: a test that stops the clock decides when it ends.
#[tokio::test]
async fn its_wait_is_measured_by_the_clock_of_its_clients() {
    let redis = watchlock_test::Redis::start();
    redis.stop_clock();
    let builder = redis.client_builder().command_timeout(ms(200));
    let client = builder.connect().await.unwrap();
    for held in ["a", "b"] {
        let stranger = client.get_lock(held).lock_with_lease(LONG).await.unwrap();
        let both = multi(&client, &["a", "b"]);
        let mut waiting =
            tokio::spawn(async move { both.try_lock(ms(100), Lease::Watchdog).await });
        let early = tokio::time::timeout(ms(600), &mut waiting).await;
        assert!(early.is_err(), "the clock stands still: {early:?}");
        redis.advance(ms(100));
        let got = soon(waiting).await.unwrap().unwrap();
        assert!(got.is_none(), "{held} is held");
        end(stranger).await;
    }
}
