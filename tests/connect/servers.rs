//! Servers that are absent, silent, full, too old or of a kind that is not supported.

use std::time::{Duration, Instant};

use redis::IntoConnectionInfo;
use watchlock::{Client, ConfigError, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, is_free, ms, soon, subscribed, try_once};
use crate::fake::{Say, serve};
use crate::works;

/// How late a busy machine may be.
const SLACK: Duration = Duration::from_millis(900);

async fn refused_within(limit: Duration, url: &str, timeout: Duration) -> Error {
    let started = Instant::now();
    let connecting = Client::builder(url).connect_timeout(timeout).connect();
    let error = soon(connecting).await.map(drop).unwrap_err();
    assert!(
        started.elapsed() < limit,
        "after {:?}: {error:?}",
        started.elapsed()
    );
    error
}

fn is_unavailable(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. }) && error.is_transient()
}

#[tokio::test]
async fn an_absent_server_is_unavailable() {
    let url = {
        let server = RedisServer::start();
        server.url()
    };
    let error = refused_within(ms(500) + SLACK, &url, ms(500)).await;
    assert!(is_unavailable(&error), "{error:?}");
}

#[tokio::test]
async fn a_server_that_accepts_and_is_silent_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let error = refused_within(ms(500) + SLACK, &url, ms(500)).await;
    assert!(is_unavailable(&error), "{error:?}");
}

#[tokio::test]
async fn a_server_behind_a_black_hole_is_unavailable() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    proxy.black_hole(Direction::Replies);
    let error = refused_within(ms(500) + SLACK, &proxy.url(), ms(500)).await;
    assert!(is_unavailable(&error), "{error:?}");
    proxy.heal();
    works(&Client::connect(&proxy.url()).await.unwrap()).await;
}

#[tokio::test]
async fn a_server_that_falls_silent_half_way_costs_one_connect_timeout() {
    let slowly = serve(|name| match name {
        "HELLO" => Say::Nothing,
        _ => Say::After(ms(700), "+OK\r\n"),
    })
    .await;
    // Two setup commands take 1.4 s; HELLO gets only what is left of the time-out.
    let error = refused_within(ms(2_000) + SLACK, &slowly, ms(2_000)).await;
    assert!(is_unavailable(&error), "{error:?}");
}

#[tokio::test]
async fn a_server_that_hangs_up_is_unavailable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let error = refused_within(ms(1_000) + SLACK, &url, ms(1_000)).await;
    assert!(is_unavailable(&error), "{error:?}");
}

#[tokio::test]
async fn a_server_that_talks_nonsense_is_an_error() {
    for nonsense in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "+OK\r\n",
        ":1\r\n",
        "*0\r\n",
        "$-1\r\n",
        "%0\r\n",
    ] {
        let url = serve(move |_| Say::Now(nonsense)).await;
        // Whatever the client takes it for, nothing panics or hangs.
        let connecting = Client::builder(&url).connect_timeout(ms(1_000)).connect();
        if let Ok(client) = soon(connecting).await {
            let tried = soon(try_once(&client, "x")).await;
            assert!(!matches!(tried, Ok(Some(_))), "{nonsense:?}: {tried:?}");
        }
    }
}

fn unsupported(error: &Error) -> Option<&'static str> {
    match error {
        Error::Config(ConfigError::Unsupported { reason, .. }) => Some(reason),
        _ => None,
    }
}

