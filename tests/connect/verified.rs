//! Asking whether holds are still there: one question at a time, in time, and with the lease that the client relies on.

use std::time::Duration;

use watchlock::{Client, Clock, LockGuard, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, ms, soon, try_once};

const VERIFY: &str = include_str!("../../lua/lock/verify.lua");
const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");

async fn fixed(client: &Client, name: &str, lease: Duration) -> LockGuard {
    let lock = client.get_lock(name);
    lock.try_lock(Duration::ZERO, lease).await.unwrap().unwrap()
}

/// Connections break again and again while the answer is outstanding: the client waits for it, and asks only once more.
#[tokio::test]
async fn a_verification_that_runs_is_joined() {
    const BREAKS: usize = 8;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).command_timeout(ms(20_000));
    let client = client.connect().await.unwrap();
    let mut holds = Vec::new();
    for index in 0..20 {
        holds.push(fixed(&client, &format!("held-{index}"), 2 * LONG).await);
    }
    let question = || Match::script(VERIFY).and(Match::key("held-0"));
    let asked = proxy.count(question());
    let slow = proxy.inject(Fault::DelayReply(ms(3_000)));
    let slow = slow.on(question()).arm();
    for round in 0..BREAKS {
        let cut = proxy.inject(Fault::ResetBefore);
        cut.on(Match::command("PTTL")).arm();
        let looked = client.get_lock("x").remain_time_to_live().await;
        looked.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        eventually("the first question is out", LONG, async || {
            slow.fired() == 1
        })
        .await;
    }
    // What is asked behind the slow answer is answered after it.
    eventually("it is asked once more", LONG, async || asked.seen() >= 2).await;
    assert!(asked.seen() <= 3, "{} questions", asked.seen());
    for guard in holds {
        guard.unlock().await.unwrap();
    }
}

/// Only the caller was connected, and it sends nothing more, so nobody else would notice what the server lost.
#[tokio::test]
async fn i8_a_server_that_was_away_when_the_keeper_came_is_asked_for_what_it_has() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    // A connection begins with these commands, and the caller has one.
    let away = proxy.inject(Fault::ResetBefore);
    let away = away.on(Match::command("CLIENT")).always().arm();
    let guard = fixed(&client, "held", 10 * LONG).await;
    eventually("the keeper came, and came again", LONG, async || {
        away.fired() >= 2
    })
    .await;
    server.restart();
    away.cancel();
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
}

/// A hold near its end has no time to wait for an answer; the others have.
#[tokio::test]
async fn a_hold_near_its_end_does_not_hurry_the_others() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let others: Vec<_> = {
        let mut others = Vec::new();
        for index in 0..20 {
            others.push(fixed(&client, &format!("held-{index}"), 2 * LONG).await);
        }
        others
    };
    let brief = fixed(&client, "brief", ms(1_000)).await;
    // A link as slow as that is not broken.
    proxy.latency(ms(150));
    eventually("it is near its end", LONG, async || {
        brief.valid_for() < ms(200)
    })
    .await;
    let accepted = proxy.accepted();
    let renewed = proxy.count(Match::script(VERIFY));
    let cut = proxy.inject(Fault::ResetBefore);
    cut.on(Match::command("PTTL")).arm();
    let _ = client.get_lock("x").remain_time_to_live().await;
    soon(brief.lost()).await;
    eventually("the others were verified", LONG, async || {
        renewed.seen() >= 1
    })
    .await;
    let looked = soon(client.get_lock("x").remain_time_to_live()).await;
    looked.unwrap();
    // The callers' own, which was cut.
    assert_eq!(proxy.accepted() - accepted, 1, "the keeper kept its own");
    proxy.latency(Duration::ZERO);
    for guard in others {
        guard.unlock().await.unwrap();
    }
}

