//! Holds that are gone: deleted, taken by somebody else, forced, over. A loss is reported, is final, and harms nobody.

use std::time::Duration;

use watchlock::{Client, Error, Lease, LockGuard, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::Direction;

use crate::common::{LONG, SHORT, soon};
use crate::scene::{MINUTE, Scene, takes_no_master};
use crate::table::{Kind, body};

for_every_kind! {
    f8_a_key_that_an_operator_deleted_is_missed_at_the_next_renewal,
    f8_a_long_level_that_was_given_back_hides_no_loss,
    f8_a_fixed_hold_whose_key_was_deleted_is_valid_to_its_end_and_its_unlock_says_so,
    f8_i3_a_renewal_touches_no_strangers_hold,
    f8_i3_levels_touch_no_strangers_hold,
    a_release_of_a_deleted_lock_says_lost,
    verify_asks_redis_and_check_does_not,
    verify_finds_strangers_and_other_types,
    a_hold_whose_key_has_another_type_is_lost_for_every_call,
    verify_lengthens_a_lease_that_redis_would_end_early,
    verify_does_not_believe_a_replica,
    i8_a_loss_is_final_whatever_the_server_says_later,
    a_lost_hold_is_not_entered_again_until_its_guards_are_gone,
    a_lost_hold_with_only_detached_levels_blocks_nothing,
    a_forced_hold_of_this_client_is_lost_at_once,
    a_hold_forced_by_another_client_is_lost_at_the_next_renewal,
}

fn is_lost<T>(result: &Result<T, Error>, expected: LostReason) -> bool {
    matches!(result, Err(Error::Lost { reason, .. }) if *reason == expected)
}

/// Held under the watchdog, and for a fixed lease.
async fn both(scene: &Scene, name: &str) -> [LockGuard; 2] {
    let other = format!("{name}-fixed");
    let watched = scene.lock(name).lock().await.unwrap();
    let fixed = scene.lock(&other).lock_with_lease(LONG).await.unwrap();
    [watched, fixed]
}

async fn f8_a_key_that_an_operator_deleted_is_missed_at_the_next_renewal(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    for command in [["DEL", "gone"].as_slice(), &["FLUSHALL"]] {
        let guard = scene.lock("gone").lock().await.unwrap();
        let view = guard.hold();
        scene.server.cmd(command).await;
        scene.pass(SHORT / 2).await;
        assert_eq!(soon(guard.lost()).await, LostReason::Missing, "{command:?}");
        assert_eq!(soon(view.lost()).await, LostReason::Missing);
        assert!(!guard.is_valid() && !view.is_valid());
        assert!(guard.check().unwrap_err().is_lost() && view.check().unwrap_err().is_lost());
        assert!(guard.unlock().await.unwrap_err().is_lost());
    }
    scene.clean().await;
}

/// Redis is asked once a period, however long the hold is valid.
async fn f8_a_long_level_that_was_given_back_hides_no_loss(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    let guard = scene.lock("gone").lock().await.unwrap();
    let inner = guard.reenter(Lease::Fixed(MINUTE * 60)).await.unwrap();
    inner.unlock().await.unwrap();
    scene.server.cmd(&["DEL", "gone"]).await;
    scene.pass(SHORT / 2).await;
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(guard.unlock().await.unwrap_err().is_lost());
    scene.clean().await;
}

async fn f8_a_fixed_hold_whose_key_was_deleted_is_valid_to_its_end_and_its_unlock_says_so(
    kind: &'static Kind,
) {
    let scene = Scene::new(kind).await;
    let waited = scene.lock("waited").lock_with_lease(SHORT).await.unwrap();
    let given_back = scene.lock("back").lock_with_lease(LONG).await.unwrap();
    scene.server.cmd(&["FLUSHALL"]).await;
    let lost = given_back.unlock().await;
    assert!(is_lost(&lost, LostReason::Missing), "{lost:?}");
    assert_eq!(soon(waited.lost()).await, LostReason::Expired);
}

/// The renewal of a hold that is gone neither lengthens nor takes a stranger's hold; nor does its release.
async fn f8_i3_a_renewal_touches_no_strangers_hold(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    let old = scene.lock("taken").lock().await.unwrap();
    scene.server.cmd(&["DEL", "taken"]).await;
    scene.put_stranger("taken", MINUTE).await;
    let theirs = scene.dump("taken").await;
    scene.pass(SHORT / 2).await;
    assert_eq!(soon(old.lost()).await, LostReason::Missing);
    let before = scene.calls().await;
    assert!(old.unlock().await.unwrap_err().is_lost());
    eventually("its release was sent", LONG, async || {
        scene.calls().await >= before
    })
    .await;
    assert!(!scene.is_free(&scene.client, "taken").await);
    assert_eq!(scene.dump("taken").await, theirs);
    assert!(scene.server.pttl("taken").await > 30_000);
    scene.server.cmd(&["DEL", "taken"]).await;
    scene.clean().await;
}

/// Neither do one level more and one level less.
async fn f8_i3_levels_touch_no_strangers_hold(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for enters in [true, false] {
        let outer = scene.lock("taken").lock_with_lease(LONG).await.unwrap();
        let inner = outer.reenter(Lease::Watchdog).await.unwrap();
        scene.server.cmd(&["DEL", "taken"]).await;
        scene.put_stranger("taken", MINUTE * 10).await;
        let theirs = scene.dump("taken").await;
        let answer = if enters {
            // Where levels are local, the next question to Redis finds the loss.
            match inner.reenter(Lease::Watchdog).await {
                Err(error) => Err(error),
                Ok(_) => outer.verify().await,
            }
        } else {
            match inner.unlock().await {
                Err(error) => Err(error),
                Ok(()) => outer.verify().await,
            }
        };
        assert!(is_lost(&answer, LostReason::Missing), "{answer:?}");
        assert!(!outer.is_valid());
        assert_eq!(scene.dump("taken").await, theirs);
        assert!(scene.server.pttl("taken").await > 500_000);
        drop(outer);
        scene.server.cmd(&["DEL", "taken"]).await;
    }
}

async fn a_release_of_a_deleted_lock_says_lost(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let lock = scene.lock("unlock");
    let guard = lock.lock().await.unwrap();
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    scene.server.cmd(&["DEL", "unlock"]).await;
    let answer = inner.unlock().await;
    let local = kind.differs(kind.local_levels);
    assert!(
        local && answer.is_ok() || is_lost(&answer, LostReason::Missing),
        "{answer:?}"
    );
    assert!(is_lost(&guard.unlock().await, LostReason::Missing));
    let guard = lock.lock().await.unwrap();
    scene.server.cmd(&["DEL", "unlock"]).await;
    assert!(is_lost(&guard.unlock().await, LostReason::Missing));
    assert!(!scene.server.exists("unlock").await);
    scene.clean().await;
}

async fn verify_asks_redis_and_check_does_not(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for guard in both(&scene, "asked").await {
        guard.verify().await.unwrap();
        scene.server.cmd(&["DEL", guard.name()]).await;
        guard.check().unwrap();
        let lost = guard.verify().await;
        assert!(is_lost(&lost, LostReason::Missing), "{lost:?}");
        assert!(guard.check().unwrap_err().is_lost() && !guard.is_valid());
        assert!(guard.verify().await.unwrap_err().is_lost());
        assert_eq!(soon(guard.lost()).await, LostReason::Missing);
        assert!(guard.unlock().await.unwrap_err().is_lost());
    }
    scene.clean().await;
}

async fn verify_finds_strangers_and_other_types(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let foreign = kind.foreign.iter().copied().map(Some);
    for put in foreign.chain([None]) {
        let guard = scene.lock("taken").lock().await.unwrap();
        scene.server.cmd(&["DEL", "taken"]).await;
        match put {
            Some(write) => scene.put(write, "taken").await,
            None => scene.put_stranger("taken", MINUTE * 10).await,
        }
        let theirs = scene.dump("taken").await;
        assert!(guard.verify().await.unwrap_err().is_lost(), "{put:?}");
        // Its release comes after the loss, and the next try waits for it.
        drop(guard);
        let _ = scene.try_once(&scene.client, "taken").await;
        assert_eq!(scene.dump("taken").await, theirs, "not ours to delete");
        let ttl = scene.server.pttl("taken").await;
        let kept = if put.is_some() {
            ttl == -1
        } else {
            ttl > 500_000
        };
        assert!(kept, "{put:?}: {ttl}");
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

/// Nothing is left of a hold when somebody writes something else to its key.
async fn a_hold_whose_key_has_another_type_is_lost_for_every_call(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for put in kind.foreign.iter().copied() {
        let overwrite = async || {
            scene.server.cmd(&["DEL", "taken"]).await;
            scene.put(put, "taken").await;
            scene.dump("taken").await
        };
        let guard = scene.lock("taken").lock().await.unwrap();
        let theirs = overwrite().await;
        let unlocked = guard.unlock().await;
        assert!(
            is_lost(&unlocked, LostReason::Missing),
            "{put:?}: {unlocked:?}"
        );
        assert_eq!(scene.dump("taken").await, theirs, "not ours to delete");
        scene.server.cmd(&["FLUSHALL"]).await;

        let guard = scene.lock("taken").lock_with_lease(LONG).await.unwrap();
        let theirs = overwrite().await;
        let extended = guard.extend(MINUTE).await;
        assert!(
            is_lost(&extended, LostReason::Missing),
            "{put:?}: {extended:?}"
        );
        assert!(!guard.is_valid());
        assert_eq!(scene.dump("taken").await, theirs);
        drop(guard);
        scene.server.cmd(&["FLUSHALL"]).await;

        let overwrite = &overwrite;
        let overwriting = body(move |_| async move { drop(overwrite().await) });
        let ran = (kind.made.run)(&scene.client, "taken", overwriting).await;
        assert!(is_lost(&ran, LostReason::Missing), "{put:?}: {ran:?}");
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

async fn verify_lengthens_a_lease_that_redis_would_end_early(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let guard = scene.lock("short").lock_with_lease(LONG).await.unwrap();
    for key in scene.keys().await {
        scene.server.cmd(&["PEXPIRE", &key, "2000"]).await;
    }
    guard.verify().await.unwrap();
    let lease = i64::try_from(LONG.as_millis()).unwrap();
    for key in scene.keys().await {
        let left = scene.server.pttl(&key).await;
        assert!((lease / 2..=lease).contains(&left), "{key}: {left}");
    }
    assert!(guard.valid_for() <= LONG, "there is no new promise");
    guard.unlock().await.unwrap();
    scene.clean().await;
}

/// A replica may show a hold that the master has long given to somebody else.
async fn verify_does_not_believe_a_replica(kind: &'static Kind) {
    if takes_no_master() {
        return;
    }
    let scene = Scene::with(kind, |builder| {
        builder.command_timeout(Duration::from_millis(300))
    })
    .await;
    for guard in both(&scene, "demoted").await {
        scene.server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).await;
        let answer = soon(guard.verify()).await;
        assert!(
            answer.as_ref().is_err_and(Error::is_transient),
            "{answer:?}"
        );
        scene.server.cmd(&["REPLICAOF", "NO", "ONE"]).await;
        drop(guard);
    }
    scene.clean().await;
}

async fn i8_a_loss_is_final_whatever_the_server_says_later(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |it| it.watchdog_lease(SHORT)).await;
    let guard = scene.lock("final").lock().await.unwrap();
    // Kept alive by hand, so that the late renewals find it.
    proxy.hold(Direction::Both);
    for key in scene.keys().await {
        scene.server.cmd(&["PERSIST", &key]).await;
    }
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    proxy.heal();
    assert!(!guard.is_valid());
    assert!(is_lost(&guard.check(), LostReason::Expired));
    assert!(is_lost(&guard.unlock().await, LostReason::Expired));
    // The release after the loss still ends what is ours.
    let rival = scene.rival(&scene.client, "final");
    soon(rival.lock()).await.unwrap().unlock().await.unwrap();
    scene.clean().await;
}

async fn a_lost_hold_is_not_entered_again_until_its_guards_are_gone(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "lost");
    let outer = lock.lock_with_lease(LONG).await.unwrap();
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    assert!(scene.lock("lost").force_unlock().await.unwrap());

    assert!(outer.reenter(Lease::Watchdog).await.unwrap_err().is_lost());
    assert!(lock.lock().await.unwrap_err().is_lost());
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(tried.unwrap_err().is_lost());
    assert!(!lock.is_held() && lock.hold_count() == 0);
    let (outer, error) = outer.detach().unwrap_err().into_parts();
    assert!(error.is_lost());
    assert!(scene.is_free(&scene.client, "lost").await, "for others");

    assert!(outer.unlock().await.unwrap_err().is_lost());
    assert!(lock.lock().await.unwrap_err().is_lost(), "one guard left");
    assert!(inner.unlock().await.unwrap_err().is_lost());
    let fresh = lock.lock().await.unwrap();
    assert_eq!(fresh.hold_count(), 1);
    fresh.unlock().await.unwrap();
    scene.clean().await;
}

async fn a_lost_hold_with_only_detached_levels_blocks_nothing(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "old");
    let detached = async || {
        let guard = lock.lock_with_lease(LONG).await.unwrap();
        guard.detach().unwrap();
        assert!(scene.lock("old").force_unlock().await.unwrap());
        assert!(!lock.is_held());
    };
    detached().await;
    let guard = soon(lock.lock()).await.unwrap();
    assert_eq!(guard.hold_count(), 1);
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    guard.unlock().await.unwrap();

    detached().await;
    assert!(lock.unlock().await.unwrap_err().is_lost());
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    scene.clean().await;
}

async fn a_forced_hold_of_this_client_is_lost_at_once(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let lock = scene.lock("mine");
    assert!(!lock.force_unlock().await.unwrap());
    for lease in [Lease::Watchdog, Lease::Fixed(LONG)] {
        let tried = lock.try_lock(Duration::ZERO, lease).await.unwrap();
        let guard = tried.expect("it is free");
        assert!(lock.force_unlock().await.unwrap());
        assert!(!guard.is_valid() && guard.valid_for() == Duration::ZERO);
        assert!(scene.keys().await.is_empty());
        assert_eq!(soon(guard.lost()).await, LostReason::Forced);
        assert!(is_lost(&guard.check(), LostReason::Forced));
        assert!(is_lost(&guard.unlock().await, LostReason::Forced));
        assert!(scene.is_free(&scene.client, "mine").await);
    }
    scene.clean().await;
}

async fn a_hold_forced_by_another_client_is_lost_at_the_next_renewal(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    let other: Client = scene.other().await;
    let guard = scene.lock("theirs").lock().await.unwrap();
    let fixed = scene.lock("fixed").lock_with_lease(LONG).await.unwrap();
    for name in ["theirs", "fixed"] {
        assert!(scene.of(&other, name).force_unlock().await.unwrap());
    }
    assert!(scene.keys().await.is_empty());
    scene.pass(SHORT / 2).await;
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(fixed.verify().await.unwrap_err().is_lost());
    let rival = scene.rival(&other, "theirs").lock().await.unwrap();
    // It is late, and it harms nobody.
    assert!(guard.unlock().await.unwrap_err().is_lost());
    rival.verify().await.unwrap();
    rival.unlock().await.unwrap();
    drop(fixed);
    scene.clean().await;
}
