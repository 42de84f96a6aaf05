//! F3: a request or a reply is lost, and nobody knows which. The command takes effect once or not at all.

use std::time::Duration;

use watchlock::{ClientBuilder, Error, Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::{Aim, Fault, Proxy};

use crate::common::{LONG, SHORT, soon};
use crate::scene::{MINUTE, Scene, about};
use crate::table::Kind;

for_every_kind! {
    f3_i2_a_lost_reply_to_an_acquire_takes_the_lock_once,
    f3_one_try_makes_up_for_a_connection_that_was_cut,
    f3_i2_a_lost_reply_to_a_reentry_is_one_level,
    f3_a_lost_reply_to_a_partial_release_costs_nothing_but_the_count,
    f3_i2_a_lost_reply_to_the_last_release_is_no_loss,
    f3_a_lost_reply_to_a_dropped_guards_release_leaks_nothing,
    f3_renewals_go_on_after_lost_replies,
    f3_a_lost_reply_to_an_extension_or_a_question_costs_no_hold,
    f4_i7_an_acquire_that_runs_after_its_release_leaves_no_ghost,
}

/// Each way to lose a reply, with a name.
const LOSSES: [(Fault, &str); 4] = [
    (Fault::SwallowRequest, "swallowed-request"),
    (Fault::SwallowReply, "swallowed-reply"),
    (Fault::ResetBefore, "reset-before"),
    (Fault::ResetAfter, "reset-after"),
];

/// A short command time-out.
const TIMEOUT: Duration = Duration::from_millis(300);

/// Gives up on an answer soon, and on the server late.
fn hasty(builder: ClientBuilder) -> ClientBuilder {
    builder.command_timeout(TIMEOUT).unavailable_after(LONG)
}

async fn proxied(kind: &'static Kind) -> (Scene, Proxy) {
    Scene::proxied(kind, hasty).await
}

/// Loses the reply to the next command about the lock.
fn lose(proxy: &Proxy, loss: &Fault, name: &str) -> Aim {
    proxy.inject(loss.clone()).on(about(name)).arm()
}

/// Releases the last hold. Nothing heard for [`TIMEOUT`] is an error, be it the fault or a busy machine; the release goes
/// on without its caller.
async fn end(scene: &Scene, guard: LockGuard) {
    match soon(guard.unlock()).await {
        Ok(()) => assert!(scene.keys().await.is_empty()),
        Err(Error::Unavailable { source, .. }) if source.to_string().starts_with("no reply") => {
            scene.free().await;
        }
        Err(error) => panic!("{error}"),
    }
}

async fn f3_i2_a_lost_reply_to_an_acquire_takes_the_lock_once(kind: &'static Kind) {
    let (scene, proxy) = proxied(kind).await;
    for (loss, name) in LOSSES {
        for again in [Lease::Watchdog, Lease::Fixed(MINUTE)] {
            let aim = lose(&proxy, &loss, name);
            let acquired = soon(scene.lock(name).try_lock(LONG, again)).await;
            let guard = acquired.unwrap_or_else(|error| panic!("{name}: {error}"));
            let guard = guard.expect("nobody else wants it");
            assert_eq!(aim.fired(), 1, "{name}");
            scene.assert_count(name, 1).await;
            scene.assert_leased(name).await;
            end(&scene, guard).await;
        }
    }
    scene.clean().await;
}

async fn f3_one_try_makes_up_for_a_connection_that_was_cut(kind: &'static Kind) {
    let (scene, proxy) = proxied(kind).await;
    for (loss, name) in LOSSES.iter().skip(2) {
        let aim = lose(&proxy, loss, name);
        let guard = scene.try_once(&scene.client, name).await.unwrap();
        let guard = guard.expect("the lock is free");
        assert_eq!(aim.fired(), 1, "{name}");
        scene.assert_count(name, 1).await;
        end(&scene, guard).await;
    }
    scene.clean().await;
}

async fn f3_i2_a_lost_reply_to_a_reentry_is_one_level(kind: &'static Kind) {
    let (scene, proxy) = proxied(kind).await;
    for (loss, name) in LOSSES {
        let outer = scene.lock(name).lock_with_lease(LONG).await.unwrap();
        let aim = lose(&proxy, &loss, name);
        let inner = soon(outer.reenter(MINUTE)).await.unwrap();
        assert_eq!((aim.fired(), inner.hold_count()), (1, 2), "{name}");
        scene.assert_count(name, 2).await;
        assert!(scene.server.pttl(name).await > 40_000, "{name}");
        inner.unlock().await.unwrap();
        scene.assert_count(name, 1).await;
        end(&scene, outer).await;
    }
    scene.clean().await;
}

async fn f3_a_lost_reply_to_a_partial_release_costs_nothing_but_the_count(kind: &'static Kind) {
    let (scene, proxy) = proxied(kind).await;
    for (loss, name) in LOSSES {
        let outer = scene.lock(name).lock().await.unwrap();
        let inner = outer.reenter(Lease::Watchdog).await.unwrap();
        let aim = lose(&proxy, &loss, name);
        soon(inner.unlock()).await.unwrap();
        assert_eq!(outer.hold_count(), 1, "{name}");
        outer.check().unwrap();
        // Where levels are local, nothing was sent that could be lost.
        aim.cancel();
        scene.counted(name, 1).await;
        end(&scene, outer).await;
    }
    scene.clean().await;
}

async fn f3_i2_a_lost_reply_to_the_last_release_is_no_loss(kind: &'static Kind) {
    let (scene, proxy) = proxied(kind).await;
    for (loss, name) in LOSSES {
        let guard = scene.lock(name).lock_with_lease(MINUTE).await.unwrap();
        let aim = lose(&proxy, &loss, name);
        end(&scene, guard).await;
        assert_eq!(aim.fired(), 1, "{name}");
    }
    scene.clean().await;
}

async fn f3_a_lost_reply_to_a_dropped_guards_release_leaks_nothing(kind: &'static Kind) {
    let (scene, proxy) = proxied(kind).await;
    let other = scene.other().await;
    for (loss, name) in LOSSES {
        let guard = scene.lock(name).lock_with_lease(MINUTE).await.unwrap();
        let aim = lose(&proxy, &loss, name);
        drop(guard);
        scene.free().await;
        assert_eq!(aim.fired(), 1, "{name}");
        assert!(scene.is_free(&other, name).await);
        let again = soon(scene.lock(name).lock()).await.unwrap();
        end(&scene, again).await;
    }
    scene.clean().await;
}

async fn f3_renewals_go_on_after_lost_replies(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |it| hasty(it).watchdog_lease(SHORT * 3)).await;
    for (loss, name) in LOSSES {
        let guard = scene.lock(name).lock().await.unwrap();
        let renewals = proxy.count(about(name));
        let aim = lose(&proxy, &loss, name);
        eventually("renewed after it", LONG, async || renewals.seen() >= 2).await;
        assert_eq!(aim.fired(), 1, "{name}");
        let valid_for = guard.valid_for();
        eventually("valid for longer", LONG, async || {
            guard.valid_for() > valid_for.min(SHORT * 2)
        })
        .await;
        scene.assert_count(name, 1).await;
        end(&scene, guard).await;
    }
    scene.clean().await;
}