/// While nothing can be written, one call at a time finds out when that is over.
#[tokio::test]
async fn an_outage_is_watched_by_one_call_at_a_time() {
    const HOLDS: usize = 1_500;
    let server = RedisServer::start();
    let client = Client::builder(&server.url()).watchdog_lease(ms(9_000));
    let client = client.connect().await.unwrap();
    let tasks: Vec<_> = (0..HOLDS)
        .map(|index| {
            let lock = client.get_lock(&format!("held-{index}"));
            tokio::spawn(async move { lock.lock().await })
        })
        .collect();
    let mut holds = Vec::new();
    for task in tasks {
        holds.push(task.await.unwrap().unwrap());
    }
    server
        .cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    eventually("renewals are refused", LONG, async || {
        holds.iter().all(|guard| guard.valid_for() < ms(4_800))
    })
    .await;
    server.reset_calls().await;
    eventually("time passes", LONG, async || {
        holds.iter().all(|guard| guard.valid_for() < ms(3_000))
    })
    .await;
    let looks = server.calls_of("hexists").await;
    server
        .cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;
    eventually("all are renewed", LONG, async || {
        holds.iter().all(|guard| guard.valid_for() > ms(4_800))
    })
    .await;
    assert!(looks <= HOLDS as u64, "{looks} looks in 1.8 s");
    for guard in holds {
        guard.check().expect("it was in time");
        drop(guard);
    }
    clean(&server).await;
}

/// Holds whose connection broke while nothing was answered are verified once something is.
#[tokio::test]
async fn what_broke_in_an_outage_is_verified_after_it() {
    let server = RedisServer::start();
    let client = Client::builder(&server.url()).watchdog_lease(ms(3_000));
    let client = client.connect().await.unwrap();
    let fixed = fixed(&client, "fixed", 10 * LONG).await;
    let watched = try_once(&client, "watched").await.unwrap().unwrap();
    server
        .cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    eventually("a renewal was refused", LONG, async || {
        let refused = server.info("errorstats", "errorstat_NOREPLICAS").await;
        refused.is_some()
    })
    .await;
    // With all that it knew, and all its settings.
    server.restart();
    assert_eq!(soon(fixed.lost()).await, LostReason::Missing);
    soon(watched.lost()).await;
}

/// A forced release may hit an attempt of ours whose answer is on its way.
#[test]
fn an_attempt_that_was_released_by_force_is_made_again() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (one, other) = (
        tokio::runtime::Runtime::new().unwrap(),
        tokio::runtime::Runtime::new().unwrap(),
    );
    let client = one.block_on(Client::connect(&proxy.url())).unwrap();
    // The server knows the script.
    drop(one.block_on(try_once(&client, "x")).unwrap());
    one.block_on(clean(&server));
    let slow = proxy.inject(Fault::DelayReply(ms(600)));
    slow.on(Match::script(ACQUIRE)).arm();
    let lock = client.get_lock("x");
    let acquiring = one.spawn(async move { lock.lock().await });
    other.block_on(async {
        eventually("it was executed", LONG, async || server.exists("x").await).await;
        assert!(client.get_lock("x").force_unlock().await.unwrap());
        assert!(!server.exists("x").await);
    });
    let guard = one.block_on(soon(acquiring)).unwrap().unwrap();
    one.block_on(async {
        assert!(server.exists("x").await, "what is granted is there");
        guard.unlock().await.unwrap();
        assert!(try_once(&client, "x").await.unwrap().is_some());
        clean(&server).await;
    });
}

/// Under the watchdog it renews the hold; a fixed lease still ends on time.
#[tokio::test]
async fn t3_what_is_verified_is_valid_for_the_watchdogs_lease_or_for_what_is_left() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let builder = Client::builder(&server.url()).watchdog_lease(LONG);
    let client = builder.clock(clock).connect().await.unwrap();
    let watched = try_once(&client, "watched").await.unwrap().unwrap();
    let left_alone = fixed(&client, "fixed", LONG).await;
    // Before any renewal is due.
    ahead.advance(LONG / 4);
    for (guard, name) in [(&watched, "watched"), (&left_alone, "fixed")] {
        server.cmd(&["PEXPIRE", name, "5000"]).await;
        guard.verify().await.unwrap();
        let left = server.pttl(name).await.try_into().unwrap();
        let renewed = guard.valid_for() > LONG * 7 / 8;
        assert_eq!(renewed, name == "watched", "{:?}", guard.valid_for());
        assert_eq!(ms(left) > LONG * 7 / 8, renewed, "{name}: {left} ms");
        assert!(ms(left) > LONG / 2, "{name}: {left} ms");
    }
    watched.unlock().await.unwrap();
    left_alone.unlock().await.unwrap();
    clean(&server).await;
}
