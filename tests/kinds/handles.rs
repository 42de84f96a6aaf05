//! What handles and guards answer, who excludes whom, who enters again, and bodies that run under a lock.

use std::cell::Cell;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;
use watchlock::{Error, Lease, Lock, LostReason, Ttl};
use watchlock_support::eventually;

use crate::common::{LONG, poll_once, soon};
use crate::scene::Scene;
use crate::table::{Kind, body};

for_every_kind! {
    what_handles_and_guards_say_before_during_and_after_a_hold,
    holds_exclude_each_other_unless_they_are_shared,
    a_rival_excludes_and_is_excluded,
    tasks_that_share_a_handle_exclude_each_other,
    one_task_without_an_owner_excludes_itself,
    a_guard_enters_again_and_redis_shows_the_count,
    an_owner_enters_again_by_any_handle_and_others_do_not,
    acquires_of_one_owner_at_once_start_one_hold_and_enter_it,
    acquires_of_one_owner_wait_as_one_for_a_stranger,
    a_reentry_that_comes_after_the_last_release_starts_a_new_hold,
    a_scope_enters_again_and_code_outside_does_not,
    a_detached_level_is_given_back_by_the_handle,
    an_owner_that_ends_gives_back_its_detached_levels,
    levels_are_given_back_from_other_tasks_and_threads,
    a_lock_is_free_for_its_own_client_as_soon_as_the_guard_is_dropped,
    every_hold_has_an_id_of_its_own,
    a_body_runs_under_the_lock_and_gives_it_back,
    a_body_is_cancelled_when_the_hold_is_lost,
    the_answer_of_the_release_after_a_body_counts,
    a_panic_or_a_cancelled_body_gives_the_lock_back,
}

async fn what_handles_and_guards_say_before_during_and_after_a_hold(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let owner = scene.client.new_owner();
    let (lock, stranger) = (scene.owned(&owner, "named"), scene.lock("named"));
    let free = async || {
        assert!(!lock.is_locked().await.unwrap() && !stranger.is_locked().await.unwrap());
        assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::Free);
        assert_eq!((lock.is_held(), lock.hold_count()), (false, 0));
        assert!(scene.keys().await.is_empty());
    };
    assert_eq!((lock.name(), stranger.name()), ("named", "named"));
    free().await;
    for lease in [Lease::Watchdog, Lease::Fixed(LONG)] {
        let tried = lock.try_lock(Duration::ZERO, lease).await.unwrap();
        let guard = tried.expect("it is free");
        assert_eq!((guard.name(), guard.hold_count()), ("named", 1));
        assert!(guard.is_valid() && guard.check().is_ok());
        assert!(guard.valid_for() <= LONG && guard.valid_for() > LONG / 2);
        assert_eq!((lock.is_held(), lock.hold_count()), (true, 1));
        assert_eq!((stranger.is_held(), stranger.hold_count()), (false, 0));
        for lock in [&lock, &stranger] {
            assert!(lock.is_locked().await.unwrap());
            let left = lock.remain_time_to_live().await.unwrap();
            let within = |left| left <= LONG && left > LONG / 2;
            assert!(matches!(left, Ttl::Left(left) if within(left)), "{left:?}");
        }
        scene.assert_leased("held").await;
        scene.assert_count("named", 1).await;
        guard.unlock().await.unwrap();
        free().await;
    }
    scene.clean().await;
}

async fn holds_exclude_each_other_unless_they_are_shared(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let other = scene.other().await;
    let shared = kind.differs(kind.shared);
    let guard = scene.lock("two").lock().await.unwrap();
    for client in [&scene.client, &other] {
        let second = scene.try_once(client, "two").await.unwrap();
        assert_eq!(second.is_some(), shared);
        assert!(scene.of(client, "two").is_locked().await.unwrap());
        if let Some(second) = second {
            second.unlock().await.unwrap();
        }
    }
    let theirs = scene.of(&other, "two");
    if shared {
        let theirs = theirs.lock().await.unwrap();
        guard.unlock().await.unwrap();
        assert!(theirs.is_valid() && theirs.verify().await.is_ok());
        assert!(!scene.is_free(&scene.client, "two").await);
        theirs.unlock().await.unwrap();
    } else {
        guard.unlock().await.unwrap();
    }
    assert!(scene.is_free(&other, "two").await);
    scene.clean().await;
}

