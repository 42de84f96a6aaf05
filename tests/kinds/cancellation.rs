//! I9: every future is dropped after so many polls, for every number until it completes, and leaves nothing behind.

use std::time::Duration;

use watchlock::{Error, Lease, LockGuard, LostReason};
use watchlock_support::eventually;

use crate::common::cut::{after, at_every_await};
use crate::common::{LONG, ms, poll_once, soon};
use crate::scene::{MINUTE, Scene};
use crate::table::{Kind, body};

for_every_kind! {
    i9_an_acquire_of_a_free_lock_can_be_dropped_at_any_await,
    i9_an_acquire_in_a_scope_can_be_dropped_at_any_await,
    i9_a_wait_for_a_stranger_can_be_dropped_at_any_await,
    i9_a_wait_behind_a_hold_of_the_same_client_can_be_dropped_at_any_await,
    i9_a_last_unlock_can_be_dropped_at_any_await,
    i9_giving_an_inner_level_back_can_be_dropped_at_any_await,
    i9_a_reentry_can_be_dropped_at_any_await,
    i9_an_extension_can_be_dropped_at_any_await,
    i9_a_verification_can_be_dropped_at_any_await,
    i9_unlocking_a_detached_level_can_be_dropped_at_any_await,
    i9_questions_and_forced_releases_can_be_dropped_at_any_await,
    i9_waiting_for_a_loss_can_be_dropped_at_any_await,
    i9_an_abandoned_attempt_is_undone_at_once_and_without_anybody_asking,
    i9_an_acquire_dropped_while_the_server_stalls_leaves_nothing,
    i9_a_lock_that_came_in_for_a_dropped_waiter_goes_to_the_next,
    i9_a_storm_of_dropped_acquires_leaves_nothing,
}

/// The ways to acquire.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Lock,
    LockFor,
    TryOnce,
    TryLong,
    Run,
    TryRun,
}

const VERBS: [Verb; 6] = [
    Verb::Lock,
    Verb::LockFor,
    Verb::TryOnce,
    Verb::TryLong,
    Verb::Run,
    Verb::TryRun,
];

async fn call(scene: &Scene, verb: Verb, name: &str) -> Result<Option<LockGuard>, Error> {
    let lock = scene.lock(name);
    let body = body(|_| tokio::task::yield_now());
    match verb {
        Verb::Lock => lock.lock().await.map(Some),
        Verb::LockFor => lock.lock_with_lease(MINUTE).await.map(Some),
        Verb::TryOnce => lock.try_lock(Duration::ZERO, Lease::Watchdog).await,
        Verb::TryLong => lock.try_lock(MINUTE, Lease::Watchdog).await,
        Verb::Run => {
            let ran = (scene.kind.made.run)(&scene.client, name, body);
            ran.await.map(|()| None)
        }
        Verb::TryRun => {
            let ran = (scene.kind.made.try_run)(&scene.client, name, body);
            ran.await.map(|()| None)
        }
    }
}

/// Also how many connections the client has when nobody waits.
async fn quiet(kind: &'static Kind) -> (Scene, usize) {
    let scene = Scene::new(kind).await;
    // Its lanes are open afterwards, the keeper's too.
    drop(scene.lock("warm").lock().await.unwrap());
    scene.clean().await;
    let connections = scene.server.connections().await;
    (scene, connections)
}

/// Anybody can take the lock away and give it back.
async fn works(scene: &Scene, name: &str) {
    let rival = scene.rival(&scene.client, name);
    let guard = soon(rival.lock()).await.unwrap();
    guard.unlock().await.unwrap();
}

async fn i9_an_acquire_of_a_free_lock_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    for verb in VERBS {
        at_every_await(async |polls| {
            let name = format!("{verb:?}-{polls}");
            let got = after(polls, call(&scene, verb, &name)).await;
            let completed = got.is_some();
            drop(got.map(Result::unwrap));
            works(&scene, &name).await;
            completed
        })
        .await;
    }
    scene.nothing_is_left(connections).await;
}

async fn i9_an_acquire_in_a_scope_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    let owner = scene.client.new_owner();
    at_every_await(async |polls| {
        let lock = scene.lock("scope");
        let got = after(polls, scene.client.scope(lock.lock())).await;
        let completed = got.is_some();
        drop(got);
        let owned = scene.owned(&owner, "owner");
        drop(after(polls, owned.lock()).await);
        assert_eq!(owned.hold_count(), 0);
        works(&scene, "scope").await;
        works(&scene, "owner").await;
        completed
    })
    .await;
    scene.nothing_is_left(connections).await;
}

