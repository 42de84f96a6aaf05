//! What a lease promises, who keeps it, and what is written again.

use std::time::{Duration, Instant};

use watchlock::{Error, Lease, LeaseError, LockGuard, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::Fault;

use crate::common::{LONG, SHORT, ms, soon};
use crate::scene::{MINUTE, Scene, about};
use crate::table::Kind;

for_every_kind! {
    a_fixed_hold_is_never_renewed_and_ends_with_its_lease,
    a_hold_is_renewed_every_third_of_its_lease,
    t3_a_renewal_writes_the_watchdogs_lease,
    the_watchdog_keeps_a_hold_while_a_level_of_its_is_alive_and_only_then,
    a_watchdog_level_that_comes_late_has_a_fixed_hold_kept,
    a_fixed_level_outlives_the_watchdog_level_around_it,
    a_guard_is_entered_for_the_lease_that_is_asked_for,
    t1_a_shorter_lease_inside_cuts_nothing_short,
    t1_a_longer_lease_inside_lengthens,
    t1_a_renewal_overtaken_by_a_longer_reentry_shortens_nothing,
    t1_no_command_shortens_a_longer_lease_in_redis,
    t4_giving_a_level_back_writes_no_lease,
    t5_a_verified_hold_is_asserted_again,
    a_limited_hold_is_kept_up_to_its_limit_and_lost_then,
    levels_of_a_limited_hold_may_keep_it_longer,
    extend_raises_a_fixed_promise_and_never_lowers_it,
    extending_a_lost_hold_says_so,
    let_expire_leaves_the_key_to_its_lease_as_a_strangers,
    let_expire_is_refused_where_others_need_the_hold,
    let_expire_of_a_lost_hold_says_so,
    a_shutdown_does_not_wait_for_a_level_left_to_its_lease,
    i7_nothing_is_renewed_after_the_last_release,
    i7_a_long_lease_that_was_given_back_is_not_remembered,
    f12_i4_a_hold_that_lost_its_lease_gets_it_again,
    f12_one_bad_key_does_not_cost_the_others_their_renewal,
}

const LOST: &str = "at most the release behind it";

async fn a_fixed_hold_is_never_renewed_and_ends_with_its_lease(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    scene.warm().await;
    let guard = scene.lock("fixed").lock_with_lease(SHORT).await.unwrap();
    scene.server.reset_calls().await;
    for _ in 0..3 {
        scene.pass(SHORT / 3 + ms(5)).await;
    }
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(!guard.is_valid() && guard.valid_for() == Duration::ZERO);
    assert!(scene.calls().await <= 1, "{LOST}");
    assert!(guard.unlock().await.unwrap_err().is_lost());
    let guard = soon(scene.lock("fixed").lock()).await.unwrap();
    guard.unlock().await.unwrap();
    scene.clean().await;
}

async fn a_hold_is_renewed_every_third_of_its_lease(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    let guard = scene.lock("period").lock().await.unwrap();
    let (started, before) = (Instant::now(), scene.calls().await);
    eventually("six renewals", LONG, async || {
        scene.calls().await >= before + 6
    })
    .await;
    // The keeper may look a tenth of a period early, or the renewal may come with that.
    let earliest = SHORT / 3 * 6 * 7 / 10;
    assert!(started.elapsed() > earliest, "{:?}", started.elapsed());
    scene.assert_count("period", 1).await;
    assert!(guard.is_valid());
    guard.unlock().await.unwrap();
}

async fn t3_a_renewal_writes_the_watchdogs_lease(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    let guard = scene.lock("lease").lock().await.unwrap();
    let before = scene.calls().await;
    eventually("a renewal", LONG, async || scene.calls().await > before).await;
    let ttl = scene.server.pttl("lease").await;
    let lease = i64::try_from(SHORT.as_millis()).unwrap();
    assert!(ttl <= lease && ttl > 0, "{ttl}");
    assert!(guard.valid_for() <= SHORT);
    guard.unlock().await.unwrap();
}

async fn the_watchdog_keeps_a_hold_while_a_level_of_its_is_alive_and_only_then(
    kind: &'static Kind,
) {
    let scene = Scene::timed(kind).await;
    scene.warm().await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "mixed");
    let fixed = lock.lock_with_lease(SHORT).await.unwrap();
    let watched = lock.lock().await.unwrap();
    scene.keep(&watched, SHORT, SHORT * 2).await;
    assert!(watched.is_valid());
    let ended_alone = kind.differs(kind.levels_end_alone);
    assert_eq!(fixed.is_valid(), !ended_alone, "kept for both levels");
    watched.unlock().await.unwrap();
    scene.server.reset_calls().await;
    for _ in 0..3 {
        scene.pass(SHORT / 3 + ms(5)).await;
    }
    assert_eq!(soon(fixed.lost()).await, LostReason::Expired);
    assert!(scene.calls().await <= 1, "{LOST}");
    drop(fixed);
    scene.clean().await;
}

