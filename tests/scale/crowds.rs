//! Thousands of callers at once, each for a lock of its own: what waits in this process is not the server's silence.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use watchlock::{Backoff, Client, Error, Lease, Quorum};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, ms, poll_once, script, soon, subscribed};
use crate::{AGES, MANY, alone};

/// Each task takes a lock of its own and gives it back.
fn crowd(client: &Client, many: usize) -> Vec<tokio::task::JoinHandle<Result<(), Error>>> {
    let take = |number| {
        let lock = client.get_lock(&format!("job:{number}"));
        tokio::spawn(async move {
            let guard = lock.lock().await?;
            // On a machine that is busy its answer may come too late; the keeper sees it through.
            let _ = guard.unlock().await;
            Ok(())
        })
    };
    (0..many).map(take).collect()
}

async fn all_done(crowd: Vec<tokio::task::JoinHandle<Result<(), Error>>>) {
    for done in tokio::time::timeout(AGES, join_all(crowd)).await.unwrap() {
        done.unwrap().unwrap();
    }
}

/// The keeper connects for the first waiter.
async fn connect_all(server: &RedisServer, client: &Client) {
    let held = client.get_lock("warm").lock().await.unwrap();
    let waiting = client.get_lock("warm");
    let waiting = tokio::spawn(async move { waiting.lock().await?.unlock().await });
    subscribed(server, "warm").await;
    held.unlock().await.unwrap();
    all_done(vec![waiting]).await;
}

async fn scripts(server: &RedisServer) -> u64 {
    server.calls_of("evalsha").await + server.calls_of("eval").await
}

/// Far more commands than this process gets done within a command time-out.
#[tokio::test]
async fn a_crowd_costs_two_scripts_a_lock_and_no_connection() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let client = Client::builder(&server.url()).command_timeout(ms(250));
    let client = client.connect().await.unwrap();
    connect_all(&server, &client).await;
    let connected = server.info("stats", "total_connections_received").await;
    let before = scripts(&server).await;
    all_done(crowd(&client, MANY)).await;
    let sent = scripts(&server).await - before;
    assert!(sent <= 21 * MANY as u64 / 10, "{sent} scripts");
    let now = server.info("stats", "total_connections_received").await;
    assert_eq!(now, connected, "connections");
    eventually("all are released", LONG, async || {
        server.keys().await.is_empty()
    })
    .await;
}

/// Far more rounds than this process gets done within the 50 ms in which each server has to answer. Some are made again.
#[tokio::test]
async fn of_a_crowd_at_a_quorum_each_gets_its_lock() {
    let _alone = alone().await;
    let servers = [(); 3].map(|()| RedisServer::start());
    let quorum = Quorum::builder(servers.each_ref().map(RedisServer::url));
    let quorum = quorum.restart_delay(Duration::ZERO);
    let quorum = quorum.connect().await.unwrap();
    let before = scripts(&servers[0]).await;
    let crowd = (0..MANY).map(|number| {
        let lock = quorum.get_lock(&format!("job:{number}"));
        tokio::spawn(async move {
            let guard = lock.lock().await?;
            let _ = guard.unlock().await;
            Ok(())
        })
    });
    all_done(crowd.collect()).await;
    let sent = scripts(&servers[0]).await - before;
    assert!(sent <= 3 * MANY as u64, "{sent} scripts");
    for server in &servers {
        eventually("all are released", LONG, async || {
            server.keys().await.is_empty()
        })
        .await;
    }
}

/// A crowd comes while the server is out of reach, for longer than several command time-outs: nobody fails, and no lock
/// costs more.
async fn waits_and_goes_on(server: &RedisServer, url: &str, begins: impl Fn(), ends: impl Fn()) {
    let client = Client::builder(url)
        .command_timeout(ms(500))
        .unavailable_after(Duration::from_secs(60));
    let client = client.connect().await.unwrap();
    all_done(crowd(&client, 1)).await;
    let before = scripts(server).await;
    begins();
    let waiting = crowd(&client, MANY);
    tokio::time::sleep(ms(2_500)).await; // the fault
    ends();
    all_done(waiting).await;
    let sent = scripts(server).await - before;
    assert!(sent <= 21 * MANY as u64 / 10, "{sent} scripts");
}

