//! Renewals: on time, no more than needed, and whatever user code does.

use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use watchlock::{Client, Clock};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, clean, connect_short, count, gone, ms};

async fn scripts(server: &RedisServer) -> u64 {
    server.calls_of("evalsha").await + server.calls_of("eval").await
}

#[tokio::test]
async fn a_hold_is_renewed_every_third_of_its_lease() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("period").lock().await.unwrap();
    let (started, before) = (Instant::now(), scripts(&server).await);
    eventually("six renewals", LONG, async || {
        scripts(&server).await >= before + 6
    })
    .await;
    // The look may come a tenth of a period early, or the renewal by it.
    let earliest = SHORT / 3 * 6 * 7 / 10;
    assert!(started.elapsed() > earliest, "{:?}", started.elapsed());
    assert!(guard.is_valid() && count(&server, "period").await == 1);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn t3_a_renewal_writes_the_watchdogs_lease() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("lease").lock().await.unwrap();
    let before = scripts(&server).await;
    eventually("a renewal", LONG, async || scripts(&server).await > before).await;
    let ttl = server.pttl("lease").await;
    let lease = i64::try_from(SHORT.as_millis()).unwrap();
    assert!(ttl <= lease && ttl > 0, "{ttl}");
    assert!(guard.valid_for() <= SHORT);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn i7_nothing_is_renewed_after_the_last_release() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    for how in 0..3 {
        let guard = client.get_lock("over").lock().await.unwrap();
        match how {
            0 => guard.unlock().await.unwrap(),
            1 => drop(guard),
            _ => assert!(client.get_lock("over").force_unlock().await.unwrap()),
        }
        gone(&server, "over").await;
    }
    let quiet = Duration::from_millis(50);
    tokio::time::sleep(quiet).await;
    server.reset_calls().await;
    tokio::time::sleep(SHORT).await;
    assert_eq!(scripts(&server).await, 0);
}

#[tokio::test]
async fn many_holds_are_renewed_in_few_calls_and_none_is_lost() {
    const HOLDS: usize = 500;
    let server = RedisServer::start();
    let lease = SHORT * 3;
    let builder = Client::builder(&server.url()).watchdog_lease(lease);
    let client = builder.connect().await.unwrap();
    let mut guards = Vec::new();
    for i in 0..HOLDS {
        let lock = client.get_lock(&format!("many-{i}"));
        guards.push(lock.lock().await.unwrap());
    }
    server.reset_calls().await;
    tokio::time::sleep(lease).await;
    let calls = scripts(&server).await;
    assert!(guards.iter().all(watchlock::LockGuard::is_valid));
    assert!(calls >= 15, "three periods of five calls: {calls}");
    assert!(calls <= 100, "not a call for each: {calls}");
    assert_eq!(server.keys().await.len(), HOLDS);
    drop(guards);
    clean(&server).await;
}

#[tokio::test]
async fn a_lock_that_turned_into_something_else_costs_only_its_own_hold() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let good = client.get_lock("good").lock().await.unwrap();
    let bad = client.get_lock("bad").lock().await.unwrap();
    server.cmd(&["SET", "bad", "text"]).await;
    bad.lost().await;
    let lost = tokio::time::timeout(SHORT * 2, good.lost()).await;
    assert!(lost.is_err() && good.is_valid());
    good.unlock().await.unwrap();
    assert!(bad.unlock().await.unwrap_err().is_lost());
    let text: String = server.query(&["GET", "bad"]).await;
    assert_eq!(text, "text");
}

#[tokio::test]
async fn script_flush_loses_no_hold() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("flush").lock().await.unwrap();
    let end = Instant::now() + SHORT * 2;
    while Instant::now() < end {
        server.cmd(&["SCRIPT", "FLUSH"]).await;
        tokio::time::sleep(ms(1)).await;
    }
    assert!(guard.is_valid());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn cut_connections_lose_no_hold() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("cut").lock().await.unwrap();
    let end = Instant::now() + SHORT * 2;
    while Instant::now() < end {
        server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        tokio::time::sleep(ms(100)).await;
    }
    assert!(guard.is_valid());
    guard.unlock().await.unwrap();
}

#[test]
fn i8_blocked_runtimes_lose_no_hold_and_keep_no_dropped_guard() {
    let mut current = Builder::new_current_thread();
    let mut workers = Builder::new_multi_thread();
    workers.worker_threads(2);
    for (builder, threads) in [(&mut current, 1), (&mut workers, 2)] {
        let runtime = builder.enable_all().build().unwrap();
        let server = RedisServer::start();
        let (guard, client) = runtime.block_on(async {
            let client = connect_short(&server).await;
            let guard = client.get_lock("blocked").lock().await.unwrap();
            (guard, client)
        });
        let dropped = runtime.block_on(client.get_lock("dropped").lock());
        let dropped = dropped.unwrap();
        let blocks: Vec<_> = (0..threads)
            .map(|_| runtime.spawn(async { std::thread::sleep(SHORT * 5) }))
            .collect();
        runtime.block_on(async {
            if threads == 1 {
                drop(dropped);
                std::thread::sleep(SHORT * 5);
            } else {
                drop(dropped);
                for block in blocks {
                    block.await.unwrap();
                }
            }
            assert!(guard.is_valid());
            assert!(!server.exists("dropped").await);
            guard.unlock().await.unwrap();
        });
    }
}

#[tokio::test]
async fn a_suspend_shorter_than_the_lease_is_followed_by_a_renewal_at_once() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock);
    let client = client.connect().await.unwrap();
    let guard = client.get_lock("nap").lock().await.unwrap();
    let before = scripts(&server).await;
    ahead.advance(Duration::from_secs(15));
    // Due after 10 s of 30 s: long before any timer of the system's clock.
    eventually("a renewal", Duration::from_secs(5), async || {
        scripts(&server).await > before
    })
    .await;
    assert!(guard.is_valid());
    eventually("valid for longer", LONG, async || {
        guard.valid_for() > Duration::from_secs(20)
    })
    .await;
    guard.unlock().await.unwrap();
}