async fn a_watchdog_level_that_comes_late_has_a_fixed_hold_kept(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "late");
    let fixed = lock.lock_with_lease(SHORT * 2).await.unwrap();
    let watched = lock.lock().await.unwrap();
    fixed.unlock().await.unwrap();
    scene.keep(&watched, SHORT, SHORT * 4).await;
    assert!(watched.is_valid());
    watched.unlock().await.unwrap();
    scene.clean().await;
}

/// One try for a hold that the watchdog keeps for so long at most; `None` for a kind that has no such lease.
async fn limited(scene: &Scene, limit: Duration) -> Option<LockGuard> {
    let lock = scene.lock("limited");
    let refused = |answer: Result<Option<LockGuard>, Error>| match answer {
        Err(Error::InvalidLease { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    let got = lock.try_lock(Duration::ZERO, Lease::AtMost(limit)).await;
    if scene.kind.name == "read" || scene.kind.name == "write" {
        assert_eq!(refused(got), LeaseError::AtMost);
        scene.clean().await;
        return None;
    }
    let guard = got.unwrap().expect("it is free");
    let (short, busy) = (Lease::AtMost(ms(9)), Lease::AtMost(limit));
    let problem = refused(lock.try_lock(Duration::ZERO, short).await);
    assert!(matches!(problem, LeaseError::OutOfBounds { .. }));
    assert!(lock.try_lock(Duration::ZERO, busy).await.unwrap().is_none());
    Some(guard)
}

async fn a_limited_hold_is_kept_up_to_its_limit_and_lost_then(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    scene.warm().await;
    let Some(guard) = limited(&scene, SHORT * 3).await else {
        return;
    };
    let lease = i64::try_from(SHORT.as_millis()).unwrap();
    assert!(
        scene.server.pttl("limited").await <= lease,
        "if it is killed"
    );
    scene.keep(&guard, SHORT, SHORT * 2).await;
    let extended = guard.extend(SHORT).await.unwrap_err();
    assert!(
        matches!(extended, Error::InvalidLease { .. }),
        "{extended:?}"
    );
    let guard = guard.let_expire().unwrap_err().into_guard();
    guard.verify().await.unwrap();
    assert!(guard.is_valid());
    for _ in 0..3 {
        scene.pass(SHORT / 3 + ms(5)).await;
        assert!(guard.valid_for() < SHORT);
    }
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(guard.unlock().await.unwrap_err().is_lost());
    scene.clean().await;
}

async fn levels_of_a_limited_hold_may_keep_it_longer(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    let Some(guard) = limited(&scene, SHORT * 2).await else {
        return;
    };
    let longer = guard.reenter(Lease::AtMost(SHORT * 3)).await.unwrap();
    let watched = longer.reenter(Lease::Watchdog).await.unwrap();
    scene.keep(&guard, SHORT, SHORT * 4).await;
    assert!(guard.is_valid() && longer.is_valid());
    watched.unlock().await.unwrap();
    for _ in 0..4 {
        scene.pass(SHORT / 3).await;
    }
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    drop((guard, longer));
    scene.clean().await;
}

async fn a_fixed_level_outlives_the_watchdog_level_around_it(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "inner");
    let watched = lock.lock().await.unwrap();
    let fixed = lock.lock_with_lease(MINUTE).await.unwrap();
    watched.unlock().await.unwrap();
    scene.assert_vouched(&fixed, Duration::from_secs(50));
    assert!(scene.server.pttl("inner").await > 50_000);
    fixed.unlock().await.unwrap();
    scene.clean().await;
}

async fn a_guard_is_entered_for_the_lease_that_is_asked_for(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    let lock = scene.lock("levels");
    let fixed = lock.lock_with_lease(SHORT).await.unwrap();
    let again = fixed.reenter(SHORT * 2).await.unwrap();
    scene.assert_vouched(&again, SHORT);
    scene.pass(SHORT * 2 + ms(5)).await;
    for guard in [&fixed, &again] {
        assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    }
    drop((fixed, again));

    let fixed = lock.lock_with_lease(SHORT).await.unwrap();
    let watched = fixed.reenter(Lease::Watchdog).await.unwrap();
    scene.keep(&watched, SHORT, SHORT * 2).await;
    for lease in [Duration::ZERO, ms(9), Duration::MAX] {
        let refused = watched.reenter(lease).await.unwrap_err();
        let Error::InvalidLease { problem, .. } = refused else {
            panic!("{lease:?}: {refused:?}");
        };
        let given =
            |given| matches!(problem, LeaseError::OutOfBounds { given: g, .. } if g == given);
        assert!(given(lease), "{problem:?}");
    }
    drop(fixed);
    assert_eq!(watched.hold_count(), 1);
    watched.unlock().await.unwrap();
    scene.clean().await;
}

async fn t1_a_shorter_lease_inside_cuts_nothing_short(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "short");
    let outer = lock.lock_with_lease(MINUTE).await.unwrap();
    let inner = lock.lock_with_lease(ms(20)).await.unwrap();
    inner.unlock().await.ok();
    let watched = outer.reenter(Lease::Watchdog).await.unwrap();
    watched.verify().await.unwrap();
    watched.unlock().await.unwrap();
    scene.assert_vouched(&outer, Duration::from_secs(50));
    assert!(scene.server.pttl("short").await > 50_000);
    outer.unlock().await.unwrap();
    scene.clean().await;
}

async fn t1_a_longer_lease_inside_lengthens(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for lease in [Lease::Watchdog, Lease::Fixed(MINUTE)] {
        let lock = scene.lock("longer");
        let outer = lock.lock_with_lease(Duration::from_secs(5)).await.unwrap();
        let inner = outer.reenter(lease).await.unwrap();
        assert!(scene.server.pttl("longer").await > 20_000, "{lease:?}");
        assert!(inner.valid_for() > Duration::from_secs(20), "{lease:?}");
        inner.unlock().await.unwrap();
        assert!(outer.is_valid());
        outer.unlock().await.unwrap();
    }
    scene.clean().await;
}

async fn t1_a_renewal_overtaken_by_a_longer_reentry_shortens_nothing(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |it| it.watchdog_lease(SHORT * 2)).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "overtaken");
    let outer = lock.lock().await.unwrap();
    let slow = Fault::DelayRequest(ms(400));
    let renewal = proxy.inject(slow).on(about("overtaken")).arm();
    eventually("a renewal is under way", LONG, async || {
        renewal.fired() == 1
    })
    .await;
    let inner = lock.lock_with_lease(MINUTE).await.unwrap();
    // It arrives after the re-entry, on a connection of its own.
    let arrived = scene.calls().await;
    eventually("the renewal came", LONG, async || {
        scene.calls().await > arrived
    })
    .await;
    assert!(scene.server.pttl("overtaken").await > 50_000);
    scene.assert_vouched(&inner, Duration::from_secs(50));
    drop((outer, inner));
    scene.clean().await;
}