/// Only what was on the connection when the server stopped has an unknown outcome.
#[tokio::test]
async fn a_crowd_behind_a_server_that_stands_still_waits_and_goes_on() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let (begins, ends) = (|| server.freeze(), || server.resume());
    waits_and_goes_on(&server, &server.url(), begins, ends).await;
}

/// Nothing is sent meanwhile, so nothing has to be sent again.
#[tokio::test]
async fn a_crowd_behind_a_server_that_refuses_connections_waits_and_goes_on() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let begins = || {
        proxy.refuse();
        proxy.reset_all();
    };
    waits_and_goes_on(&server, &proxy.url(), begins, || proxy.accept()).await;
}

const BUSY_FOR_300_MS: &str = "
    local function ms()
        local now = redis.call('TIME')
        return now[1] * 1000 + now[2] / 1000
    end
    local began = ms()
    while ms() < began + 300 do end
";

/// Others keep the server busy, so that it reads a part of what is sent three times a second. What is more than it
/// answers within a command time-out must wait in the client: on the connection it would all be unanswered, be sent
/// again, and make the server's work ever more.
#[tokio::test]
async fn a_crowd_at_a_slow_server_sends_no_more_than_it_answers_in_time() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    connect_all(&server, &client).await;
    let before = scripts(&server).await;
    let busy = AtomicUsize::new(0);
    let others = async {
        loop {
            busy.fetch_add(1, Ordering::Relaxed);
            server.cmd(&["EVAL", BUSY_FOR_300_MS, "0"]).await;
        }
    };
    let locks = 3_000;
    tokio::select! {
        () = all_done(crowd(&client, locks)) => {}
        () = others => {}
    }
    let sent = scripts(&server).await - before - busy.into_inner() as u64;
    assert!(sent <= 21 * locks as u64 / 10, "{sent} scripts");
}

/// What is read of such a connection is not seen, only replies are.
#[tokio::test]
async fn a_crowd_over_a_connection_that_redis_rs_drives_costs_no_more() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let given = redis::Client::open(server.url()).unwrap();
    let client = Client::builder_from(&given).connect().await.unwrap();
    connect_all(&server, &client).await;
    let connected = server.info("stats", "total_connections_received").await;
    let before = scripts(&server).await;
    all_done(crowd(&client, MANY)).await;
    let sent = scripts(&server).await - before;
    assert!(sent <= 21 * MANY as u64 / 10, "{sent} scripts");
    let now = server.info("stats", "total_connections_received").await;
    assert_eq!(now, connected, "connections");
}

/// An answer gives the place of its command back, also if nobody polls for it.
#[tokio::test]
async fn tries_that_nobody_polls_any_more_do_not_keep_the_places_of_others() {
    let _alone = alone().await;
    let server = RedisServer::start();
    for (before, unpolled) in [(0, 40), (800, 800)] {
        let client = Client::builder(&server.url()).command_timeout(AGES / 2);
        let client = client.connect().await.unwrap();
        // Each answer makes room for one more.
        for _ in 0..before {
            all_done(crowd(&client, 1)).await;
        }
        let takes = |number| {
            let lock = client.get_lock(&format!("unpolled:{number}"));
            Box::pin(async move { lock.lock().await })
        };
        let mut unpolled: Vec<_> = (0..unpolled).map(takes).collect();
        for takes in &mut unpolled {
            assert!(poll_once(takes).await.is_none());
        }
        let guard = soon(client.get_lock("other").lock()).await.unwrap();
        guard.unlock().await.unwrap();
        drop(unpolled);
    }
}

/// The server takes connections and does not answer, so a new connection never gets that far.
#[tokio::test]
async fn a_try_that_was_not_sent_says_so_and_is_not_released() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    all_done(crowd(&client, 1)).await;
    server.freeze();
    proxy.reset_all();
    // The first one finds out that the connection is gone.
    let first = client.get_lock("first");
    let noticed = first.try_lock(Duration::ZERO, Lease::Watchdog);
    soon(noticed).await.unwrap_err();
    let tries = (0..200).map(|number| {
        let lock = client.get_lock(&format!("job:{number}"));
        async move { lock.try_lock(Duration::ZERO, Lease::Watchdog).await }
    });
    for outcome in soon(join_all(tries)).await {
        let error = outcome.unwrap_err();
        assert!(error.is_transient() && !error.was_sent(), "{error:?}");
    }
    let before = proxy.scripts().values().sum::<u64>();
    server.resume();
    let guard = soon(client.get_lock("after").lock()).await.unwrap();
    soon(guard.unlock()).await.unwrap();
    let sent = proxy.scripts().values().sum::<u64>() - before;
    assert!(sent <= 4, "{sent} scripts for one lock");
}

