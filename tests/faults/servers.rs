//! F6 to F8 and F22: the server restarts, forgets scripts or keys, or stands still.

use std::time::{Duration, Instant};

use watchlock::{Client, Error, Lease, LockGuard, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{BEFORE_THE_LEASE, HALF_A_MINUTE, TIMEOUT, hasty};
use crate::common::{
    SHORT, clean, connect, connect_short, gone, is_free, ms, soon, subscribed, without_polls,
};

/// By when waiters are back after a restart; promised are 250 ms.
const BACK: Duration = Duration::from_secs(3);

async fn renewed(server: &RedisServer, times: u64) {
    let before = server.calls_of("pexpire").await;
    eventually("renewed", BEFORE_THE_LEASE, async || {
        server.calls_of("pexpire").await >= before + times
    })
    .await;
}

#[tokio::test]
async fn f6_i8_a_restart_that_forgets_loses_all_holds_at_once() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let watched = client.get_lock("watched").lock().await.unwrap();
    let fixed = client
        .get_lock("fixed")
        .lock_for(HALF_A_MINUTE)
        .await
        .unwrap();
    let other = without_polls(&server).connect().await.unwrap();
    let lock = other.get_lock("fixed");
    let waiter =
        tokio::spawn(async move { lock.lock().await.map(|guard| (guard, Instant::now())) });
    subscribed(&server, "fixed").await;
    // The keeper's connection is there, and will turn out to be cut.
    renewed(&server, 1).await;
    server.restart();
    let ready = Instant::now();
    let (guard, got_in) = soon(waiter).await.unwrap().unwrap();
    assert!(got_in.saturating_duration_since(ready) < BACK);
    for old in [watched, fixed] {
        let lost = tokio::time::timeout(BEFORE_THE_LEASE, old.lost()).await;
        // Also the hold that is not renewed: all are verified when the connection turns out to be cut.
        assert_eq!(
            lost.expect("told long before its lease"),
            LostReason::Missing
        );
        assert!(old.unlock().await.unwrap_err().is_lost());
    }
    // Whatever they sent behind it is not ours to fear.
    guard.check().unwrap();
    assert_eq!(server.keys().await, ["fixed"]);
    guard.unlock().await.unwrap();
    assert!(is_free(&client, "watched").await);
    clean(&server).await;
}

#[tokio::test]
async fn f6_a_restart_that_remembers_costs_no_hold() {
    let server = RedisServer::options().aof().start();
    let client = connect_short(&server).await;
    let watched = client.get_lock("watched").lock().await.unwrap();
    let fixed = client
        .get_lock("fixed")
        .lock_for(HALF_A_MINUTE)
        .await
        .unwrap();
    let other = without_polls(&server).connect().await.unwrap();
    let lock = other.get_lock("fixed");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "fixed").await;
    server.restart();
    renewed(&server, 6).await;
    watched.check().unwrap();
    fixed.check().unwrap();
    assert!(!waiter.is_finished());
    subscribed(&server, "fixed").await;
    watched.unlock().await.unwrap();
    fixed.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
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
async fn f8_a_key_that_an_operator_deleted_is_missed_at_the_next_renewal() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    for command in [vec!["DEL", "gone"], vec!["FLUSHALL"]] {
        let guard = client.get_lock("gone").lock().await.unwrap();
        let view = guard.hold();
        let began = Instant::now();
        server.cmd(&command).await;
        assert_eq!(soon(guard.lost()).await, LostReason::Missing, "{command:?}");
        assert!(began.elapsed() < SHORT, "{command:?}");
        assert_eq!(soon(view.lost()).await, LostReason::Missing);
        assert!(!guard.is_valid() && !view.is_valid());
        assert!(guard.check().unwrap_err().is_lost() && view.check().unwrap_err().is_lost());
        assert!(guard.unlock().await.unwrap_err().is_lost());
    }
    clean(&server).await;
}

