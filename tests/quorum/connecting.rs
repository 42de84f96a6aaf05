//! Which servers form a quorum, and which of them must be up.

use std::time::Duration;

use watchlock::{ConfigError, Error, Lease, Quorum, QuorumError};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, ms, soon};
use crate::{Five, end, of};

async fn refused(urls: &[String]) -> QuorumError {
    match of(urls).connect().await.expect_err("no quorum") {
        Error::Config(ConfigError::NoQuorum(problem)) => problem,
        error => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

#[tokio::test]
async fn a_list_that_is_no_quorum_is_refused_before_anybody_is_asked() {
    let dead: Vec<_> = (1..=11)
        .map(|port| format!("redis://127.0.0.1:{port}/"))
        .collect();
    for given in [0, 2, 4, 8, 10, 11] {
        let problem = refused(&dead[..given]).await;
        assert!(
            matches!(problem, QuorumError::Number { given: number, .. } if number == given),
            "{given}: {problem}"
        );
    }
    let twice = [&dead[0], &dead[1], &dead[0]].map(Clone::clone);
    let problem = refused(&twice).await;
    assert!(
        matches!(
            problem,
            QuorumError::SameServer {
                first: 1,
                second: 3,
                ..
            }
        ),
        "{problem}"
    );
    let bad = ["redis://127.0.0.1:1/", "no address", "redis://127.0.0.1:2/"];
    let error = Quorum::builder(bad)
        .connect()
        .await
        .expect_err("no address");
    assert!(matches!(error, Error::Config(ConfigError::InvalidUrl)));
}

#[tokio::test]
async fn settings_out_of_range_are_refused() {
    let urls = ["redis://127.0.0.1:1/"];
    let day = Duration::from_secs(24 * 3600);
    for builder in [
        Quorum::builder(urls).node_timeout(Duration::ZERO),
        Quorum::builder(urls).node_timeout(Duration::MAX),
        Quorum::builder(urls).max_lease(ms(29_999)),
        Quorum::builder(urls).max_lease(day + ms(1)),
        Quorum::builder(urls).watchdog_lease(ms(1)),
    ] {
        let error = builder.connect().await.expect_err("out of range");
        assert!(
            matches!(error, Error::Config(ConfigError::OutOfRange { .. })),
            "{error}"
        );
    }
}

/// The majority replaces acknowledgements: a promoted replica of one of them would vote without the others' knowledge.
#[tokio::test]
async fn replicas_that_acknowledge_are_refused() {
    let dead = [1, 2, 3].map(|port| format!("redis://127.0.0.1:{port}/"));
    let builder = Quorum::builder(&dead).acknowledged_by(1, ms(200));
    let error = builder.connect().await.expect_err("no replicas");
    let Error::Config(problem @ ConfigError::Conflict { .. }) = error else {
        panic!("{error}");
    };
    let text = problem.to_string();
    assert!(
        text.contains("acknowledged_by cannot be combined with a quorum"),
        "{text}"
    );
}

#[tokio::test]
async fn two_addresses_of_one_server_are_recognised_by_its_own_answer() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let other_way = format!("redis://localhost:{}/", one.port());
    let problem = refused(&[one.url(), two.url(), other_way]).await;
    assert!(
        matches!(
            problem,
            QuorumError::SameServer {
                first: 1,
                second: 3,
                ..
            }
        ),
        "{problem}"
    );
}

#[tokio::test]
async fn a_replica_and_a_cluster_are_no_part_of_a_quorum() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let replica = RedisServer::options().replica_of(&one).start();
    replica.synced().await;
    let problem = refused(&[one.url(), two.url(), replica.url()]).await;
    assert!(
        matches!(problem, QuorumError::Unsupported { place: 3, .. }),
        "{problem}"
    );
    let cluster = RedisServer::options()
        .config("cluster-enabled", "yes")
        .start();
    let problem = refused(&[cluster.url(), one.url(), two.url()]).await;
    assert!(
        matches!(problem, QuorumError::Unsupported { place: 1, .. }),
        "{problem}"
    );
}

#[tokio::test]
async fn a_minority_may_be_down_when_it_connects_and_joins_when_it_is_there() {
    let five = Five::start();
    five.0[1].kill();
    five.0[3].kill();
    let quorum = five.connect().await;
    let guard = quorum.get_lock("x").lock().await.unwrap();
    assert_eq!(five.have(&[0, 2, 4], "x").await, 3);
    five.0[1].restart();
    five.0[3].restart();
    five.until(5, "x").await;
    end(guard).await;
    five.clean().await;
}

/// A quorum of four servers, and a fifth that is not up yet.
async fn joined_later(five: &Five, fifth: &Proxy) -> Quorum {
    let mut urls = five.urls();
    urls[4] = fifth.url();
    fifth.refuse();
    let quorum = of(&urls).connect().await.unwrap();
    fifth.accept();
    quorum
}