async fn f3_a_lost_reply_to_an_extension_or_a_question_costs_no_hold(kind: &'static Kind) {
    let (scene, proxy) = proxied(kind).await;
    for (loss, name) in LOSSES {
        let guard = scene.lock(name).lock_with_lease(LONG).await.unwrap();
        lose(&proxy, &loss, name);
        match soon(guard.extend(MINUTE)).await {
            Ok(()) => scene.assert_vouched(&guard, LONG),
            Err(error) => assert!(error.is_transient(), "{name}: {error}"),
        }
        lose(&proxy, &loss, name);
        if let Err(error) = soon(guard.verify()).await {
            assert!(error.is_transient(), "{name}: {error}");
        }
        guard.check().unwrap();
        scene.assert_count(name, 1).await;
        end(&scene, guard).await;
    }
    scene.clean().await;
}

/// The release of an attempt that was given up overtakes the attempt itself.
async fn f4_i7_an_acquire_that_runs_after_its_release_leaves_no_ghost(kind: &'static Kind) {
    let (scene, proxy) = proxied(kind).await;
    let before = scene.writes().await;
    let late = Fault::DelayRequest(TIMEOUT * 4);
    proxy.inject(late).on(about("ghost")).arm();
    let lock = scene.lock("ghost");
    let given_up = lock.try_lock(Duration::ZERO, Lease::Fixed(MINUTE)).await;
    assert!(matches!(given_up, Err(Error::Unavailable { .. })));
    // After its release, and it takes the lock for a minute.
    eventually("the old acquire ran", LONG, async || {
        scene.writes().await > before
    })
    .await;
    scene.free().await;
    assert!(scene.is_free(&scene.client, "ghost").await);
}