async fn i9_a_wait_for_a_stranger_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    for verb in [Verb::Lock, Verb::LockFor, Verb::TryLong, Verb::TryRun] {
        at_every_await(async |polls| {
            let name = format!("{verb:?}-{polls}");
            scene.put_stranger(&name, ms(40)).await;
            let got = after(polls, call(&scene, verb, &name)).await;
            let completed = got.is_some();
            drop(got.map(Result::unwrap));
            works(&scene, &name).await;
            completed
        })
        .await;
    }
    scene.nothing_is_left(connections).await;
}

async fn i9_a_wait_behind_a_hold_of_the_same_client_can_be_dropped_at_any_await(
    kind: &'static Kind,
) {
    let (scene, connections) = quiet(kind).await;
    for verb in VERBS {
        at_every_await(async |polls| {
            let name = format!("{verb:?}-{polls}");
            let guard = scene.rival(&scene.client, &name).lock().await.unwrap();
            let releases = tokio::spawn(async move {
                tokio::task::yield_now().await;
                guard.unlock().await
            });
            let got = after(polls, call(&scene, verb, &name)).await;
            let completed = got.is_some();
            drop(got.map(Result::unwrap));
            releases.await.unwrap().unwrap();
            works(&scene, &name).await;
            completed
        })
        .await;
    }
    scene.nothing_is_left(connections).await;
}

async fn i9_a_last_unlock_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    at_every_await(async |polls| {
        let guard = scene.lock("last").lock().await.unwrap();
        let view = guard.hold();
        let unlocked = after(polls, guard.unlock()).await;
        assert!(!view.is_valid(), "given back after {polls} polls");
        works(&scene, "last").await;
        unlocked.is_some_and(|unlocked| unlocked.is_ok())
    })
    .await;
    scene.nothing_is_left(connections).await;
}

async fn i9_giving_an_inner_level_back_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    at_every_await(async |polls| {
        let outer = scene.lock("inner").lock().await.unwrap();
        let inner = outer.reenter(Lease::Watchdog).await.unwrap();
        let unlocked = after(polls, inner.unlock()).await;
        assert_eq!(outer.hold_count(), 1);
        assert!(outer.is_valid());
        outer.unlock().await.unwrap();
        scene.free().await;
        unlocked.is_some_and(|unlocked| unlocked.is_ok())
    })
    .await;
    scene.nothing_is_left(connections).await;
}

async fn i9_a_reentry_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "again");
    at_every_await(async |polls| {
        let outer = lock.lock().await.unwrap();
        let by_guard = after(polls, outer.reenter(Lease::Watchdog)).await;
        let completed = by_guard.is_some();
        drop(by_guard);
        drop(after(polls, lock.lock()).await);
        drop(after(polls, lock.lock_with_lease(MINUTE)).await);
        assert_eq!(outer.hold_count(), 1);
        scene.counted("again", 1).await;
        outer.unlock().await.unwrap();
        scene.free().await;
        completed
    })
    .await;
    scene.nothing_is_left(connections).await;
}

async fn i9_an_extension_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    at_every_await(async |polls| {
        let guard = scene.lock("longer").lock_with_lease(LONG).await.unwrap();
        let extended = after(polls, guard.extend(LONG * 2)).await;
        assert!(guard.is_valid() && guard.hold_count() == 1);
        guard.unlock().await.unwrap();
        scene.free().await;
        extended.is_some_and(|extended| extended.is_ok())
    })
    .await;
    scene.nothing_is_left(connections).await;
}

async fn i9_a_verification_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    at_every_await(async |polls| {
        let guard = scene.lock("sure").lock().await.unwrap();
        let verified = after(polls, guard.verify()).await;
        assert!(guard.is_valid() && guard.hold_count() == 1);
        guard.unlock().await.unwrap();
        scene.free().await;
        verified.is_some_and(|verified| verified.is_ok())
    })
    .await;
    scene.nothing_is_left(connections).await;
}

async fn i9_unlocking_a_detached_level_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    at_every_await(async |polls| {
        let owner = scene.client.new_owner();
        let lock = scene.owned(&owner, "apart");
        lock.lock().await.unwrap().detach().unwrap();
        let unlocked = after(polls, lock.unlock()).await;
        assert_eq!(lock.is_held(), polls == 0, "given back at the first poll");
        drop(owner);
        works(&scene, "apart").await;
        unlocked.is_some_and(|unlocked| unlocked.is_ok())
    })
    .await;
    scene.nothing_is_left(connections).await;
}

