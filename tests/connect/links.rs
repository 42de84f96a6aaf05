//! How many connections there are (I7), and what happens when the server cuts them.

use std::time::Duration;

use watchlock::{Client, ClientBuilder, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, is_free, ms, poll_once, soon, subscribed, try_once};
use crate::works;

/// Waits until the server has exactly that many.
async fn connections(server: &RedisServer, count: usize, when: &str) {
    eventually(&format!("{count} connections {when}"), LONG, async || {
        server.connections().await == count
    })
    .await;
}

/// A client that has used both of its connections.
async fn used(server: &RedisServer) -> Client {
    let client = Client::connect(&server.url()).await.unwrap();
    drop(try_once(&client, "used").await.unwrap());
    clean(server).await;
    client
}

#[tokio::test]
async fn two_connections_and_a_third_while_somebody_waits() {
    let server = RedisServer::start();
    let client = used(&server).await;
    connections(&server, 2, "of an idle client").await;
    let guard = try_once(&client, "busy").await.unwrap().unwrap();
    assert_eq!(server.connections().await, 2, "while it is held");
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let lock = client.get_lock("busy");
            tokio::spawn(async move { lock.try_lock(LONG, Lease::Watchdog).await.map(drop) })
        })
        .collect();
    subscribed(&server, "busy").await;
    assert_eq!(server.connections().await, 3, "while five wait");
    guard.unlock().await.unwrap();
    for waited in waiting {
        soon(waited).await.unwrap().unwrap();
    }
    connections(&server, 2, "when nobody waits").await;
    clean(&server).await;
    drop(client);
    connections(&server, 0, "of a client that is gone").await;
}

#[tokio::test]
async fn a_shutdown_closes_all_connections() {
    let server = RedisServer::start();
    let client = used(&server).await;
    let guard = try_once(&client, "held").await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let lock = client.get_lock("held");
        async move { lock.lock().await.map(drop) }
    });
    subscribed(&server, "held").await;
    soon(client.shutdown(Duration::ZERO)).await;
    connections(&server, 0, "after a shutdown").await;
    assert!(matches!(
        soon(waiting).await.unwrap(),
        Err(watchlock::Error::Closed)
    ));
    drop(guard);
    clean(&server).await;
}

#[tokio::test]
async fn a_failed_connect_leaves_no_connection() {
    let server = RedisServer::start();
    let elsewhere = RedisServer::start();
    for _ in 0..5 {
        let pool = deadpool_redis::Config::from_url(elsewhere.url());
        let pool = pool.create_pool(None).unwrap();
        let refused = Client::builder(&server.url()).pool(pool).connect().await;
        assert!(refused.is_err());
    }
    connections(&server, 0, "after refusals").await;
    connections(&elsewhere, 0, "after refusals").await;
}