#[tokio::test]
async fn f8_a_fixed_hold_whose_key_was_deleted_is_valid_to_its_end_and_its_unlock_says_so() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let waited = client.get_lock("waited").lock_for(SHORT).await.unwrap();
    let given_back = client
        .get_lock("back")
        .lock_for(HALF_A_MINUTE)
        .await
        .unwrap();
    server.cmd(&["FLUSHALL"]).await;
    let lost = given_back.unlock().await.unwrap_err();
    let missing = LostReason::Missing;
    assert!(
        matches!(lost, Error::Lost { reason, .. } if reason == missing),
        "{lost}"
    );
    assert_eq!(soon(waited.lost()).await, LostReason::Expired);
}

#[tokio::test]
async fn f8_an_evicted_hold_is_lost() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("evicted").lock().await.unwrap();
    let policy = [
        "CONFIG",
        "SET",
        "maxmemory-policy",
        "volatile-lru",
        "maxmemory",
        "1",
    ];
    server.cmd(&policy).await;
    gone(&server, "evicted").await;
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(is_free(&client, "evicted").await);
}

/// The renewal of a hold that is gone neither lengthens nor takes what a stranger has now.
#[tokio::test]
async fn f8_i3_a_renewal_touches_no_strangers_hold() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let old = client.get_lock("taken").lock().await.unwrap();
    let stranger = [("HSET", "stranger:1", "1"), ("PEXPIRE", "60000", "")];
    server.cmd(&["DEL", "taken"]).await;
    server
        .cmd(&[stranger[0].0, "taken", stranger[0].1, stranger[0].2])
        .await;
    server.cmd(&[stranger[1].0, "taken", stranger[1].1]).await;
    assert_eq!(soon(old.lost()).await, LostReason::Missing);
    assert!(old.unlock().await.unwrap_err().is_lost());
    eventually("its release was sent", BEFORE_THE_LEASE, async || {
        server.calls_of("hdel").await > 0
    })
    .await;
    assert_eq!(
        server.hash("taken").await.keys().collect::<Vec<_>>(),
        ["stranger:1"]
    );
    assert!(server.pttl("taken").await > 30_000);
}

/// Neither do a level more and a level less.
#[tokio::test]
async fn f8_i3_levels_touch_no_strangers_hold() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    for enters in [true, false] {
        let outer = client
            .get_lock("taken")
            .lock_for(HALF_A_MINUTE)
            .await
            .unwrap();
        let inner = outer.reenter(Lease::Watchdog).await.unwrap();
        server.cmd(&["DEL", "taken"]).await;
        server.cmd(&["HSET", "taken", "stranger:1", "1"]).await;
        server.cmd(&["PEXPIRE", "taken", "1000000"]).await;
        let told = if enters {
            inner.reenter(Lease::Watchdog).await.map(drop).unwrap_err()
        } else {
            inner.unlock().await.unwrap_err()
        };
        let missing = LostReason::Missing;
        assert!(
            matches!(told, Error::Lost { reason, .. } if reason == missing),
            "{told}"
        );
        assert!(!outer.is_valid());
        let hash = server.hash("taken").await;
        assert_eq!(
            hash.into_iter().collect::<Vec<_>>(),
            [("stranger:1".into(), "1".into())]
        );
        assert!(server.pttl("taken").await > 900_000);
        server.cmd(&["DEL", "taken"]).await;
    }
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

#[tokio::test]
async fn f22_i8_a_stall_longer_than_the_lease_is_a_loss_while_it_lasts() {
    let server = RedisServer::start();
    let client = hasty(&server.url()).watchdog_lease(SHORT);
    let client = client.connect().await.unwrap();
    let guard = client.get_lock("stall").lock().await.unwrap();
    let limit = guard.valid_for() + ms(500);
    server.freeze();
    let began = Instant::now();
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(began.elapsed() < limit + SHORT);
    assert!(!guard.is_valid());
    let late = soon(guard.unlock()).await.unwrap_err();
    assert!(late.is_lost());
    server.resume();
    let again = soon(client.get_lock("stall").lock()).await.unwrap();
    again.unlock().await.unwrap();
    clean(&server).await;
}
