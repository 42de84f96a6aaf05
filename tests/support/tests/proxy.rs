//! Each fault of the proxy, shown on raw connections.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Odds, Proxy};
use watchlock_support::server::RedisServer;

const SOON: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_millis(150);

struct Setup {
    server: RedisServer,
    proxy: Proxy,
}

fn setup() -> Setup {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    Setup { server, proxy }
}

async fn connect(proxy: &Proxy) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(SILENCE));
    let client = redis::Client::open(proxy.url()).unwrap();
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

async fn set(connection: &mut MultiplexedConnection, key: &str) -> RedisResult<Value> {
    let mut set = redis::cmd("SET");
    set.arg(key).arg("1").query_async(connection).await
}

/// A connection without a client library: what comes is seen as it comes.
struct Raw(TcpStream);

impl Raw {
    async fn connect(proxy: &Proxy) -> Self {
        let address = ("127.0.0.1", proxy.port());
        Self(TcpStream::connect(address).await.unwrap())
    }

    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    async fn expect(&mut self, text: &str) {
        let mut got = vec![0; text.len()];
        let read = tokio::time::timeout(SOON, self.0.read_exact(&mut got)).await;
        read.expect("an answer in time").unwrap();
        assert_eq!(String::from_utf8_lossy(&got), text);
    }

    async fn expect_until(&mut self, end: &str) -> String {
        let mut got = String::new();
        while !got.ends_with(end) {
            let byte = tokio::time::timeout(SOON, self.0.read_u8()).await;
            got.push(char::from(byte.expect("more in time").unwrap()));
        }
        got
    }

    async fn expect_silence(&mut self) {
        let mut byte = [0];
        let read = tokio::time::timeout(SILENCE, self.0.read(&mut byte)).await;
        assert!(read.is_err(), "{read:?}");
    }

