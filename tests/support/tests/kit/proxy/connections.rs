//! What happens to connections, and to all commands alike.

use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use watchlock_support::eventually;
use watchlock_support::proxy::Direction;

use super::kit::{Raw, SOON, Setup, connect, set, setup};

#[tokio::test]
async fn a_calm_proxy_is_not_noticed() {
    let Setup { server, proxy } = setup();
    let mut connection = connect(&proxy).await;
    for number in 0..100 {
        set(&mut connection, &format!("key{number}")).await.unwrap();
    }
    assert_eq!(server.keys().await.len(), 100);
    assert_eq!(proxy.commands()["SET"], 100);
    assert_eq!((proxy.connections(), proxy.fault_count()), (1, 0));
    drop(connection);
    eventually("the link is gone on both sides", SOON, async || {
        proxy.connections() == 0 && server.connections().await == 0
    })
    .await;
}

#[tokio::test]
async fn a_delayed_command_arrives_later_even_without_its_client() {
    let Setup { server, proxy } = setup();
    proxy.hold(Direction::Requests);
    let mut raw = Raw::connect(&proxy).await;
    raw.send("SET a 1\r\n").await;
    raw.expect_silence().await;
    drop(raw);
    eventually("the client is gone", SOON, async || {
        proxy.connections() == 0
    })
    .await;
    assert!(server.keys().await.is_empty());
    proxy.heal();
    eventually("the ghost arrives", SOON, async || server.exists("a").await).await;
}

#[tokio::test]
async fn a_half_open_connection_takes_and_gives_nothing() {
    let Setup { server, proxy } = setup();
    let mut raw = Raw::connect(&proxy).await;
    raw.send("PING\r\n").await;
    raw.expect("+PONG\r\n").await;
    assert_eq!(proxy.half_open_all(), 1);
    eventually("the server's side is closed", SOON, async || {
        server.connections().await == 0
    })
    .await;
    raw.send("SET a 1\r\n").await;
    raw.expect_silence().await;
    assert_eq!(proxy.connections(), 1);
    assert_eq!(proxy.reset_all(), 1);
    raw.expect_reset().await;
}

#[tokio::test]
async fn connections_are_reset_one_by_one_or_all() {
    let Setup {
        server: _server,
        proxy,
    } = setup();
    let mut raws = Vec::new();
    for _ in 0..3 {
        let mut raw = Raw::connect(&proxy).await;
        raw.send("PING\r\n").await;
        raw.expect("+PONG\r\n").await;
        raws.push(raw);
    }
    assert_eq!(proxy.reset_one(4), 1);
    raws.remove(1).expect_reset().await;
    eventually("one is gone", SOON, async || proxy.connections() == 2).await;
    assert_eq!(proxy.reset_all(), 2);
    for mut raw in raws {
        raw.expect_reset().await;
    }
    eventually("all are gone", SOON, async || proxy.connections() == 0).await;
    assert_eq!((proxy.reset_all(), proxy.reset_one(0)), (0, 0));
    assert_eq!((proxy.accepted(), proxy.faults()["reset"]), (3, 3));
}

#[tokio::test]
async fn new_connections_are_refused_for_a_while() {
    let Setup {
        server: _server,
        proxy,
    } = setup();
    let mut old = Raw::connect(&proxy).await;
    old.send("PING\r\n").await;
    old.expect("+PONG\r\n").await;
    proxy.refuse();
    let refused = TcpStream::connect(("127.0.0.1", proxy.port())).await;
    let kind = refused.unwrap_err().kind();
    assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
    old.send("PING\r\n").await;
    old.expect("+PONG\r\n").await;
    proxy.accept();
    connect(&proxy).await;
}

#[tokio::test]
async fn subscribers_alone_are_reset() {
    let Setup {
        server: _server,
        proxy,
    } = setup();
    let mut plain = Raw::connect(&proxy).await;
    plain.send("PING\r\n").await;
    plain.expect("+PONG\r\n").await;
    let mut subscriber = Raw::connect(&proxy).await;
    subscriber.send("SUBSCRIBE a b\r\n").await;
    subscriber.expect_until("$1\r\nb\r\n:2\r\n").await;
    assert_eq!(proxy.reset_subscribers(), 1);
    subscriber.expect_reset().await;
    plain.send("PING\r\n").await;
    plain.expect("+PONG\r\n").await;
}

#[tokio::test]
async fn latency_delays_each_round_trip_but_not_one_after_the_other() {
    let Setup {
        server: _server,
        proxy,
    } = setup();
    let round_trip = Duration::from_millis(2);
    proxy.latency(round_trip);
    let mut raw = Raw::connect(&proxy).await;
    let start = Instant::now();
    for _ in 0..20 {
        raw.send("PING\r\n").await;
        raw.expect("+PONG\r\n").await;
    }
    let each = start.elapsed() / 20;
    assert!(each >= Duration::from_micros(1_800), "{each:?}");
    let start = Instant::now();
    raw.send(&"PING\r\n".repeat(1_000)).await;
    raw.expect(&"+PONG\r\n".repeat(1_000)).await;
    assert!(start.elapsed() < round_trip * 500);
    println!("a round trip of {round_trip:?} takes {each:?}");
}

#[tokio::test]
async fn a_server_that_dies_is_passed_on() {
    let Setup { server, proxy } = setup();
    let mut connection = connect(&proxy).await;
    server.kill();
    assert!(set(&mut connection, "a").await.is_err());
    // The reset may come before the connect has returned.
    if let Ok(stream) = TcpStream::connect(("127.0.0.1", proxy.port())).await {
        Raw(stream).expect_reset().await;
    }
    server.restart();
    set(&mut connect(&proxy).await, "a").await.unwrap();
}

/// The test's own runtime stands still; the proxy does not.
#[tokio::test]
async fn the_proxy_works_while_the_runtime_is_blocked() {
    use std::io::{Read, Write};
    let Setup {
        server: _server,
        proxy,
    } = setup();
    let mut plain = std::net::TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    plain.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    plain.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}
