//! Permits that are forgotten stay taken, and those that could not be are given back.

use std::time::Duration;

use watchlock::{Client, Ended, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};

use crate::common::cut::{after, at_every_await};
use crate::common::{LONG, SHORT, ms, script, soon};
use crate::{Kind, NAME, Scene, once};

for_both! {
    forgotten_permits_stay_taken_whatever_becomes_of_their_client,
    permits_that_cannot_be_forgotten_are_given_back,
    a_forget_whose_reply_is_lost_gives_the_permits_back,
    a_forget_waits_no_longer_than_the_permits_last,
    i9_a_forget_can_be_dropped_at_any_await,
}

/// Waits until two permits of three are forgotten; Redisson keeps the records of its own.
async fn two_are_forgotten<K: Kind>(scene: &Scene) {
    let records = if K::RECORDED { 2 } else { 0 };
    eventually("they are forgotten", LONG, async || {
        scene.state::<K>().await == (Some(1), records)
    })
    .await;
}

async fn forgotten_permits_stay_taken_whatever_becomes_of_their_client<K: Kind>() {
    let scene = Scene::new().await;
    let other = scene.other().await;
    let of = K::of(&other, NAME).with_permits(3);
    let both = of.try_acquire_many(2, LONG, SHORT).await.unwrap().unwrap();
    let (ids, hold) = (both.ids().to_vec(), both.hold());
    both.forget().await.unwrap();
    assert_eq!(hold.ended().await, Ended::Released);
    two_are_forgotten::<K>(&scene).await;
    other.shutdown(LONG).await;

    let of = K::of(&scene.client, NAME);
    let waited = of.try_acquire_many(2, SHORT * 2, Lease::Watchdog).await;
    assert!(waited.unwrap().is_none(), "the lease is over");
    two_are_forgotten::<K>(&scene).await;
    if K::RECORDED {
        let of = scene.client.get_permit_expirable_semaphore(NAME);
        assert_eq!(of.acquired_permits().await.unwrap(), 2);
        for id in ids {
            assert!(of.release_permit(id).await.unwrap());
        }
    } else {
        of.add_permits(2).await.unwrap();
    }
    scene.all_are_free::<K>(3).await;
}

async fn permits_that_cannot_be_forgotten_are_given_back<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(3);
    let permit = of.acquire_many(3).await.unwrap();
    let gone = ["ZREMRANGEBYRANK", K::RECORDS, "0", "0"];
    scene.server.cmd(&gone).await;
    scene.server.cmd(&["INCR", NAME]).await;
    let lost = permit.forget().await.unwrap_err();
    assert!(lost.is_lost() && lost.lock() == Some(NAME), "{lost}");
    scene.all_are_free::<K>(3).await;

    let permit = of.try_acquire(LONG, ms(50)).await.unwrap().unwrap();
    soon(permit.lost()).await;
    assert!(permit.forget().await.unwrap_err().is_lost());
    drop(of.acquire_many(3).await.unwrap());
    scene.all_are_free::<K>(3).await;
}

/// Also when Redis ran it.
async fn a_forget_whose_reply_is_lost_gives_the_permits_back<K: Kind>() {
    let scene = Scene::new().await;
    let faults = [
        || Fault::SwallowReply,
        || Fault::DelayRequest(Duration::from_millis(700)),
    ];
    for fault in faults {
        let proxy = Proxy::to(&scene.server);
        let builder = Client::builder(&proxy.url()).command_timeout(ms(400));
        let client = builder.connect().await.unwrap();
        let of = K::of(&client, NAME).with_permits(3);
        let permit = of.acquire_many(2).await.unwrap();
        let forget = Match::script(&script("permits/forget.lua"));
        let shot = proxy.inject(fault()).on(forget).arm();
        let failed = soon(permit.forget()).await;
        assert!(
            matches!(failed, Err(Error::Unavailable { .. })),
            "{failed:?}"
        );
        assert_eq!(shot.fired(), 1);
        scene.all_are_free::<K>(3).await;
        client.shutdown(LONG).await;
    }
    assert!(once(&K::of(&scene.client, NAME)).await.is_some());
}

async fn a_forget_waits_no_longer_than_the_permits_last<K: Kind>() {
    let scene = Scene::new().await;
    let proxy = Proxy::to(&scene.server);
    let builder = Client::builder(&proxy.url()).command_timeout(LONG);
    let client = builder.connect().await.unwrap();
    let of = K::of(&client, NAME).with_permits(3);
    let permit = of.try_acquire(LONG, SHORT).await.unwrap().unwrap();
    let forget = Match::script(&script("permits/forget.lua"));
    let shot = proxy.inject(Fault::SwallowRequest).on(forget).arm();
    let lost = soon(permit.forget()).await.unwrap_err();
    assert!(lost.is_lost(), "{lost}");
    assert_eq!(shot.fired(), 1);
    scene.all_are_free::<K>(3).await;
}

async fn i9_a_forget_can_be_dropped_at_any_await<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(3);
    at_every_await(async |polls| {
        let permit = of.acquire_many(2).await.unwrap();
        let forgotten = after(polls, permit.forget()).await;
        if let Some(forgotten) = &forgotten {
            assert!(forgotten.is_ok(), "{forgotten:?}");
            two_are_forgotten::<K>(&scene).await;
            scene.server.cmd(&["DEL", K::RECORDS]).await;
            of.add_permits(2).await.unwrap();
        }
        scene.all_are_free::<K>(3).await;
        forgotten.is_some()
    })
    .await;
}
