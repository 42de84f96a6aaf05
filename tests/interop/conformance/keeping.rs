//! How long a hold lives: fixed leases, the watchdog, and the end of a process.

use std::time::{Duration, Instant};

use watchlock::{LostReason, Ttl};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use super::{LATE, LONG, SHORT, connect, connect_short, is_free};

/// A client gives up a lease this much before its end: 1 % and 2 ms, aimed 2 ms early, and Redis counts whole ms.
fn early(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(5)
}

#[tokio::test]
async fn a_fixed_lease_ends_by_itself() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let lease = Duration::from_millis(400);
    let started = Instant::now();
    let old = one.get_lock("fixed").lock_for(lease).await.unwrap();

    let new = other.get_lock("fixed").lock().await.unwrap();

    let took = started.elapsed();
    assert!(
        took + early(lease) >= lease && took < lease + LATE,
        "{took:?}"
    );
    assert_eq!(old.lost().await, LostReason::Expired);
    assert!(old.unlock().await.unwrap_err().is_lost());
    assert!(
        other.get_lock("fixed").is_locked().await.unwrap(),
        "the late unlock harmed it"
    );
    new.unlock().await.unwrap();
}

#[tokio::test]
async fn an_expired_lock_is_taken_afresh_by_the_same_owner() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("afresh");
    let old = lock.lock_for(Duration::from_millis(100)).await.unwrap();
    old.lost().await;
    assert!(!lock.is_held());
    drop(old);
    let new = lock.lock().await.unwrap();
    assert_eq!(lock.hold_count(), 1);
    new.unlock().await.unwrap();
}

#[tokio::test]
async fn the_time_left_is_told() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("left");
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::Free);

    let guard = lock.lock_for(Duration::from_secs(10)).await.unwrap();
    assert!(left(&lock.remain_time_to_live().await.unwrap()) <= Duration::from_secs(10));
    guard.unlock().await.unwrap();

    let guard = lock.lock().await.unwrap();
    let watchdog = left(&lock.remain_time_to_live().await.unwrap());
    assert!(watchdog > Duration::from_secs(10) && watchdog <= Duration::from_secs(30));
    server.cmd(&["PERSIST", "left"]).await;
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::NoExpiry);
    guard.unlock().await.unwrap();
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::Free);
}

fn left(ttl: &Ttl) -> Duration {
    match ttl {
        Ttl::Left(left) => *left,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_watchdog_keeps_many_locks_for_as_long_as_they_are_held() {
    let server = RedisServer::start();
    let (client, other) = (connect_short(&server).await, connect(&server).await);
    let mut guards = Vec::new();
    for i in 0..200 {
        guards.push(client.get_lock(&format!("kept-{i}")).lock().await.unwrap());
    }

    let first_lost = async {
        let lost: Vec<_> = guards.iter().map(|guard| Box::pin(guard.lost())).collect();
        futures_util::future::select_all(lost).await
    };
    assert!(
        tokio::time::timeout(SHORT * 3, first_lost).await.is_err(),
        "one was lost"
    );

    assert_eq!(server.keys().await.len(), 200);
    assert!(!is_free(&other, "kept-0").await);
    for guard in guards {
        guard.check().unwrap();
        guard.unlock().await.unwrap();
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn the_watchdog_stops_with_the_last_level() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("stops").lock().await.unwrap();
    eventually("a renewal", LONG, async || {
        server.calls_of("pexpire").await >= 2
    })
    .await;

    guard.unlock().await.unwrap();

    server.reset_calls().await;
    tokio::time::sleep(SHORT).await;
    assert_eq!(
        server.calls_of("evalsha").await,
        0,
        "something is still renewed"
    );
}

#[tokio::test]
async fn a_nested_fixed_lease_does_not_shorten_the_hold() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("nested");
    let outer = lock.lock_for(Duration::from_secs(20)).await.unwrap();
    let inner = lock.lock_for(Duration::from_millis(500)).await.unwrap();
    assert!(server.pttl("nested").await > 15_000);
    inner.unlock().await.unwrap();
    // Redisson writes a TTL with every level, in and out, and the last one wins.
    assert!(server.pttl("nested").await > 15_000);
    outer.unlock().await.unwrap();
}

#[tokio::test]
async fn a_lock_is_free_within_its_lease_when_its_process_dies() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let worker = Worker::rust();
    worker.open(&server.url(), Some(SHORT)).await.unwrap();
    worker.lock("w", "dies", None).await.unwrap();

    worker.kill();

    let killed = Instant::now();
    let guard = client.get_lock("dies").lock().await.unwrap();
    assert!(killed.elapsed() < SHORT + LATE, "{:?}", killed.elapsed());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn closing_the_client_gives_everything_back() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let guard = client.get_lock("closed").lock().await.unwrap();
    client.shutdown(Duration::from_millis(50)).await;
    assert!(guard.check().is_err());
    assert!(is_free(&other, "closed").await);
}
