//! What can be done with a hold, and with a lock's key.

use std::time::Duration;

use watchlock::{Lease, LostReason};
use watchlock_support::eventually;

use super::{after, at_every_await, nothing_is_left, scene, works};
use crate::common::{LONG, count, gone, ms};

#[tokio::test]
async fn i9_a_last_unlock_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    at_every_await(async |polls| {
        let guard = client.get_lock("last").lock().await.unwrap();
        let view = guard.hold();
        let unlocked = after(polls, guard.unlock()).await;
        assert!(!view.is_valid(), "given back after {polls} polls");
        works(&client, "last").await;
        unlocked.is_some_and(|unlocked| unlocked.is_ok())
    })
    .await;
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_giving_an_inner_level_back_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    at_every_await(async |polls| {
        let outer = client.get_lock("inner").lock().await.unwrap();
        let inner = outer.reenter(Lease::Watchdog).await.unwrap();
        let unlocked = after(polls, inner.unlock()).await;
        assert_eq!(outer.hold_count(), 1);
        assert!(outer.is_valid());
        outer.unlock().await.unwrap();
        gone(&server, "inner").await;
        unlocked.is_some_and(|unlocked| unlocked.is_ok())
    })
    .await;
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_a_reentry_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    let owner = client.new_owner();
    let lock = owner.get_lock("again");
    at_every_await(async |polls| {
        let outer = lock.lock().await.unwrap();
        let by_guard = after(polls, outer.reenter(Lease::Watchdog)).await;
        let completed = by_guard.is_some();
        drop(by_guard);
        drop(after(polls, lock.lock()).await);
        drop(after(polls, lock.lock_for(Duration::from_secs(60))).await);
        assert_eq!(outer.hold_count(), 1);
        eventually("Redis shows one level", LONG, async || {
            count(&server, "again").await == 1
        })
        .await;
        outer.unlock().await.unwrap();
        gone(&server, "again").await;
        completed
    })
    .await;
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_an_extension_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    let lease = Duration::from_secs(20);
    at_every_await(async |polls| {
        let guard = client.get_lock("longer").lock_for(lease).await.unwrap();
        let extended = after(polls, guard.extend(lease * 2)).await;
        assert!(guard.is_valid() && guard.hold_count() == 1);
        guard.unlock().await.unwrap();
        gone(&server, "longer").await;
        extended.is_some_and(|extended| extended.is_ok())
    })
    .await;
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_a_verification_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    at_every_await(async |polls| {
        let guard = client.get_lock("sure").lock().await.unwrap();
        let verified = after(polls, guard.verify()).await;
        assert!(guard.is_valid() && guard.hold_count() == 1);
        guard.unlock().await.unwrap();
        gone(&server, "sure").await;
        verified.is_some_and(|verified| verified.is_ok())
    })
    .await;
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_unlocking_a_detached_level_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    at_every_await(async |polls| {
        let owner = client.new_owner();
        let lock = owner.get_lock("apart");
        lock.lock().await.unwrap().detach().unwrap();
        let unlocked = after(polls, lock.unlock()).await;
        assert_eq!(lock.is_held(), polls == 0, "given back at the first poll");
        drop(owner);
        works(&client, "apart").await;
        unlocked.is_some_and(|unlocked| unlocked.is_ok())
    })
    .await;
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_questions_and_forced_releases_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    at_every_await(async |polls| {
        let lock = client.get_lock("asked");
        let guard = lock.lock().await.unwrap();
        let locked = after(polls, lock.is_locked()).await;
        let left = after(polls, lock.remain_time_to_live()).await;
        assert!(guard.is_valid());
        let forced = after(polls, lock.force_unlock()).await;
        // It ran or it did not; either way nothing is in the way.
        let _ = guard.unlock().await;
        works(&client, "asked").await;
        let all = locked.is_some() && left.is_some();
        all && forced.is_some_and(|forced| forced.is_ok())
    })
    .await;
    nothing_is_left(&server, connections).await;
}

#[tokio::test]
async fn i9_waiting_for_a_loss_can_be_dropped_at_any_await() {
    let (server, client, connections) = scene().await;
    at_every_await(async |polls| {
        let guard = client.get_lock("lost").lock_for(ms(40)).await.unwrap();
        let view = guard.hold();
        let by_guard = after(polls, guard.lost()).await;
        let by_view = after(polls, view.lost()).await;
        let both = [by_guard, by_view].map(|lost| lost == Some(LostReason::Expired));
        let _ = guard.unlock().await;
        works(&client, "lost").await;
        both == [true, true]
    })
    .await;
    nothing_is_left(&server, connections).await;
}