async fn t1_no_command_shortens_a_longer_lease_in_redis(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    scene.warm().await;
    let outer = scene.lock("long").lock_with_lease(MINUTE).await.unwrap();
    for key in scene.keys().await {
        scene.server.cmd(&["PEXPIRE", &key, "900000"]).await;
    }
    let longer = async |when: &str| {
        for key in scene.keys().await {
            let ttl = scene.server.pttl(&key).await;
            assert!(ttl > 800_000, "{when}: {key}: {ttl}");
        }
    };
    outer.verify().await.unwrap();
    longer("verify").await;
    outer.extend(MINUTE * 2).await.unwrap();
    longer("extend").await;
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    longer("reenter").await;
    inner.verify().await.unwrap();
    longer("verify of a watchdog level").await;
    // Asked for again, as after any new connection.
    let before = scene.calls().await;
    let cut = ["CLIENT", "KILL", "TYPE", "normal"];
    scene.server.cmd(&cut).await;
    assert!(scene.is_free(&scene.client, "other").await);
    eventually("it is asserted again", LONG, async || {
        scene.calls().await >= before + 3
    })
    .await;
    longer("asserted again").await;
    inner.unlock().await.unwrap();
    longer("partial release").await;
    outer.unlock().await.unwrap();
    scene.clean().await;
}