async fn a_rival_excludes_and_is_excluded(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let other = scene.other().await;
    for client in [&scene.client, &other] {
        let rival = scene.rival(client, "rival").lock().await.unwrap();
        let tried = scene.try_once(&scene.client, "rival").await.unwrap();
        assert!(tried.is_none());
        rival.unlock().await.unwrap();
        let guard = scene.lock("rival").lock().await.unwrap();
        assert!(!scene.is_free(client, "rival").await);
        guard.unlock().await.unwrap();
        assert!(scene.is_free(client, "rival").await);
    }
    scene.clean().await;
}

async fn tasks_that_share_a_handle_exclude_each_other(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let alone = !kind.differs(kind.shared);
    let lock: Arc<dyn Lock> = scene.lock("shared").into();
    let inside = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (lock, inside) = (Arc::clone(&lock), Arc::clone(&inside));
            tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = lock.lock().await.unwrap();
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    assert!(others == 0 || !alone, "{others} others");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    scene.clean().await;
}

async fn one_task_without_an_owner_excludes_itself(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let lock = scene.lock("self");
    let guard = lock.lock().await.unwrap();
    let again = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert_eq!(again.unwrap().is_some(), kind.differs(kind.shared));
    assert!(!lock.is_held() && lock.hold_count() == 0);
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    guard.unlock().await.unwrap();
    scene.clean().await;
}

async fn a_guard_enters_again_and_redis_shows_the_count(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let outer = scene.lock("nested").lock().await.unwrap();
    scene.assert_count("nested", 1).await;
    let middle = outer.reenter(Lease::Watchdog).await.unwrap();
    let inner = middle.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(outer.hold_count(), 3);
    scene.assert_count("nested", 3).await;
    inner.unlock().await.unwrap();
    assert_eq!(middle.hold_count(), 2);
    scene.assert_count("nested", 2).await;
    outer.unlock().await.unwrap();
    assert!(middle.is_valid());
    scene.assert_count("nested", 1).await;
    assert!(!scene.is_free(&scene.client, "nested").await);
    middle.unlock().await.unwrap();
    scene.assert_count("nested", 0).await;
    scene.clean().await;
}

async fn an_owner_enters_again_by_any_handle_and_others_do_not(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let (owner, other) = (scene.client.new_owner(), scene.client.new_owner());
    let outer = scene.owned(&owner, "mine").lock().await.unwrap();
    let handle = scene.owned(&owner, "mine");
    let again = handle.try_lock(Duration::ZERO, Lease::Watchdog).await;
    let again = again.unwrap().expect("the owner is let in");
    let inner = handle
        .lock_with_lease(Duration::from_secs(10))
        .await
        .unwrap();
    assert_eq!(handle.hold_count(), 3);
    assert!(handle.is_held());
    scene.assert_count("mine", 3).await;
    let by_guard = outer.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(handle.hold_count(), 4);
    by_guard.unlock().await.unwrap();

    let theirs = scene.owned(&other, "mine");
    let shared = kind.differs(kind.shared);
    let tried = theirs.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert_eq!(tried.unwrap().is_some(), shared);
    let tried = scene.try_once(&scene.client, "mine").await;
    assert_eq!(tried.unwrap().is_some(), shared);
    assert!(!theirs.is_held() && theirs.hold_count() == 0);
    assert!(!scene.owned(&owner, "yours").is_held());

    drop((outer, again));
    assert!(inner.is_valid());
    inner.unlock().await.unwrap();
    scene.clean().await;
}

