//! Leases: permits of holders that are gone come back, and those of holders that live do not.

use std::time::Duration;

use watchlock::{Ended, Error, Lease, LostReason, PermitId};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};

use crate::common::{LONG, SHORT, connect, ms, soon};
use crate::{CHANNEL, Kind, NAME, Scene, once};

for_both! {
    permits_of_a_dead_holder_return_to_a_try,
    permits_of_a_dead_holder_return_to_a_waiter,
    permits_of_a_dead_holder_return_with_a_renewal,
    permits_of_a_dead_holder_return_after_the_number_lost_its_ttl,
    the_watchdog_keeps_permits_and_nobody_takes_them_back,
    a_fixed_lease_ends_by_itself_and_can_be_extended,
    a_client_that_is_cut_off_loses_its_permits_before_others_get_them,
    a_client_that_ends_gives_its_permits_back,
    a_shutdown_reports_what_is_held_and_gives_it_back,
    people_see_which_permits_are_taken_and_how_many_clients_wait,
    permits_whose_key_has_another_type_are_lost_for_every_call,
}

/// Nothing is left of permits when somebody writes something else to the number or to the records.
async fn permits_whose_key_has_another_type_are_lost_for_every_call<K: Kind>() {
    for key in [NAME, K::RECORDS] {
        let scene = Scene::new().await;
        let of = K::of(&scene.client, NAME);
        let is_lost = |result: &Result<(), Error>| {
            let missing = LostReason::Missing;
            matches!(result, Err(Error::Lost { reason, .. }) if *reason == missing)
        };
        for call in ["release", "verify", "extend", "forget"] {
            assert!(of.try_set_permits(1).await.unwrap());
            let lease = if call == "extend" {
                Lease::Fixed(LONG)
            } else {
                Lease::Watchdog
            };
            let permit = of.try_acquire(Duration::ZERO, lease).await;
            let permit = permit.unwrap().expect("it is free");
            scene.server.cmd(&["DEL", key]).await;
            scene.server.cmd(&["HSET", key, "a", "b"]).await;
            let theirs = scene.server.cmd(&["DUMP", key]).await;
            let done = match call {
                "release" => permit.release().await,
                "verify" => permit.verify().await,
                "extend" => permit.extend(LONG).await,
                _ => permit.forget().await,
            };
            assert!(is_lost(&done), "{call}, {key}: {done:?}");
            let now = scene.server.cmd(&["DUMP", key]).await;
            assert_eq!(now, theirs, "not ours to delete");
            scene.server.cmd(&["FLUSHALL"]).await;
        }
    }
}

/// The records had the TTL of the number, and nobody who is left renews them.
async fn permits_of_a_dead_holder_return_after_the_number_lost_its_ttl<K: Kind>() {
    let scene = Scene::new().await;
    // As Java's `trySetPermits` with a lifetime, and then its `addPermits`.
    scene.server.cmd(&["SET", NAME, "1", "PX", "500"]).await;
    scene.dead_holder::<K>(1, 1_500).await;
    scene.server.cmd(&["PERSIST", NAME]).await;
    let of = K::of(&scene.client, NAME);
    soon(of.acquire()).await.unwrap().release().await.unwrap();
    scene.all_are_free::<K>(1).await;
}

async fn people_see_which_permits_are_taken_and_how_many_clients_wait<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME);
    assert_eq!(of.holders().await.unwrap(), [], "there is none");
    assert_eq!(of.waiters().await.unwrap(), 0);
    of.try_set_permits(3).await.unwrap();
    scene.dead_holder::<K>(1, 1).await;
    let two = of.acquire_many(2).await.unwrap();
    eventually("the dead one's lease is over", LONG, async || {
        of.holders().await.unwrap().len() == 2
    })
    .await;
    let seen = of.holders().await.unwrap();
    let ids = seen.iter().map(|holder| holder.hold_id.parse().unwrap());
    let ids: Vec<PermitId> = ids.collect();
    assert!(two.ids().is_empty() || two.ids() == ids, "{ids:?}");
    assert!(
        seen.iter()
            .all(|holder| holder.client.is_none() && holder.hold_count == 1)
    );
    let other = K::of(&scene.other().await, NAME);
    let waiting = tokio::spawn(async move { other.acquire_many(2).await });
    eventually("it waits", LONG, async || of.waiters().await.unwrap() == 1).await;
    two.release().await.unwrap();
    drop(waiting.await.unwrap());
    scene.server.cmd(&["DEL", NAME]).await;
    assert_eq!(of.holders().await.unwrap(), [], "records of nothing");
    scene.server.cmd(&["HSET", NAME, "a", "b"]).await;
    assert!(matches!(of.holders().await, Err(Error::WrongType { .. })));
}

async fn permits_of_a_dead_holder_return_to_a_try<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME);
    of.try_set_permits(3).await.unwrap();
    scene.dead_holder::<K>(3, 300).await;
    assert!(once(&of).await.is_none(), "it may still live");
    eventually("its lease ends", LONG, async || {
        of.available_permits().await.unwrap() == 3
    })
    .await;
    assert_eq!(
        scene.state::<K>().await,
        (Some(0), 3),
        "nobody took them back"
    );
    let permit = once(&of).await.expect("they return");
    assert_eq!(scene.state::<K>().await, (Some(2), 1));
    drop(permit);
    scene.all_are_free::<K>(3).await;
}