/// Nobody wants to know any more what they came to.
#[tokio::test]
async fn acknowledged_tries_of_an_outage_do_not_run_afterwards() {
    let _alone = alone().await;
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    replica.synced().await;
    master.acknowledged(1).await;
    let client = Client::builder(&master.url())
        .command_timeout(ms(300))
        .acknowledged_by(1, ms(75));
    let client = client.connect().await.unwrap();
    all_done(crowd(&client, 1)).await;
    let before = scripts(&master).await;
    master.freeze();
    let failed = Arc::new(AtomicUsize::new(0));
    let tries = (0..2_000).map(|number| {
        let (lock, failed) = (
            client.get_lock(&format!("job:{number}")),
            Arc::clone(&failed),
        );
        async move {
            let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
            failed.fetch_add(usize::from(tried.is_err()), Ordering::Relaxed);
        }
    });
    soon(join_all(tries)).await;
    assert_eq!(failed.load(Ordering::Relaxed), 2_000);
    master.resume();
    let after = soon(client.get_lock("after").lock()).await.unwrap();
    soon(after.unlock()).await.unwrap();
    eventually("all are released", LONG, async || {
        master.keys().await.is_empty()
    })
    .await;
    let sent = scripts(&master).await - before;
    assert!(sent <= 2 * 2_000, "{sent} scripts");
}

/// A stranger has so many locks, and counts so many latches.
async fn strangers(server: &RedisServer, many: usize) {
    let text = "for i = 0, ARGV[1] - 1 do
      redis.call('HSET', 'job:' .. i, 'stranger:1', '1')
      redis.call('PEXPIRE', 'job:' .. i, 600000)
      redis.call('SET', 'latch:' .. i, '1')
    end";
    server.cmd(&["EVAL", text, "0", &many.to_string()]).await;
}

/// One waits for each of many things, and each poll is a call of this script: more than a connection over this distance
/// carries within a command time-out. The server answers all the time.
async fn polls_far_away(
    file: &str,
    waits: impl Fn(&Client, usize) -> tokio::task::JoinHandle<Result<(), Error>>,
) {
    let _alone = alone().await;
    let many = 4_000;
    let server = RedisServer::start();
    strangers(&server, many).await;
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).connect_timeout(LONG);
    let client = client.connect().await.unwrap();
    proxy.latency(ms(800));
    let polls = proxy.count(Match::script(&script(file)));
    let waiting: Vec<_> = (0..many).map(|number| waits(&client, number)).collect();
    eventually("each is asked for again", AGES, async || {
        let failed = waiting.iter().filter(|waiter| waiter.is_finished()).count();
        assert_eq!(failed, 0, "after {} polls", polls.seen());
        polls.seen() >= 4 * many as u64
    })
    .await;
    for waiter in waiting {
        waiter.abort();
    }
    proxy.latency(Duration::ZERO);
}

#[tokio::test]
async fn a_crowd_that_polls_locks_far_away_is_not_told_that_the_server_is_silent() {
    polls_far_away("lock/acquire.lua", |client, number| {
        let lock = client.get_lock(&format!("job:{number}"));
        tokio::spawn(async move { lock.lock().await.map(drop) })
    })
    .await;
}

#[tokio::test]
async fn a_crowd_that_polls_latches_far_away_is_not_told_that_the_server_is_silent() {
    polls_far_away("latch/look.lua", |client, number| {
        let latch = client.get_count_down_latch(&format!("latch:{number}"));
        tokio::spawn(async move { latch.wait().await })
    })
    .await;
}