async fn acquires_of_one_owner_at_once_start_one_hold_and_enter_it(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let owner = scene.client.new_owner();
    for _ in 0..20 {
        let lock = scene.owned(&owner, "at-once");
        let (first, second) = soon(join(lock.lock(), lock.lock())).await;
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!((first.hold_count(), second.hold_count()), (2, 2));
        scene.assert_count("at-once", 2).await;
        let (first, second) = join(first.unlock(), second.unlock()).await;
        first.unwrap();
        second.unwrap();
    }
    scene.clean().await;
}

async fn acquires_of_one_owner_wait_as_one_for_a_stranger(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    let guard = scene.rival(&scene.client, "queue").lock().await.unwrap();
    let owner = client.new_owner();
    let lock = scene.owned(&owner, "queue");
    let mut both = Box::pin(join(lock.lock(), lock.lock()));
    assert!(poll_once(&mut both).await.is_none());
    scene.waited_for(1).await;
    guard.unlock().await.unwrap();
    let (first, second) = soon(both).await;
    assert_eq!(first.unwrap().hold_count(), 2);
    drop(second);
    scene.clean().await;
}

async fn a_reentry_that_comes_after_the_last_release_starts_a_new_hold(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "after");
    for _ in 0..20 {
        let guard = lock.lock().await.unwrap();
        let mut unlock = Box::pin(guard.unlock());
        assert!(poll_once(&mut unlock).await.is_none());
        let (unlocked, again) = soon(join(unlock, lock.lock())).await;
        unlocked.unwrap();
        let again = again.unwrap();
        assert_eq!(again.hold_count(), 1);
        scene.assert_count("after", 1).await;
        again.unlock().await.unwrap();
    }
    scene.clean().await;
}

async fn a_scope_enters_again_and_code_outside_does_not(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let lock = scene.lock("scoped");
    let inside = async {
        let outer = lock.lock().await.unwrap();
        let inner = soon(lock.lock()).await.unwrap();
        assert_eq!((lock.hold_count(), inner.hold_count()), (2, 2));
        scene.assert_count("scoped", 2).await;
        drop(outer);
        inner
    };
    let inner = scene.client.scope(inside).await;
    assert_eq!(lock.hold_count(), 0, "outside the scope it has no owner");
    assert!(!scene.is_free(&scene.client, "scoped").await);
    assert!(inner.is_valid());
    inner.unlock().await.unwrap();

    let owner = scene.client.new_owner();
    let outer = owner.scope(lock.lock()).await.unwrap();
    let nested = {
        let lock = scene.lock("scoped");
        async move { lock.lock().await?.detach().map_err(Error::from) }
    };
    soon(tokio::spawn(owner.scope(nested)))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(scene.owned(&owner, "scoped").hold_count(), 2);
    outer.unlock().await.unwrap();
    owner.scope(lock.unlock()).await.unwrap();
    assert!(scene.keys().await.is_empty());
    scene.clean().await;
}

async fn a_detached_level_is_given_back_by_the_handle(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "apart");
    lock.lock().await.unwrap().detach().unwrap();
    lock.lock_with_lease(LONG).await.unwrap().detach().unwrap();
    assert_eq!(lock.hold_count(), 2, "detaching gives nothing back");
    scene.assert_count("apart", 2).await;
    scene.owned(&owner, "apart").unlock().await.unwrap();
    assert_eq!(lock.hold_count(), 1);
    scene.assert_count("apart", 1).await;
    lock.unlock().await.unwrap();
    assert!(scene.keys().await.is_empty());
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));

    let refused = scene.lock("apart").lock().await.unwrap().detach();
    let (guard, error) = refused.unwrap_err().into_parts();
    assert!(matches!(error, Error::NotOwner { .. }) && guard.is_valid());
    guard.unlock().await.unwrap();
    scene.clean().await;
}

async fn an_owner_that_ends_gives_back_its_detached_levels(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "left");
    lock.lock().await.unwrap().detach().unwrap();
    let kept = scene.owned(&owner, "kept").lock().await.unwrap();
    let level = scene.owned(&owner, "kept").lock().await.unwrap();
    level.detach().unwrap();
    drop(owner);
    eventually("what was detached is given back", LONG, async || {
        !scene.server.exists("left").await && kept.hold_count() == 1
    })
    .await;
    scene.counted("kept", 1).await;
    assert!(kept.is_valid());
    kept.unlock().await.unwrap();
    assert_eq!((lock.is_held(), lock.hold_count()), (false, 0));

    let scoped = scene.lock("scoped");
    let ends = async { scoped.lock().await.unwrap().detach().unwrap() };
    scene.client.scope(ends).await;
    scene.clean().await;
}

