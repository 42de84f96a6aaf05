//! I9: every future is dropped after so many polls, for every number until it completes.

use futures_util::future::join_all;
use watchlock_support::eventually;

use crate::common::cut::{after, at_every_await};
use crate::common::{LONG, ms, soon};
use crate::{COUNTED, NAME, Scene, waits};

#[tokio::test]
async fn i9_a_wait_can_be_dropped_at_any_await() {
    let scene = Scene::new().await;
    let other = scene.other().await;
    at_every_await(async |polls| {
        scene.latch.try_set_count(1).await.unwrap();
        let opens = async {
            tokio::time::sleep(ms(10)).await;
            other.count_down().await.unwrap();
        };
        let (waited, ()) = tokio::join!(after(polls, scene.latch.wait()), opens);
        // Who comes next is not disturbed.
        scene.latch.try_set_count(1).await.unwrap();
        let next = waits(&scene.latch);
        other.count_down().await.unwrap();
        soon(next).await.unwrap().unwrap();
        waited.map(Result::unwrap).is_some()
    })
    .await;
    eventually("nobody listens any more", LONG, async || {
        scene.server.channels().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn i9_a_count_that_is_dropped_has_counted_once_or_not_at_all() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1_000).await.unwrap();
    scene.latch.count_down().await.unwrap();
    let mut before = 999;
    at_every_await(async |polls| {
        let counted = after(polls, scene.latch.count_down()).await;
        // What was sent has run by the time that this is answered.
        scene.latch.try_set_count(1).await.unwrap();
        let left = scene.latch.count().await.unwrap();
        assert!([before, before - 1].contains(&left), "{before} {left}");
        let ids: u64 = scene.server.query(&["ZCARD", COUNTED]).await;
        assert_eq!(ids, 1_000 - left);
        before = left;
        counted.map(Result::unwrap).is_some()
    })
    .await;
}

#[tokio::test]
async fn i9_questions_and_changes_can_be_dropped_at_any_await() {
    let scene = Scene::new().await;
    for verb in 0..3 {
        at_every_await(async |polls| {
            let call = async {
                match verb {
                    0 => scene.latch.count().await.map(drop),
                    1 => scene.latch.try_set_count(1).await.map(drop),
                    _ => scene.latch.delete().await.map(drop),
                }
            };
            after(polls, call).await.map(Result::unwrap).is_some()
        })
        .await;
    }
    scene.latch.try_set_count(1).await.unwrap();
    assert_eq!(scene.latch.count_down().await.unwrap(), 0);
    assert_eq!(scene.server.keys().await, [COUNTED]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_a_storm_of_dropped_waits_leaves_nothing() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1).await.unwrap();
    let connections = scene.server.connections().await;
    let wait = async |number: u64| {
        let limit = ms(number % 41);
        let _ = tokio::time::timeout(limit, scene.latch.wait()).await;
    };
    for _ in 0..3 {
        soon(join_all((0..300).map(wait))).await;
    }
    eventually("nothing is left", LONG, async || {
        scene.server.channels().await.is_empty()
            && scene.server.connections().await <= connections + 1
    })
    .await;
    assert_eq!(scene.server.keys().await, [NAME]);
    let last = waits(&scene.latch);
    scene.listeners(1).await;
    scene.latch.count_down().await.unwrap();
    soon(last).await.unwrap().unwrap();
}
