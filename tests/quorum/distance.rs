//! Servers that are far away, and connections that have to be made first.

use std::time::Duration;

use tokio::task::JoinSet;
use watchlock::{Backoff, Clock, Error, Lease, Quorum, QuorumBuilder};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, ms};
use crate::{end, of, try_once};

/// Three servers at a distance.
struct Far {
    proxies: Vec<Proxy>,
    servers: Vec<RedisServer>,
}

impl Far {
    fn start(round_trip: Duration) -> Self {
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
        let proxies = servers.iter().map(Proxy::to).collect();
        let far = Self { proxies, servers };
        far.move_to(round_trip);
        far
    }

    fn move_to(&self, round_trip: Duration) {
        for proxy in &self.proxies {
            proxy.latency(round_trip);
        }
    }

    /// With the default `node_timeout`.
    fn builder(&self) -> QuorumBuilder {
        let urls = self.proxies.iter().map(Proxy::url);
        Quorum::builder(urls).restart_delay(Duration::ZERO)
    }

    async fn all_have(&self, name: &str) -> bool {
        for server in &self.servers {
            if !server.exists(name).await {
                return false;
            }
        }
        true
    }
}

#[tokio::test]
async fn a_quorum_that_is_far_away_has_the_time_of_four_round_trips() {
    let far = Far::start(ms(100));
    let quorum = far.builder().connect().await.unwrap();
    for number in 0..5 {
        let lock = quorum.get_lock(&format!("x{number}"));
        end(try_once(&lock).await.expect("it is free")).await;
    }
}

#[tokio::test]
async fn a_quorum_that_moves_away_is_measured_anew() {
    let far = Far::start(ms(2));
    let quorum = far.builder().connect().await.unwrap();
    end(quorum.get_lock("x").lock().await.unwrap()).await;
    far.move_to(ms(100));
    let mut names = 0..;
    eventually("it is near enough again", LONG, async || {
        let lock = quorum.get_lock(&format!("x{}", names.next().unwrap()));
        match lock.try_lock(Duration::ZERO, Lease::Watchdog).await {
            Ok(guard) => {
                end(guard.expect("it is free")).await;
                true
            }
            Err(_) => false,
        }
    })
    .await;
}

/// A first acquire, and one behind connections that something cut while they were quiet.
#[tokio::test]
async fn connecting_does_not_count_as_a_servers_silence() {
    // To connect and to try takes longer than a server has to answer.
    let far = Far::start(ms(100));
    let (clock, driver) = Clock::driven();
    let builder = far.builder().node_timeout(ms(250)).clock(clock);
    let builder = builder.command_timeout(Duration::from_secs(5));
    let quorum = builder.connect().await.unwrap();
    for name in ["first", "behind a cut"] {
        let guard = try_once(&quorum.get_lock(name)).await.expect("it is free");
        // No server was left out.
        eventually("all have it", LONG, async || far.all_have(name).await).await;
        end(guard).await;
        driver.advance(Duration::from_secs(2));
        for proxy in &far.proxies {
            proxy.reset_all();
        }
    }
}

#[test]
fn connecting_from_another_runtime_does_not_count_as_a_servers_silence() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let far = Far::start(ms(100));
    let (first, second) = (runtime(), runtime());
    let builder = far.builder().node_timeout(ms(250));
    let quorum = first.block_on(builder.connect()).unwrap();
    second.block_on(async {
        let guard = try_once(&quorum.get_lock("x")).await.expect("it is free");
        eventually("all have it", LONG, async || far.all_have("x").await).await;
        end(guard).await;
    });
}

/// A new connection lets few commands wait for answers at the same time: the last ones are sent late.
#[tokio::test]
async fn of_a_thousand_tries_at_once_far_away_each_gets_its_lock() {
    let far = Far::start(ms(40));
    let builder = far.builder().command_timeout(LONG);
    let quorum = builder.connect().await.unwrap();
    let mut tries = JoinSet::new();
    for number in 0..1_000 {
        let lock = quorum.get_lock(&format!("x{number}"));
        tries.spawn(async move { lock.try_lock(Duration::ZERO, Lease::Watchdog).await });
    }
    let got = tries.join_all().await;
    let refused: Vec<_> = got.iter().filter_map(|got| got.as_ref().err()).collect();
    assert!(refused.is_empty(), "{}: {}", refused.len(), refused[0]);
    assert!(got.iter().flatten().all(Option::is_some));
}

#[tokio::test]
async fn an_error_names_the_setting_that_is_too_short() {
    let far = Far::start(ms(80));
    let builder = far.builder().node_timeout(ms(20));
    let quorum = builder.connect().await.unwrap();
    let lock = quorum.get_lock("x");
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    let error = tried.expect_err("20 ms are less than a round trip");
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("node_timeout (20ms)"), "{source}");
}

/// A caller has the turn for a moment only when others come faster than a round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_waits_far_away_do_not_end_each_others_rounds() {
    let far = Far::start(Duration::ZERO);
    let often = Backoff::new().base(ms(20)).cap(ms(20));
    let builder = far.builder().backoff(often).node_timeout(ms(2_000));
    let quorum = builder.command_timeout(ms(600)).connect().await.unwrap();
    let near: Vec<_> = far.servers.iter().map(RedisServer::url).collect();
    let near = of(&near).connect().await.unwrap();
    end(quorum.get_lock("x").lock().await.unwrap()).await;
    let mut held = Some(near.get_lock("x").lock().await.unwrap());
    far.move_to(ms(300));
    let mut tries = JoinSet::new();
    let mut got = false;
    for number in 0..500 {
        let lock = quorum.get_lock("x");
        tries.spawn(async move {
            let tried = lock.try_lock(ms(600), Lease::Watchdog).await;
            matches!(tried, Ok(Some(_)))
        });
        tokio::time::sleep(ms(20)).await;
        if number == 75 {
            end(held.take().unwrap()).await;
        }
        while let Some(ended) = tries.try_join_next() {
            got |= ended.unwrap();
        }
        if got {
            break;
        }
    }
    assert!(got, "nobody got a free lock");
}