async fn levels_are_given_back_from_other_tasks_and_threads(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let outer = scene.lock("away").lock().await.unwrap();
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    tokio::spawn(outer.unlock()).await.unwrap().unwrap();
    scene.assert_count("away", 1).await;

    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _ = sender.send(runtime.block_on(inner.unlock()));
    });
    soon(receiver).await.unwrap().unwrap();
    scene.assert_count("away", 0).await;
}

async fn a_lock_is_free_for_its_own_client_as_soon_as_the_guard_is_dropped(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    let lock = scene.rival(&client, "again");
    for _ in 0..50 {
        drop(scene.of(&client, "again").lock().await.unwrap());
        let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        drop(tried.unwrap().expect("its own release is waited for"));
        drop(soon(scene.of(&client, "again").lock()).await.unwrap());
        drop(soon(lock.lock()).await.unwrap());
    }
    scene.clean().await;
}

async fn every_hold_has_an_id_of_its_own(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let lock = scene.lock("fresh");
    let mut dumps = Vec::new();
    for _ in 0..5 {
        let guard = lock.lock().await.unwrap();
        dumps.extend(scene.dump("fresh").await);
        guard.unlock().await.unwrap();
    }
    dumps.sort();
    dumps.dedup();
    assert_eq!(dumps.len(), 5);
}

async fn a_body_runs_under_the_lock_and_gives_it_back(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for run in [kind.made.run, kind.made.try_run] {
        let (scene, ran) = (&scene, &Cell::new(false));
        let body = body(|guard| {
            assert!(guard.is_valid() && guard.name() == "body");
            async move {
                assert!(!scene.is_free(&scene.client, "body").await);
                scene.assert_leased("in a body").await;
                ran.set(true);
            }
        });
        run(&scene.client, "body", body).await.unwrap();
        assert!(ran.get() && scene.keys().await.is_empty());
    }
    scene.clean().await;
}

async fn a_body_is_cancelled_when_the_hold_is_lost(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for run in [kind.made.run, kind.made.try_run] {
        let endless = run(&scene.client, "cut", body(|_| pending()));
        let force = async {
            eventually("it runs", LONG, async || scene.server.exists("cut").await).await;
            scene.lock("cut").force_unlock().await.unwrap();
        };
        let (ran, ()) = soon(join(endless, force)).await;
        let reason = LostReason::Forced;
        assert!(matches!(ran, Err(Error::Lost { reason: r, .. }) if r == reason));
    }
    scene.clean().await;
}

async fn the_answer_of_the_release_after_a_body_counts(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for run in [kind.made.run, kind.made.try_run] {
        let server = &scene.server;
        let deletes = body(|_| async {
            server.cmd(&["DEL", "deleted"]).await;
        });
        let ran = run(&scene.client, "deleted", deletes).await;
        let reason = LostReason::Missing;
        assert!(matches!(ran, Err(Error::Lost { reason: r, .. }) if r == reason));
    }
    scene.clean().await;
}

async fn a_panic_or_a_cancelled_body_gives_the_lock_back(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for run in [kind.made.run, kind.made.try_run] {
        let panics = body(|_| async { std::panic::resume_unwind(Box::new("on purpose")) });
        let panics = run(&scene.client, "panic", panics);
        let panicked = std::panic::AssertUnwindSafe(panics).catch_unwind().await;
        assert!(panicked.is_err());
        scene.free().await;

        let endless = run(&scene.client, "panic", body(|_| pending()));
        let running = eventually("it runs", LONG, async || scene.server.exists("panic").await);
        tokio::select! {
            ran = endless => panic!("it ended: {ran:?}"),
            () = running => {}
        }
        scene.free().await;
    }
    scene.clean().await;
}
