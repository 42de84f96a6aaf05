//! Faults of single commands, replies and messages.

use std::time::{Duration, Instant};

use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Odds};

use super::kit::{Raw, SOON, Setup, connect, set, setup};

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