async fn i9_questions_and_forced_releases_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    at_every_await(async |polls| {
        let lock = scene.lock("asked");
        let guard = lock.lock().await.unwrap();
        let locked = after(polls, lock.is_locked()).await;
        let left = after(polls, lock.remain_time_to_live()).await;
        assert!(guard.is_valid());
        let forced = after(polls, lock.force_unlock()).await;
        // Whether or not it ran, nothing is left that blocks others.
        let _ = guard.unlock().await;
        works(&scene, "asked").await;
        let all = locked.is_some() && left.is_some();
        all && forced.is_some_and(|forced| forced.is_ok())
    })
    .await;
    scene.nothing_is_left(connections).await;
}

async fn i9_waiting_for_a_loss_can_be_dropped_at_any_await(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    at_every_await(async |polls| {
        let guard = scene.lock("lost").lock_with_lease(ms(40)).await.unwrap();
        let view = guard.hold();
        let by_guard = after(polls, guard.lost()).await;
        let by_view = after(polls, view.lost()).await;
        let both = [by_guard, by_view].map(|lost| lost == Some(LostReason::Expired));
        let _ = guard.unlock().await;
        works(&scene, "lost").await;
        both == [true, true]
    })
    .await;
    scene.nothing_is_left(connections).await;
}

async fn i9_an_abandoned_attempt_is_undone_at_once_and_without_anybody_asking(kind: &'static Kind) {
    // A command time-out so long that no check for overdue commands helps.
    let scene = Scene::with(kind, |builder| builder.command_timeout(MINUTE)).await;
    let lock = scene.lock("alone");
    for _ in 0..3 {
        // Behind a release that is not answered yet, an acquire waits for its turn and sends nothing.
        lock.lock().await.unwrap().unlock().await.unwrap();
        let before = scene.writes().await;
        assert!(after(1, lock.lock()).await.is_none());
        eventually("it was executed", LONG, async || {
            scene.writes().await > before
        })
        .await;
        scene.clean().await;
    }
    works(&scene, "alone").await;
}

async fn i9_an_acquire_dropped_while_the_server_stalls_leaves_nothing(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    for polls in 1..4 {
        scene.server.freeze();
        let lock = scene.lock("stall");
        let stalled = tokio::time::timeout(ms(100 * polls), lock.lock()).await;
        assert!(stalled.is_err());
        scene.server.resume();
        works(&scene, "stall").await;
    }
    scene.nothing_is_left(connections).await;
}

async fn i9_a_lock_that_came_in_for_a_dropped_waiter_goes_to_the_next(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    let lock = scene.of(&client, "came-in");
    for _ in 0..20 {
        let rival = scene.rival(&scene.client, "came-in").lock().await.unwrap();
        let mut head = Box::pin(lock.lock());
        let mut next = Box::pin(lock.lock());
        assert!(poll_once(&mut head).await.is_none());
        assert!(poll_once(&mut next).await.is_none());
        scene.waited_for(1).await;
        rival.unlock().await.unwrap();
        // By now the keeper may be trying, or may have got it.
        drop(head);
        soon(next).await.unwrap().unlock().await.unwrap();
    }
    scene.clean().await;
}

async fn i9_a_storm_of_dropped_acquires_leaves_nothing(kind: &'static Kind) {
    let (scene, connections) = quiet(kind).await;
    let other = scene.other().await;
    let tasks: Vec<_> = (0..32)
        .map(|i| {
            let client = if i % 4 == 0 { &other } else { &scene.client };
            let lock = if i % 3 == 0 {
                scene.rival(client, "storm")
            } else {
                scene.of(client, "storm")
            };
            tokio::spawn(async move {
                for _ in 0..20 {
                    let patience = Duration::from_micros(fastrand::u64(0..4_000));
                    if let Ok(got) = tokio::time::timeout(patience, lock.lock()).await {
                        let unlock = got.unwrap().unlock();
                        let _ = tokio::time::timeout(patience, unlock).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    works(&scene, "storm").await;
    let rival = scene.rival(&other, "storm");
    soon(rival.lock()).await.unwrap().unlock().await.unwrap();
    drop((rival, other));
    scene.nothing_is_left(connections).await;
}