#[tokio::test]
async fn a_connect_that_is_dropped_leaves_no_connection() {
    let server = RedisServer::start();
    let url = server.url();
    for polls in 0..40 {
        let mut connecting = Box::pin(Client::connect(&url));
        for _ in 0..polls {
            if crate::common::poll_once(&mut connecting).await.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    connections(&server, 0, "after dropped futures").await;
}

#[tokio::test]
async fn clones_handles_and_guards_keep_one_client_alive() {
    let server = RedisServer::start();
    let client = used(&server).await;
    let lock = client.clone().get_lock("kept");
    drop(client);
    let guard = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    let guard = guard.unwrap().unwrap();
    drop(lock);
    assert_eq!(server.connections().await, 2, "the guard keeps them");
    assert!(guard.is_valid());
    guard.unlock().await.unwrap();
    connections(&server, 0, "after the last guard").await;
}

/// Cuts every connection that exists at the moment, except the kit's.
async fn cut(server: &RedisServer) {
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
}

#[tokio::test]
async fn a_connection_that_was_cut_while_idle_costs_no_error() {
    let server = RedisServer::start();
    let client = used(&server).await;
    let lock = client.get_lock("x");
    for round in 0..20 {
        cut(&server).await;
        assert!(is_free(&client, "x").await, "round {round}");
        cut(&server).await;
        assert!(!lock.is_locked().await.unwrap(), "round {round}");
        cut(&server).await;
        let fixed = lock.try_lock(Duration::ZERO, LONG).await.unwrap().unwrap();
        cut(&server).await;
        fixed.extend(2 * LONG).await.unwrap();
        cut(&server).await;
        let inner = fixed.reenter(Lease::Watchdog).await.unwrap();
        cut(&server).await;
        inner.unlock().await.unwrap();
        cut(&server).await;
        fixed.unlock().await.unwrap();
        clean(&server).await;
    }
    connections(&server, 2, "when all is over").await;
}

/// A lease so short that the clean-up after an unanswered acquire is over soon.
const BRIEF: Duration = Duration::from_millis(800);

#[tokio::test]
async fn a_server_that_cuts_idle_connections_costs_no_error() {
    const IDLE: &str = "after a second without a word";
    let server = RedisServer::options().config("timeout", "1").start();
    let client = used(&server).await;
    let lock = client.get_lock("x");
    for _ in 0..2 {
        connections(&server, 0, IDLE).await;
        let guard = lock.try_lock(Duration::ZERO, BRIEF).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
        connections(&server, 0, IDLE).await;
        assert!(!lock.is_locked().await.unwrap());
        connections(&server, 0, IDLE).await;
        let guard = lock.lock_with_lease(BRIEF).await.unwrap();
        drop(guard);
        clean(&server).await;
    }
}

#[tokio::test]
async fn a_guard_that_is_dropped_over_a_cut_connection_is_released() {
    let server = RedisServer::start();
    let client = used(&server).await;
    for _ in 0..20 {
        let guard = try_once(&client, "x").await.unwrap().unwrap();
        cut(&server).await;
        drop(guard);
        clean(&server).await;
    }
}

#[tokio::test]
async fn a_hold_outlives_its_connections() {
    let server = RedisServer::start();
    let client = crate::common::connect_short(&server).await;
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    for round in 1..=6 {
        cut(&server).await;
        let calls = server.calls_of("pexpire").await;
        eventually("it is renewed", LONG, async || {
            server.calls_of("pexpire").await > calls
        })
        .await;
        assert!(guard.is_valid(), "round {round}");
    }
    guard.unlock().await.unwrap();
    works(&client).await;
}

/// An acquire that was certainly not sent cannot run later: nothing is cleaned up after it.
#[tokio::test]
async fn a_connection_that_was_cut_while_it_was_quiet_leaves_nothing_to_clean_up() {
    leaves_nothing_to_clean_up(|url| Client::builder(url)).await;
}

#[tokio::test]
async fn a_given_connection_that_was_cut_while_it_was_quiet_leaves_nothing_to_clean_up() {
    let given = |url: &str| Client::builder_from(&redis::Client::open(url).unwrap());
    leaves_nothing_to_clean_up(given).await;
}

async fn leaves_nothing_to_clean_up(builder: impl Fn(&str) -> ClientBuilder) {
    const RELEASE: &str = include_str!("../../lua/lock/release.lua");
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = builder(&proxy.url()).connect().await.unwrap();
    for _ in 0..2 {
        // Where redis-rs drives the connection, it is not pinged when something was heard on it within the last second.
        tokio::time::sleep(ms(1_100)).await;
        cut(&server).await;
        eventually("they are cut", LONG, async || proxy.connections() == 0).await;
        // The client notices it at the latest with the next answer on this runtime.
        for _ in 0..3 {
            server.keys().await;
            tokio::task::yield_now().await;
        }
        let releases = proxy.count(Match::script(RELEASE));
        let guard = try_once(&client, "x").await.unwrap().unwrap();
        guard.unlock().await.unwrap();
        // A late acquire would be released again and again, for as long as its lease of 30 s.
        let other = client
            .get_lock("other")
            .lock_with_lease(ms(1_500))
            .await
            .unwrap();
        soon(other.lost()).await;
        drop(other);
        clean(&server).await;
        assert!(releases.seen() <= 4, "{} releases", releases.seen());
    }
}

/// The first command after the quiet spell is dropped: it finds the connection in order, and nobody reads its reply.
#[tokio::test]
async fn a_connection_that_was_cut_behind_a_dropped_command_leaves_nothing_to_clean_up() {
    const RELEASE: &str = include_str!("../../lua/lock/release.lua");
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    tokio::time::sleep(ms(1_100)).await;
    let lock = client.get_lock("x");
    drop(poll_once(&mut Box::pin(lock.is_locked())).await);
    let before = proxy.accepted();
    cut(&server).await;
    // The client may notice it at once, and connect again.
    eventually("they are cut", LONG, async || {
        proxy.accepted() - proxy.connections() as u64 >= before
    })
    .await;
    // The driver of the connection sees it when it runs.
    tokio::time::sleep(ms(100)).await;
    let releases = proxy.count(Match::script(RELEASE));
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    let other = client
        .get_lock("other")
        .lock_with_lease(ms(1_500))
        .await
        .unwrap();
    soon(other.lost()).await;
    drop(other);
    clean(&server).await;
    assert!(releases.seen() <= 4, "{} releases", releases.seen());
}

/// The command fails on the old connection, and its caller hears of that when the new one is there.
#[tokio::test]
async fn a_failure_that_is_heard_late_costs_no_second_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).command_timeout(LONG);
    let client = client.connect().await.unwrap();
    let (late, other) = (client.get_lock("late"), client.get_lock("other"));
    assert!(!other.is_locked().await.unwrap());
    let cut = proxy
        .inject(Fault::ResetBefore)
        .on(Match::key("late"))
        .arm();
    let mut asking = Box::pin(late.is_locked());
    assert!(poll_once(&mut asking).await.is_none());
    eventually("it is cut", LONG, async || {
        cut.fired() > 0 && proxy.connections() == 0
    })
    .await;
    let before = proxy.accepted();
    assert!(!other.is_locked().await.unwrap());
    assert_eq!(proxy.accepted(), before + 1);
    assert!(!soon(asking).await.unwrap());
    assert_eq!(
        proxy.accepted(),
        before + 1,
        "the one that is there is good"
    );
}

#[tokio::test]
async fn a_single_server_is_not_asked_for_slots() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    for _ in 0..3 {
        cut(&server).await;
        let calls = server.calls_of("pexpire").await;
        eventually("the hold was verified", LONG, async || {
            server.calls_of("pexpire").await > calls
        })
        .await;
    }
    let calls = server.calls().await;
    assert!(
        !calls.keys().any(|name| name.starts_with("cluster")),
        "{calls:?}"
    );
    guard.unlock().await.unwrap();
}