/// More than a connection over this distance carries in the time for which a re-entry is tried in vain.
#[tokio::test]
async fn a_crowd_that_enters_again_far_away_is_not_told_that_the_server_is_silent() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).watchdog_lease(AGES);
    let client = client.connect().await.unwrap();
    let holds = (0..8_000).map(|number| {
        let lock = client.get_lock(&format!("job:{number}"));
        async move { lock.lock().await.unwrap() }
    });
    let guards = join_all(holds).await;
    proxy.latency(ms(800));
    let entered = join_all(guards.iter().map(|guard| guard.reenter(Lease::Watchdog))).await;
    proxy.latency(Duration::ZERO);
    let failed: Vec<_> = entered
        .iter()
        .filter_map(|level| level.as_ref().err())
        .collect();
    assert!(failed.is_empty(), "{}: {:?}", failed.len(), failed[0]);
}

/// Each try waits in this process for longer than a command time-out, and so does the one at the end of the wait.
#[tokio::test]
async fn a_crowd_whose_wait_ends_far_away_is_told_that_the_locks_are_busy() {
    let _alone = alone().await;
    let many = 4_000;
    let server = RedisServer::start();
    strangers(&server, many).await;
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).connect_timeout(LONG);
    let client = client.connect().await.unwrap();
    proxy.latency(ms(800));
    let waits = (0..many).map(|number| {
        let lock = client.get_lock(&format!("job:{number}"));
        async move { lock.try_lock(ms(20_000), Lease::Watchdog).await }
    });
    let waited = tokio::time::timeout(AGES, join_all(waits)).await.unwrap();
    let failed: Vec<_> = waited
        .iter()
        .filter_map(|waited| waited.as_ref().err())
        .collect();
    assert!(failed.is_empty(), "{}: {:?}", failed.len(), failed[0]);
    assert!(waited.iter().all(|waited| matches!(waited, Ok(None))));
    proxy.latency(Duration::ZERO);
}

/// What was on the connection is tried for again. That it had waited in this process says nothing of the server.
#[tokio::test]
async fn a_crowd_far_away_does_not_give_up_when_a_connection_is_cut_once() {
    let _alone = alone().await;
    let many = 4_000;
    let server = RedisServer::start();
    strangers(&server, many).await;
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).connect_timeout(LONG);
    let client = client.command_timeout(LONG).unavailable_after(ms(2_000));
    let client = client.connect().await.unwrap();
    proxy.latency(ms(800));
    let polls = proxy.count(Match::script(&script("lock/acquire.lua")));
    let waiting: Vec<_> = (0..many)
        .map(|number| {
            let lock = client.get_lock(&format!("job:{number}"));
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    let polled = async |times: u64| {
        eventually("each is asked for again", AGES, async || {
            let failed = waiting.iter().filter(|waiter| waiter.is_finished());
            assert_eq!(failed.count(), 0, "after {} polls", polls.seen());
            polls.seen() >= times * many as u64
        })
        .await;
    };
    polled(3).await;
    proxy.reset_all();
    polled(5).await;
    for waiter in waiting {
        waiter.abort();
    }
    proxy.latency(Duration::ZERO);
}

/// Over a slow link. Confirmations come all the time, and the last one long after a command time-out.
#[tokio::test]
async fn a_crowd_subscribes_once_each_however_long_that_takes() {
    const SOME: usize = 300;
    let _alone = alone().await;
    let server = RedisServer::start();
    strangers(&server, SOME).await;
    let proxy = Proxy::to(&server);
    for place in 1..=SOME as u64 {
        let slow = proxy.inject(Fault::DelayReply(ms(8 * place)));
        slow.on(Match::command("SUBSCRIBE")).nth(place).arm();
    }
    let subscribed = proxy.count(Match::command("SUBSCRIBE"));
    let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let client = Client::builder(&proxy.url()).backoff(minute);
    let client = client.command_timeout(ms(600)).connect().await.unwrap();
    let before = scripts(&server).await;
    let waiting = crowd(&client, SOME);
    // The caller's try, and the one behind the confirmation.
    eventually("each listens", LONG, async || {
        assert!(!client.stats().polling, "after {}", subscribed.seen());
        scripts(&server).await - before >= 2 * SOME as u64
    })
    .await;
    assert_eq!(subscribed.seen(), SOME as u64);
    for waiter in waiting {
        waiter.abort();
    }
}