    async fn expect_reset(&mut self) {
        let mut byte = [0];
        let read = tokio::time::timeout(SOON, self.0.read(&mut byte)).await;
        let error = read.expect("the end in time").expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

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
async fn a_swallowed_request_is_not_executed() {
    let Setup { server, proxy } = setup();
    let mut connection = connect(&proxy).await;
    let aim = proxy
        .inject(Fault::SwallowRequest)
        .on(Match::key("b"))
        .arm();
    set(&mut connection, "a").await.unwrap();
    assert!(set(&mut connection, "b").await.unwrap_err().is_timeout());
    assert!(set(&mut connection, "c").await.unwrap_err().is_timeout());
    assert_eq!(server.keys().await, ["a"]);
    assert_eq!((aim.seen(), aim.fired()), (1, 1));
    assert_eq!(proxy.faults()["swallow_request"], 1);
}

#[tokio::test]
async fn a_swallowed_reply_belongs_to_an_executed_request() {
    let Setup { server, proxy } = setup();
    let mut connection = connect(&proxy).await;
    proxy
        .inject(Fault::SwallowReply)
        .on(Match::command("set"))
        .nth(2)
        .arm();
    set(&mut connection, "a").await.unwrap();
    assert!(set(&mut connection, "b").await.unwrap_err().is_timeout());
    assert!(set(&mut connection, "c").await.unwrap_err().is_timeout());
    assert_eq!(server.keys().await, ["a", "b", "c"]);
    connect(&proxy).await;
}

#[tokio::test]
async fn replies_are_paired_in_a_pipeline() {
    let Setup { server, proxy } = setup();
    proxy.inject(Fault::ResetAfter).on(Match::key("c")).arm();
    let mut raw = Raw::connect(&proxy).await;
    raw.send("SET a 1\r\nGET a\r\nINCR c\r\n").await;
    raw.expect("+OK\r\n$1\r\n1\r\n").await;
    raw.expect_reset().await;
    assert_eq!(server.keys().await, ["a", "c"]);
}

#[tokio::test]
async fn a_reset_before_executes_nothing() {
    let Setup { server, proxy } = setup();
    proxy.inject(Fault::ResetBefore).on(Match::key("a")).arm();
    let mut raw = Raw::connect(&proxy).await;
    raw.send("SET a 1\r\n").await;
    raw.expect_reset().await;
    assert!(server.keys().await.is_empty());
    eventually("the server's side is closed", SOON, async || {
        server.connections().await == 0
    })
    .await;
}

#[tokio::test]
async fn delays_keep_the_order() {
    let Setup { server, proxy } = setup();
    let wait = Duration::from_millis(200);
    proxy
        .inject(Fault::DelayRequest(wait))
        .on(Match::key("a"))
        .arm();
    proxy
        .inject(Fault::DelayReply(wait))
        .on(Match::key("b"))
        .arm();
    let mut raw = Raw::connect(&proxy).await;
    let start = Instant::now();
    raw.send("SET a 1\r\nGET a\r\nINCR b\r\n").await;
    assert!(server.keys().await.is_empty());
    raw.expect("+OK\r\n$1\r\n1\r\n").await;
    assert!(start.elapsed() >= wait);
    assert!(server.exists("b").await);
    raw.expect(":1\r\n").await;
    assert!(start.elapsed() >= 2 * wait);
}

#[tokio::test]
async fn a_black_hole_swallows_one_way_or_both() {
    let Setup { server, proxy } = setup();
    let mut raw = Raw::connect(&proxy).await;
    proxy
        .inject(Fault::BlackHole(Direction::Replies))
        .on(Match::key("a"))
        .arm();
    raw.send("SET a 1\r\nSET b 1\r\n").await;
    raw.expect_silence().await;
    assert_eq!(server.keys().await, ["a", "b"]);
    proxy.black_hole(Direction::Both);
    let mut late = Raw::connect(&proxy).await;
    late.send("SET c 1\r\n").await;
    late.expect_silence().await;
    proxy.heal();
    late.send("SET d 1\r\n").await;
    late.expect_silence().await;
    assert_eq!(server.keys().await, ["a", "b"]);
    let mut fresh = Raw::connect(&proxy).await;
    fresh.send("SET e 1\r\n").await;
    fresh.expect("+OK\r\n").await;
}

#[tokio::test]
async fn what_was_held_arrives_later_even_without_its_client() {
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
async fn an_answer_can_be_made_up() {
    let Setup { server, proxy } = setup();
    proxy
        .inject(Fault::Answer("TRYAGAIN not now".to_owned()))
        .on(Match::key("b"))
        .times(2)
        .arm();
    let mut raw = Raw::connect(&proxy).await;
    let sets = "SET a 1\r\nSET b 1\r\nSET b 1\r\nSET b 1\r\n";
    raw.send(sets).await;
    let no = "-TRYAGAIN not now\r\n";
    raw.expect(&format!("+OK\r\n{no}{no}+OK\r\n")).await;
    assert_eq!(server.keys().await, ["a", "b"]);
}

#[tokio::test]
async fn a_message_is_lost_or_cuts_its_subscriber() {
    for protocol in [2, 3] {
        let Setup { server, proxy } = setup();
        let mark = if protocol == 3 { '>' } else { '*' };
        let mut raw = Raw::connect(&proxy).await;
        raw.send(&format!("HELLO {protocol}\r\n")).await;
        raw.expect_until("$7\r\nmodules\r\n*0\r\n").await;
        raw.send("SUBSCRIBE news\r\nPING\r\n").await;
        raw.expect(&format!(
            "{mark}3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"
        ))
        .await;
        let pong = ["*2\r\n$4\r\npong\r\n$0\r\n\r\n", "+PONG\r\n"];
        raw.expect(pong[usize::from(protocol == 3)]).await;

        let news = Match::message("news");
        proxy
            .inject(Fault::SwallowReply)
            .on(news.clone())
            .nth(2)
            .arm();
        proxy.inject(Fault::ResetBefore).on(news).nth(4).arm();
        for number in 1..=3 {
            let heard: i64 = server
                .query(&["PUBLISH", "news", &number.to_string()])
                .await;
            assert_eq!(heard, 1);
        }
        for number in [1, 3] {
            let message = format!("{mark}3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\n{number}\r\n");
            raw.expect(&message).await;
        }
        server.cmd(&["PUBLISH", "news", "4"]).await;
        raw.expect_reset().await;
    }
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
async fn scripts_are_matched_and_counted() {
    let Setup {
        server: _server,
        proxy,
    } = setup();
    let text = "return redis.call('INCR', KEYS[1])";
    let script = redis::Script::new(text);
    let mut connection = connect(&proxy).await;
    let calls = proxy.count(Match::script(text).and(Match::arg("counte")));
    for _ in 0..3 {
        let _: i64 = script
            .key("counter")
            .invoke_async(&mut connection)
            .await
            .unwrap();
    }
    assert_eq!(proxy.scripts()[script.get_hash()], calls.seen());
    assert!(calls.seen() >= 3);
    calls.cancel();
    assert_eq!(proxy.fault_count(), 0);
}

#[tokio::test]
async fn chance_depends_on_the_seed_alone() {
    let Setup {
        server: _server,
        proxy,
    } = setup();
    let mut patterns = Vec::new();
    for seed in [1, 1, 2] {
        let odds = Odds::seeded(seed).chance(0.3, Fault::Answer("NO".to_owned()));
        proxy.random(odds.only(Match::command("SET")));
        let mut raw = Raw::connect(&proxy).await;
        let mut pattern = Vec::new();
        for _ in 0..64 {
            raw.send("SET a 1\r\n").await;
            pattern.push(raw.expect_until("\r\n").await);
        }
        patterns.push(pattern);
    }
    assert_eq!(patterns[0], patterns[1]);
    assert_ne!(patterns[0], patterns[2]);
    let hits = patterns[0].iter().filter(|answer| *answer == "-NO\r\n");
    assert!((5..40).contains(&hits.count()));
    proxy.calm();
    let before = proxy.fault_count();
    set(&mut connect(&proxy).await, "a").await.unwrap();
    assert_eq!(proxy.fault_count(), before);
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