/// The quorum looked at it, and never asked it for a lock.
async fn is_left_out(fifth: &Proxy, five: &Five, quorum: &Quorum) {
    eventually("it was asked what it is", LONG, async || {
        fifth.commands().get("HELLO").copied().unwrap_or_default() >= 2
    })
    .await;
    for _ in 0..10 {
        end(quorum.get_lock("x").lock().await.unwrap()).await;
    }
    let commands = fifth.commands();
    let locks = commands.keys().filter(|name| name.starts_with("EVAL"));
    assert_eq!(locks.count(), 0, "{commands:?}");
    five.clean().await;
}

#[tokio::test]
async fn a_server_that_joins_later_and_is_one_of_the_others_has_no_vote() {
    let five = Five::start();
    let fifth = Proxy::to(&five.0[2]);
    let quorum = joined_later(&five, &fifth).await;
    is_left_out(&fifth, &five, &quorum).await;
}

/// As a virtual address does: the server that it leads to then has one vote, and not two.
#[tokio::test]
async fn a_server_whose_address_moves_to_another_has_no_vote_and_is_named() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let third = Proxy::to(&servers[2]);
    let builder = of(&[servers[0].url(), servers[1].url(), third.url()]);
    let quorum = builder.connect_timeout(ms(500)).connect().await.unwrap();
    let lock = quorum.get_lock("x");
    let guard = lock.lock().await.unwrap();
    eventually("the third has it, too", LONG, async || {
        servers[2].exists("x").await
    })
    .await;
    end(guard).await;
    clean(&servers[2]).await;
    third.lead_to(&servers[0]);
    servers[1].kill();
    for _ in 0..3 {
        let tried = soon(lock.try_lock(ms(2_000), Lease::Watchdog)).await;
        let error = tried.expect_err("one of three");
        let one = matches!(error, Error::NoQuorum { reached: 1, .. });
        let source = std::error::Error::source(&error).expect("what each said");
        let said = source.to_string();
        let named = said.contains("server 3: it is one of the others by another address");
        assert!(one && named, "{error}: {said}");
    }
    let error = lock.is_locked().await.expect_err("one of three");
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    clean(&servers[0]).await;
    third.lead_to(&servers[2]);
    end(soon(lock.lock()).await.unwrap()).await;
}

#[tokio::test]
async fn a_replica_that_joins_later_has_no_vote() {
    let five = Five::start();
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    replica.synced().await;
    let fifth = Proxy::to(&replica);
    let quorum = joined_later(&five, &fifth).await;
    is_left_out(&fifth, &five, &quorum).await;
}

#[tokio::test]
async fn a_server_that_joins_later_has_its_vote() {
    let five = Five::start();
    let fifth = Proxy::to(&five.0[4]);
    let quorum = joined_later(&five, &fifth).await;
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    end(guard).await;
    five.clean().await;
}

#[tokio::test]
async fn without_a_majority_there_is_no_quorum_and_it_says_how_many_there_are() {
    let five = Five::start();
    for down in [0, 1, 2] {
        five.0[down].kill();
    }
    let error = five.builder().connect().await.expect_err("two of five");
    assert!(
        matches!(
            error,
            Error::NoQuorum {
                reached: 2,
                needed: 3,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.is_transient());
    five.0[0].restart();
    let quorum = five.connect().await;
    end(quorum.get_lock("x").lock().await.unwrap()).await;
}

#[tokio::test]
async fn a_server_that_denies_is_reported() {
    let five = Five::start();
    let locked = RedisServer::options().password("secret").start();
    let wrong = format!("redis://:guess@127.0.0.1:{}/", locked.port());
    let urls = [five.0[0].url(), five.0[1].url(), wrong];
    let error = of(&urls).connect().await.expect_err("a wrong password");
    assert!(matches!(error, Error::Denied { .. }), "{error}");
}

#[tokio::test]
async fn one_server_is_a_quorum_for_tests_and_a_lock_of_it_is_a_plain_one() {
    let server = RedisServer::start();
    let quorum = of(&[server.url()]).connect().await.unwrap();
    let guard = quorum.get_lock("x").lock().await.unwrap();
    assert_eq!(server.hash("x").await.len(), 1);
    end(guard).await;
}

#[tokio::test]
async fn after_its_end_nothing_of_it_is_left() {
    let five = Five::start();
    let quorum = five.connect().await;
    let lock = quorum.get_lock("x");
    let guard = lock.lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    for server in &five.0 {
        crate::common::subscribed(server, "x").await;
    }
    let report = quorum.shutdown(ms(100)).await;
    assert_eq!(report.held, ["x"]);
    assert!(report.unreleased.is_empty());
    assert!(guard.check().is_err());
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(lock.lock().await, Err(Error::Closed)));
    drop((guard, lock, quorum));
    for server in &five.0 {
        eventually("no connection is left", LONG, async || {
            server.connections().await == 0
        })
        .await;
    }
    five.clean().await;
}