async fn permits_of_a_dead_holder_return_to_a_waiter<K: Kind>() {
    let scene = Scene::with(|builder| builder.watchdog_lease(Duration::from_secs(10))).await;
    let of = K::of(&scene.client, NAME);
    of.try_set_permits(2).await.unwrap();
    scene.dead_holder::<K>(2, 400).await;
    let both = soon(of.acquire_many(2)).await.unwrap();
    both.release().await.unwrap();
    scene.all_are_free::<K>(2).await;
}

/// Who holds permits is enough: nobody waits.
async fn permits_of_a_dead_holder_return_with_a_renewal<K: Kind>() {
    let scene = Scene::with(|builder| builder.watchdog_lease(SHORT)).await;
    let of = K::of(&scene.client, NAME);
    of.try_set_permits(3).await.unwrap();
    let permit = of.acquire().await.unwrap();
    scene.dead_holder::<K>(2, 1).await;
    eventually("a renewal takes them back", LONG, async || {
        scene.state::<K>().await == (Some(2), 1)
    })
    .await;
    permit.release().await.unwrap();
}

async fn the_watchdog_keeps_permits_and_nobody_takes_them_back<K: Kind>() {
    let scene = Scene::with(|builder| builder.watchdog_lease(SHORT)).await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    let permits = of.acquire_many(2).await.unwrap();
    let other = K::of(&scene.other().await, NAME);
    let waited = other.try_acquire(SHORT * 2, Lease::Watchdog).await.unwrap();
    assert!(waited.is_none() && permits.is_valid());
    permits.verify().await.unwrap();
    permits.release().await.unwrap();
    assert!(once(&other).await.is_some());
}

async fn a_fixed_lease_ends_by_itself_and_can_be_extended<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(1);
    let fixed = async |lease: Duration| {
        let got = of.try_acquire(LONG, lease).await.unwrap();
        got.expect("it is free")
    };
    let permit = fixed(ms(200)).await;
    let hold = permit.hold();
    assert_eq!(soon(permit.lost()).await, LostReason::Expired);
    assert_eq!(hold.ended().await, Ended::Lost(LostReason::Expired));
    assert!(permit.release().await.is_err_and(|error| error.is_lost()));
    let permit = fixed(ms(300)).await;
    permit.extend(Duration::from_secs(60)).await.unwrap();
    assert!(permit.valid_for() > Duration::from_secs(50));
    let watched = of.clone();
    assert!(once(&watched).await.is_none());
    permit.release().await.unwrap();
    let permit = of.acquire().await.unwrap();
    let refused = permit.extend(Duration::from_secs(60)).await;
    assert!(matches!(
        refused,
        Err(watchlock::Error::InvalidLease { .. })
    ));
    drop(permit);
    scene.all_are_free::<K>(1).await;
}

/// Never more permits that are valid than there are.
async fn a_client_that_is_cut_off_loses_its_permits_before_others_get_them<K: Kind>() {
    let scene = Scene::new().await;
    let proxy = Proxy::to(&scene.server);
    let builder = watchlock::Client::builder(&proxy.url()).watchdog_lease(SHORT);
    let cut_off = builder.connect().await.unwrap();
    let lost = K::of(&cut_off, NAME).with_permits(2);
    let permits = lost.acquire_many(2).await.unwrap();
    proxy.black_hole(Direction::Both);
    let of = K::of(&scene.client, NAME);
    let next = soon(of.acquire()).await.unwrap();
    assert!(!permits.is_valid(), "it knows by its own clock");
    assert_eq!(soon(permits.lost()).await, LostReason::Expired);
    proxy.heal();
    drop(permits);
    // The late release of the one finds nothing to give back.
    eventually("one is taken", LONG, async || {
        scene.state::<K>().await == (Some(1), 1)
    })
    .await;
    next.verify().await.unwrap();
    cut_off.shutdown(LONG).await;
    next.release().await.unwrap();
    scene.all_are_free::<K>(2).await;
}

async fn a_client_that_ends_gives_its_permits_back<K: Kind>() {
    let scene = Scene::new().await;
    let other = scene.other().await;
    let of = K::of(&other, NAME).with_permits(4);
    let permits = [
        of.acquire().await.unwrap(),
        of.acquire_many(2).await.unwrap(),
    ];
    drop((other, of));
    assert!(permits.iter().all(watchlock::Permit::is_valid));
    drop(permits);
    scene.all_are_free::<K>(4).await;
}

async fn a_shutdown_reports_what_is_held_and_gives_it_back<K: Kind>() {
    let scene = Scene::new().await;
    let other = scene.other().await;
    let of = K::of(&other, NAME).with_permits(3);
    let permits = [of.acquire().await.unwrap(), of.acquire().await.unwrap()];
    let waits = tokio::spawn({
        let of = of.clone();
        async move { of.acquire_many(2).await }
    });
    eventually("it waits", LONG, async || {
        scene.server.subscribers(CHANNEL).await > 0
    })
    .await;
    let report = other.shutdown(ms(50)).await;
    assert_eq!(report.held, [NAME, NAME]);
    assert!(report.unreleased.is_empty(), "{report:?}");
    let closed = soon(waits).await.unwrap();
    assert!(matches!(closed, Err(watchlock::Error::Closed)));
    for permit in permits {
        assert_eq!(soon(permit.lost()).await, LostReason::Shutdown);
    }
    assert!(matches!(of.acquire().await, Err(watchlock::Error::Closed)));
    scene.all_are_free::<K>(3).await;
    drop(connect(&scene.server).await);
}