async fn t4_giving_a_level_back_writes_no_lease(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let outer = scene.lock("less").lock_with_lease(MINUTE).await.unwrap();
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    scene.server.cmd(&["PEXPIRE", "less", "20000"]).await;
    inner.unlock().await.unwrap();
    assert!(scene.server.pttl("less").await <= 20_000);
    outer.unlock().await.unwrap();
    scene.clean().await;
}

/// A server whose clock is ahead ends leases early; a new connection is the time to correct that.
async fn t5_a_verified_hold_is_asserted_again(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let fixed = scene.lock("fixed").lock_with_lease(MINUTE).await.unwrap();
    let longer = scene.lock("both").lock_with_lease(MINUTE).await.unwrap();
    let watched = longer.reenter(Lease::Watchdog).await.unwrap();
    for _ in 0..2 {
        let keys = scene.keys().await;
        for key in &keys {
            scene.server.cmd(&["PEXPIRE", key, "5000"]).await;
        }
        let valid_for = fixed.valid_for();
        scene
            .server
            .cmd(&["CLIENT", "KILL", "TYPE", "normal"])
            .await;
        assert!(scene.is_free(&scene.client, "other").await);
        for key in &keys {
            eventually("it has its lease again", LONG, async || {
                scene.server.pttl(key).await > 40_000
            })
            .await;
            assert!(scene.server.pttl(key).await <= 60_000);
        }
        if kind.differs(kind.assured) {
            scene.assert_vouched(&fixed, MINUTE);
        } else {
            assert!(fixed.valid_for() <= valid_for, "no more is promised");
        }
    }
    watched.unlock().await.unwrap();
    fixed.unlock().await.unwrap();
    longer.unlock().await.unwrap();
    scene.clean().await;
}

async fn extend_raises_a_fixed_promise_and_never_lowers_it(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let lock = scene.lock("more");
    let guard = lock.lock_with_lease(Duration::from_secs(10)).await.unwrap();
    for lease in [MINUTE, Duration::from_secs(1)] {
        guard.extend(lease).await.unwrap();
        scene.assert_vouched(&guard, Duration::from_secs(50));
        for key in scene.keys().await {
            assert!(scene.server.pttl(&key).await > 50_000, "{key}");
        }
    }
    assert_eq!(guard.hold_count(), 1);
    for bad in [Duration::ZERO, ms(9), Duration::MAX] {
        let refused = guard.extend(bad).await;
        assert!(matches!(refused, Err(Error::InvalidLease { .. })));
    }
    guard.unlock().await.unwrap();

    let watched = lock.lock().await.unwrap();
    let refused = watched.extend(MINUTE).await;
    assert!(matches!(refused, Err(Error::InvalidLease { .. })));
    watched.unlock().await.unwrap();
    scene.clean().await;
}

async fn extending_a_lost_hold_says_so(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let guard = scene.lock("gone").lock_with_lease(LONG).await.unwrap();
    scene.server.cmd(&["DEL", "gone"]).await;
    assert!(guard.extend(LONG).await.unwrap_err().is_lost());
    assert!(!scene.server.exists("gone").await && !guard.is_valid());
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(guard.extend(LONG).await.unwrap_err().is_lost());
    drop(guard);
    scene.clean().await;
}

async fn let_expire_leaves_the_key_to_its_lease_as_a_strangers(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "interval");
    let guard = lock.lock_with_lease(ms(1_000)).await.unwrap();
    let view = guard.hold();
    guard.let_expire().unwrap();
    assert!(!view.is_valid() && matches!(view.check(), Err(Error::NotOwner { .. })));
    assert!(!lock.is_held() && scene.server.exists("interval").await);
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    assert!(!scene.is_free(&scene.client, "interval").await);
    // Others wait for it as for any other.
    let rival = scene.rival(&scene.client, "interval");
    let guard = soon(rival.lock()).await.unwrap();
    guard.unlock().await.unwrap();
    scene.clean().await;
}

async fn let_expire_is_refused_where_others_need_the_hold(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let watched = scene.lock("kept").lock().await.unwrap();
    let (watched, error) = watched.let_expire().unwrap_err().into_parts();
    assert!(matches!(error, Error::InvalidLease { .. }) && watched.is_valid());
    watched.unlock().await.unwrap();

    let fixed = scene.lock("kept").lock_with_lease(LONG).await.unwrap();
    let other = fixed.reenter(Lease::Watchdog).await.unwrap();
    let fixed = if kind.differs(kind.levels_end_alone) {
        fixed
    } else {
        let (fixed, error) = fixed.let_expire().unwrap_err().into_parts();
        assert!(matches!(error, Error::InvalidLease { .. }) && fixed.is_valid());
        fixed
    };
    other.unlock().await.unwrap();
    assert!(!scene.is_free(&scene.client, "kept").await);
    fixed.let_expire().unwrap();
    assert!(scene.server.exists("kept").await);
    scene.assert_leased("let go").await;
}

