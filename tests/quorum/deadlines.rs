//! A wait ends in time, whatever the servers do, and says what they did.

use std::time::{Duration, Instant};

use watchlock::{Error, Lease, Quorum, QuorumBuilder};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, ms, poll_once};

/// Three servers, each behind a proxy.
struct Three {
    servers: Vec<RedisServer>,
    proxies: Vec<Proxy>,
}

impl Three {
    fn start() -> Self {
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
        let proxies = servers.iter().map(Proxy::to).collect();
        Self { servers, proxies }
    }

    fn builder(&self) -> QuorumBuilder {
        let urls = self.proxies.iter().map(Proxy::url);
        Quorum::builder(urls).restart_delay(Duration::ZERO)
    }

    /// From now on nothing comes through, and connections have to be made anew.
    fn cut(&self) {
        for proxy in &self.proxies {
            proxy.black_hole(Direction::Both);
            proxy.reset_all();
        }
    }
}

#[tokio::test]
async fn entering_again_ends_with_the_wait() {
    let three = Three::start();
    let builder = three.builder().command_timeout(ms(300));
    let quorum = builder.connect().await.unwrap();
    let lock = quorum.new_owner().get_lock("x");
    let guard = lock.lock().await.unwrap();
    for server in &three.servers {
        server.freeze();
    }
    let since = Instant::now();
    // With the other sort of lease it has to ask the servers.
    let again = lock
        .try_lock(Duration::ZERO, Lease::Fixed(ms(20_000)))
        .await;
    let took = since.elapsed();
    for server in &three.servers {
        server.resume();
    }
    assert!(matches!(again, Err(Error::NoQuorum { .. })), "{again:?}");
    assert!(took < ms(2_000), "{took:?}");
    drop(guard);
}

#[tokio::test]
async fn a_token_for_what_is_held_ends_with_the_wait() {
    let three = Three::start();
    let builder = three.builder().command_timeout(ms(300));
    let quorum = builder.connect().await.unwrap();
    let owner = quorum.new_owner();
    let guard = owner.get_lock("x").lock().await.unwrap();
    three.cut();
    let fenced = owner.get_fenced_lock("x");
    for _ in 0..3 {
        let since = Instant::now();
        let answer = fenced.try_lock(Duration::ZERO, Lease::Watchdog).await;
        let took = since.elapsed();
        assert!(answer.is_err(), "{answer:?}");
        // A connect time-out is two seconds.
        assert!(took < ms(1_500), "{took:?}");
    }
    drop(guard);
}

#[tokio::test]
async fn servers_that_cannot_be_connected_to_are_no_quorum() {
    let three = Three::start();
    let quorum = three.builder().connect().await.unwrap();
    let lock = quorum.get_lock("x");
    lock.lock().await.unwrap().unlock().await.unwrap();
    three.cut();
    for wait in [0, 500, 1_500] {
        let error = lock.try_lock(ms(wait), Lease::Watchdog).await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum { .. }), "{wait}: {error:?}");
    }
}

#[tokio::test]
async fn a_caller_that_comes_back_late_gets_the_lock() {
    let three = Three::start();
    for proxy in &three.proxies {
        proxy.latency(ms(20));
    }
    let builder = three.builder().command_timeout(ms(300));
    let quorum = builder.node_timeout(ms(1_000)).connect().await.unwrap();
    for wait in [Duration::ZERO, ms(100), ms(1_000)] {
        let lock = quorum.get_lock("x");
        let mut trying = Box::pin(lock.try_lock(wait, Lease::Watchdog));
        assert!(poll_once(&mut trying).await.is_none());
        // Its grant is taken back meanwhile, and its wait is over.
        tokio::time::sleep(wait.max(ms(300)) + ms(300)).await;
        let guard = trying.await.expect("servers that answer");
        guard.expect("nobody else has it").unlock().await.unwrap();
    }
}

/// While a server was slow its time-out became long.
#[tokio::test]
async fn a_server_that_was_slow_is_measured_anew() {
    let three = Three::start();
    let builder = three.builder().command_timeout(ms(20_000));
    let quorum = builder.connect().await.unwrap();
    for proxy in &three.proxies {
        proxy.latency(ms(1_500));
    }
    for name in ["a", "b", "c"] {
        let _ = quorum
            .get_lock(name)
            .try_lock(ms(8_000), Lease::Watchdog)
            .await;
    }
    for proxy in &three.proxies {
        proxy.latency(ms(0));
    }
    three.servers[0].cmd(&["HSET", "x", "somebody", "1"]).await;
    three.servers[0].cmd(&["PEXPIRE", "x", "60000"]).await;
    let (near, busy) = (quorum.get_lock("near"), quorum.get_lock("x"));
    eventually("all are asked again", LONG, async || {
        let guard = near.lock().await.unwrap();
        tokio::time::sleep(ms(20)).await;
        let mut have = 0;
        for server in &three.servers {
            have += usize::from(server.exists("near").await);
        }
        guard.unlock().await.unwrap();
        have == 3
    })
    .await;
    eventually("a silent server costs a moment", LONG, async || {
        for _ in 0..20 {
            near.lock().await.unwrap().unlock().await.unwrap();
        }
        three.servers[2].freeze();
        let since = Instant::now();
        let _ = busy.try_lock(Duration::ZERO, Lease::Watchdog).await;
        three.servers[2].resume();
        since.elapsed() < ms(3_000)
    })
    .await;
}

/// What a client knows by itself is no round trip.
#[tokio::test]
async fn an_answer_that_needs_no_server_makes_none_near() {
    let three = Three::start();
    for proxy in &three.proxies {
        proxy.latency(ms(60));
    }
    let quorum = three.builder().connect().await.unwrap();
    let held = quorum.get_lock("held");
    let guard = held.lock().await.unwrap();
    for number in 0..5 {
        let busy = held.try_lock(Duration::ZERO, Lease::Watchdog).await;
        assert!(busy.unwrap().is_none());
        let other = quorum.get_lock(format!("other {number}"));
        let other = other.try_lock(Duration::ZERO, Lease::Watchdog).await;
        drop(other.expect("servers that answer").expect("it is free"));
    }
    guard.unlock().await.unwrap();
}
