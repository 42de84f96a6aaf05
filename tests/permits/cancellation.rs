//! I9: every future is dropped after so many polls, for every number until it completes, and no permit stays taken.

use std::time::Duration;

use watchlock::{Lease, Permit};

use crate::common::cut::{after, at_every_await};
use crate::common::{LONG, ms, soon};
use crate::{Kind, NAME, Scene};

for_both! {
    i9_an_acquire_can_be_dropped_at_any_await,
    i9_a_wait_can_be_dropped_at_any_await,
    i9_a_release_can_be_dropped_at_any_await,
    i9_questions_and_changes_can_be_dropped_at_any_await,
    i9_a_storm_of_dropped_acquires_leaves_nothing,
}

async fn i9_an_acquire_can_be_dropped_at_any_await<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(3);
    drop(of.acquire().await.unwrap());
    for verb in 0..4 {
        at_every_await(async |polls| {
            let call = async {
                match verb {
                    0 => of.acquire().await.map(Some),
                    1 => of.acquire_many(3).await.map(Some),
                    2 => of.try_acquire(Duration::ZERO, Lease::Watchdog).await,
                    _ => {
                        let ran = of.run(async |_| tokio::task::yield_now().await).await;
                        ran.map(|()| None)
                    }
                }
            };
            let got = after(polls, call).await;
            let completed = got.is_some();
            drop(got.map(Result::unwrap));
            scene.all_are_free::<K>(3).await;
            completed
        })
        .await;
    }
}

async fn i9_a_wait_can_be_dropped_at_any_await<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(3);
    at_every_await(async |polls| {
        let held = of.try_acquire_many(2, LONG, ms(30)).await.unwrap();
        let held = held.expect("they are free");
        let got = after(polls, of.acquire_many(2)).await;
        let completed = got.is_some();
        drop(got.map(Result::unwrap));
        drop(held);
        scene.all_are_free::<K>(3).await;
        completed
    })
    .await;
}

async fn i9_a_release_can_be_dropped_at_any_await<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(3);
    at_every_await(async |polls| {
        let permit = of.acquire_many(2).await.unwrap();
        let released = after(polls, permit.release()).await;
        scene.all_are_free::<K>(3).await;
        released.map(Result::unwrap).is_some()
    })
    .await;
}

async fn i9_questions_and_changes_can_be_dropped_at_any_await<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(3);
    let permit = of.try_acquire(LONG, LONG).await.unwrap().unwrap();
    for verb in 0..4 {
        at_every_await(async |polls| {
            let call = async {
                match verb {
                    0 => permit.verify().await,
                    1 => permit.extend(LONG).await,
                    2 => of.available_permits().await.map(drop),
                    _ => of.try_set_permits(7).await.map(drop),
                }
            };
            let completed = after(polls, call).await;
            assert!(permit.is_valid());
            completed.map(Result::unwrap).is_some()
        })
        .await;
    }
    permit.release().await.unwrap();
    scene.all_are_free::<K>(3).await;
}

async fn i9_a_storm_of_dropped_acquires_leaves_nothing<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(4);
    let call = async |number: u64| {
        let permits = 1 + u32::try_from(number % 3).unwrap();
        let acquire = of.acquire_many(permits);
        let got = tokio::time::timeout(ms(number % 23), acquire).await;
        if let Ok(Ok(permit)) = got {
            assert!(permit.is_valid());
            hold(permit, number).await;
        }
    };
    soon(futures_util::future::join_all((0..200).map(call))).await;
    scene.all_are_free::<K>(4).await;
}

async fn hold(permit: Permit, number: u64) {
    tokio::time::sleep(ms(number % 3)).await;
    if number.is_multiple_of(2) {
        permit.release().await.unwrap();
    }
}