#[tokio::test]
async fn a_server_without_hello_is_refused_and_not_called_older_than_it_may_be() {
    let url = serve(|name| match name {
        "HELLO" => Say::Now("-ERR unknown command `HELLO`, with args beginning with: \r\n"),
        _ => Say::Now("+OK\r\n"),
    })
    .await;
    for url in [url.clone(), format!("{url}?protocol=resp3")] {
        let error = refused_within(LONG, &url, ms(2_000)).await;
        assert_eq!(
            unsupported(&error),
            Some("it does not know HELLO, which Redis has since 6.0"),
            "{url}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_server_of_version_6_0_is_too_old() {
    const HELLO: &str = "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.0.16\r\n\
        $5\r\nproto\r\n:2\r\n$2\r\nid\r\n:3\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n\
        $4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";
    let url = serve(|name| match name {
        "HELLO" => Say::Now(HELLO),
        _ => Say::Now("+OK\r\n"),
    })
    .await;
    let error = refused_within(LONG, &url, ms(2_000)).await;
    assert_eq!(
        unsupported(&error),
        Some("it is older than Redis 6.2"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_node_without_a_cluster_is_not_ready() {
    let server = RedisServer::options()
        .config("cluster-enabled", "yes")
        .start();
    for url in [server.url(), format!("{}?protocol=resp3", server.url())] {
        let error = refused_within(LONG, &url, ms(2_000)).await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.is_transient());
    }
}

#[tokio::test]
async fn a_full_server_is_unavailable_until_it_is_not() {
    let server = RedisServer::start();
    server.cmd(&["CONFIG", "SET", "maxclients", "1"]).await;
    let error = refused_within(LONG, &server.url(), ms(1_000)).await;
    assert!(is_unavailable(&error), "{error:?}");
    server.cmd(&["CONFIG", "SET", "maxclients", "100"]).await;
    works(&Client::connect(&server.url()).await.unwrap()).await;
}

#[tokio::test]
async fn a_client_that_finds_the_server_full_later_goes_on_by_itself() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = try_once(&client, "kept").await.unwrap().unwrap();
    // The kit's connection and the callers' lane: the keeper finds no room.
    server.cmd(&["CONFIG", "SET", "maxclients", "2"]).await;
    let lock = client.get_lock("kept");
    let waiting = tokio::spawn(async move { lock.try_lock(LONG, Lease::Watchdog).await });
    eventually("the keeper was turned away", LONG, async || {
        let turned_away = server.info("stats", "rejected_connections").await;
        turned_away.is_some_and(|count| count != "0")
    })
    .await;
    server.cmd(&["CONFIG", "SET", "maxclients", "100"]).await;
    guard.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap().expect("it was freed");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn waiters_do_without_a_connection_for_messages() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    drop(try_once(&client, "warm").await.unwrap());
    crate::common::clean(&server).await;
    let guard = try_once(&client, "kept").await.unwrap().unwrap();
    // The kit's connection, the callers' lane and the keeper's: the hub finds no room.
    server.cmd(&["CONFIG", "SET", "maxclients", "3"]).await;
    let lock = client.get_lock("kept");
    let waiting = tokio::spawn(async move { lock.try_lock(LONG, Lease::Watchdog).await });
    eventually("the hub was turned away", LONG, async || {
        let turned_away = server.info("stats", "rejected_connections").await;
        turned_away.is_some_and(|count| count != "0")
    })
    .await;
    guard.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    let guard = guard.expect("found by a poll");
    // With room again the next waiters are notified.
    server.cmd(&["CONFIG", "SET", "maxclients", "100"]).await;
    let lock = client.get_lock("kept");
    let waiting = tokio::spawn(async move { lock.try_lock(LONG, Lease::Watchdog).await });
    subscribed(&server, "kept").await;
    guard.unlock().await.unwrap();
    assert!(soon(waiting).await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn a_server_that_goes_and_comes_back_is_found_again() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    works(&client).await;
    server.kill();
    for _ in 0..3 {
        let tried = soon(try_once(&client, "x")).await;
        assert!(is_unavailable(&tried.unwrap_err()));
        let asked = soon(client.get_lock("x").is_locked()).await;
        assert!(is_unavailable(&asked.unwrap_err()));
    }
    let waiting = tokio::spawn({
        let lock = client.get_lock("x");
        async move { lock.try_lock(LONG, Lease::Watchdog).await }
    });
    server.restart();
    let guard = soon(waiting).await.unwrap().unwrap().expect("it is free");
    guard.unlock().await.unwrap();
    works(&client).await;
}

#[tokio::test]
async fn a_server_that_restarts_while_nobody_looks_costs_no_error() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    for _ in 0..3 {
        works(&client).await;
        server.restart();
        assert!(is_free(&client, "x").await);
        server.restart();
        assert!(!client.get_lock("x").is_locked().await.unwrap());
        server.restart();
        client.get_lock("x").remain_time_to_live().await.unwrap();
        server.restart();
        assert!(!client.get_lock("x").force_unlock().await.unwrap());
    }
}

/// A client of redis-rs that does not tell its name: AUTH is all that it sends first.
fn nameless(url: &str) -> redis::Client {
    let info = url.into_connection_info().unwrap();
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    redis::Client::open(info.set_redis_settings(settings)).unwrap()
}

/// It answers AUTH with the same error as anything else.
#[tokio::test]
async fn a_full_server_with_a_password_is_unavailable_until_it_is_not() {
    let server = RedisServer::options().password("secret").start();
    let builder = || Client::builder_from(&nameless(&server.url()));
    let client = builder().connect().await.unwrap();
    assert!(is_free(&client, "x").await);
    server.cmd(&["CONFIG", "SET", "maxclients", "1"]).await;
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let error = builder().connect().await.map(drop).unwrap_err();
    assert!(is_unavailable(&error), "{error:?}");
    let error = try_once(&client, "x").await.map(drop).unwrap_err();
    assert!(is_unavailable(&error), "{error:?}");
    server.cmd(&["CONFIG", "SET", "maxclients", "100"]).await;
    eventually("it has room", LONG, async || {
        try_once(&client, "x").await.is_ok()
    })
    .await;
}

/// A managed service whose plan allows no more connections says so to each command.
#[tokio::test]
async fn a_limit_of_the_plan_is_no_wrong_password() {
    const LIMIT: &str = "-ERR max concurrent connections exceeded\r\n";
    let url = serve(|_| Say::Now(LIMIT)).await;
    for url in [url.clone(), url.replace("//", "//:secret@")] {
        let error = Client::builder(&url).connect().await.map(drop).unwrap_err();
        assert!(error.is_transient(), "{url}: {error:?}");
    }
}

/// As when the process gets no CPU.
#[tokio::test]
async fn a_time_in_which_nothing_runs_is_no_silence_of_the_server() {
    let server = RedisServer::start();
    let timeout = ms(1_000);
    let builder = Client::builder(&server.url()).connect_timeout(timeout);
    let nothing_runs = async { std::thread::sleep(timeout * 3 / 2) };
    let (client, ()) = tokio::join!(builder.connect(), nothing_runs);
    works(&client.unwrap()).await;
}