async fn let_expire_of_a_lost_hold_says_so(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let guard = scene.lock("past").lock_with_lease(ms(30)).await.unwrap();
    soon(guard.lost()).await;
    let (guard, error) = guard.let_expire().unwrap_err().into_parts();
    assert!(error.is_lost());
    assert!(guard.unlock().await.unwrap_err().is_lost());
}

async fn i7_nothing_is_renewed_after_the_last_release(kind: &'static Kind) {
    let scene = Scene::timed(kind).await;
    for how in 0..3 {
        let guard = scene.lock("over").lock().await.unwrap();
        match how {
            0 => guard.unlock().await.unwrap(),
            1 => drop(guard),
            _ => assert!(scene.lock("over").force_unlock().await.unwrap()),
        }
        scene.free().await;
    }
    let quiet = ms(50);
    tokio::time::sleep(quiet).await; // what a dropped guard sends behind a loss
    scene.server.reset_calls().await;
    for _ in 0..4 {
        // Nothing to wait for: silence is what is looked at.
        scene.pass(SHORT / 3).await;
    }
    assert_eq!(scene.calls().await, 0);
}

/// While the keeper has anything to look at, it also asks quiet connections whether they still work.
async fn i7_a_long_lease_that_was_given_back_is_not_remembered(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    for drops in [false, true] {
        let lock = scene.lock("long");
        let guard = lock.lock_with_lease(MINUTE * 60).await.unwrap();
        if drops {
            drop(guard);
        } else {
            guard.unlock().await.unwrap();
        }
        scene.free().await;
    }
    eventually("the server is left alone", LONG, async || {
        let before = scene.server.calls_of("ping").await;
        // Nothing to wait for: silence is what is looked at.
        tokio::time::sleep(SHORT * 2).await;
        scene.server.calls_of("ping").await == before
    })
    .await;
}

async fn a_shutdown_does_not_wait_for_a_level_left_to_its_lease(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let guard = scene
        .lock("left")
        .lock_with_lease(MINUTE * 10)
        .await
        .unwrap();
    let client = scene.client.clone();
    let shutdown = tokio::spawn(async move { client.shutdown(Duration::MAX).await });
    soon(scene.client.shutting_down()).await;
    guard.let_expire().unwrap();
    assert!(soon(shutdown).await.unwrap().is_clean());
    assert!(scene.server.exists("left").await);
}

/// The renewal restores a lease that somebody took away.
async fn f12_i4_a_hold_that_lost_its_lease_gets_it_again(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    let guard = scene.lock("persisted").lock().await.unwrap();
    for key in scene.keys().await {
        scene.server.cmd(&["PERSIST", &key]).await;
    }
    eventually("all keys have leases again", LONG, async || {
        let mut least = i64::MAX;
        for key in scene.keys().await {
            least = least.min(scene.server.pttl(&key).await);
        }
        least > 0
    })
    .await;
    guard.unlock().await.unwrap();
    scene.clean().await;
}

/// One bad key among many that are renewed together.
async fn f12_one_bad_key_does_not_cost_the_others_their_renewal(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    let mut guards = Vec::new();
    for i in 0..20 {
        let lock = scene.lock(&format!("hold-{i}"));
        guards.push(lock.lock().await.unwrap());
    }
    // The first in the call, whichever order it has, and some in between.
    let is_bad = |i| matches!(i, 0 | 7 | 19);
    for bad in [0, 7, 19] {
        let key = format!("hold-{bad}");
        scene.server.cmd(&["DEL", &key]).await;
        scene.put(kind.foreign[0], &key).await;
    }
    for bad in [0, 7, 19] {
        assert_eq!(soon(guards[bad].lost()).await, LostReason::Missing);
    }
    let before = scene.server.calls_of("pexpire").await;
    eventually("the others are renewed", LONG, async || {
        scene.server.calls_of("pexpire").await >= before + 17 * 6
    })
    .await;
    for (i, guard) in guards.into_iter().enumerate() {
        assert_eq!(guard.unlock().await.is_err(), is_bad(i), "hold-{i}");
    }
}
