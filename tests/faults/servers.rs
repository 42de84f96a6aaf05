//! F6, F7 and F22: the server is gone, forgets scripts all the time, or stands still.

use std::time::{Duration, Instant};

use watchlock::{Client, Error, LockGuard, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use super::{BEFORE_THE_LEASE, HALF_A_MINUTE, TIMEOUT, hasty};
use crate::common::{SHORT, clean, soon};

/// By when waiters are back after a restart; the promise is 250 ms.
const BACK: Duration = Duration::from_secs(3);

async fn renewed(server: &RedisServer, times: u64) {
    let before = server.calls_of("pexpire").await;
    eventually("renewed", BEFORE_THE_LEASE, async || {
        server.calls_of("pexpire").await >= before + times
    })
    .await;
}

#[tokio::test]
async fn f6_a_server_that_is_gone_is_waited_for_and_holds_end_by_their_own_clock() {
    let server = RedisServer::start();
    let client = hasty(&server.url()).watchdog_lease(SHORT);
    let client = client.connect().await.unwrap();
    let guard = client.get_lock("held").lock().await.unwrap();
    server.kill();
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(guard.unlock().await.unwrap_err().is_lost());
    let once = client
        .get_lock("other")
        .try_lock(Duration::ZERO, SHORT)
        .await;
    assert!(matches!(once, Err(Error::Unavailable { .. })), "{once:?}");
    let lock = client.get_lock("held");
    let waiter = tokio::spawn(async move { lock.lock().await });
    server.launch();
    server.ready().await;
    let ready = Instant::now();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert!(ready.elapsed() < BACK);
    guard.unlock().await.unwrap();
}

/// A thousand holds, renewed some twenty thousand times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_server_that_forgets_scripts_all_the_time_costs_nothing() {
    const HOLDS: usize = 1_000;
    let server = RedisServer::start();
    let client = Client::builder(&server.url()).watchdog_lease(SHORT * 2);
    let client = client.connect().await.unwrap();
    let mut guards = Vec::new();
    for i in 0..HOLDS {
        guards.push(client.get_lock(&format!("hold-{i}")).lock().await.unwrap());
    }
    server.reset_calls().await;
    for _ in 0..1_000 {
        server.cmd(&["SCRIPT", "FLUSH"]).await;
    }
    eventually("renewed through it", HALF_A_MINUTE, async || {
        server.cmd(&["SCRIPT", "FLUSH"]).await;
        server.calls_of("pexpire").await >= 20_000
    })
    .await;
    assert!(guards.iter().all(LockGuard::is_valid));
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn f22_a_stall_shorter_than_the_lease_costs_nothing() {
    let server = RedisServer::start();
    let client = hasty(&server.url()).watchdog_lease(SHORT * 5);
    let client = client.connect().await.unwrap();
    let guard = client.get_lock("stall").lock().await.unwrap();
    server.freeze();
    let silent = client
        .get_lock("other")
        .try_lock(Duration::ZERO, SHORT)
        .await;
    assert!(matches!(silent, Err(Error::Unavailable { .. })));
    server.resume();
    let pause = TIMEOUT.as_millis().to_string();
    server.cmd(&["CLIENT", "PAUSE", &pause, "ALL"]).await;
    renewed(&server, 3).await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    clean(&server).await;
}

/// Nothing renews it: only the PING on a quiet connection finds out, and not only the first one.
#[tokio::test]
async fn f6_i8_a_hold_that_is_not_renewed_is_lost_soon_after_a_restart_that_forgets() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let ten_minutes = HALF_A_MINUTE * 20;
    let builder = Client::builder(&proxy.url()).watchdog_lease(ten_minutes);
    let client = builder.connect().await.unwrap();
    let guard = client
        .get_lock("fixed")
        .lock_with_lease(ten_minutes)
        .await
        .unwrap();
    eventually(
        "the connection is asked again and again",
        HALF_A_MINUTE,
        async || {
            let asked = proxy.commands().get("PING").copied();
            asked.is_some_and(|asked| asked >= 6)
        },
    )
    .await;
    server.restart();
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(guard.unlock().await.unwrap_err().is_lost());
}

/// While renewals fail, what the broken connections had is verified once they work again. The hold that could not be
/// renewed is over by then, so none of them works again, and nothing else asks for the other.
#[tokio::test]
async fn f6_i8_a_hold_that_is_not_renewed_is_lost_though_those_that_were_renewed_ended_in_the_outage()
 {
    let server = RedisServer::start();
    let client = hasty(&server.url()).watchdog_lease(SHORT);
    let client = client.connect().await.unwrap();
    let lock = client.get_lock("long");
    let long = lock.lock_with_lease(HALF_A_MINUTE * 20).await.unwrap();
    let renewed_hold = client.get_lock("renewed").lock().await.unwrap();
    renewed(&server, 2).await;
    server.freeze();
    assert_eq!(soon(renewed_hold.lost()).await, LostReason::Expired);
    drop(renewed_hold);
    assert!(long.is_valid());
    server.restart();
    assert_eq!(soon(long.lost()).await, LostReason::Missing);
    assert!(long.unlock().await.unwrap_err().is_lost());
}
