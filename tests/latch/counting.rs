//! Counts: set once, counted down once each, and what is no latch is left alone.

use futures_util::future::join_all;
use watchlock::{Client, Error};

use crate::common::{connect, soon};
use crate::{COUNTED, NAME, Scene};

#[tokio::test]
async fn the_last_count_opens_a_latch_and_it_can_be_set_again() {
    let scene = Scene::new().await;
    let other = scene.other().await;
    for _ in 0..2 {
        assert!(scene.latch.try_set_count(3).await.unwrap());
        assert!(!other.try_set_count(9).await.unwrap(), "it is set");
        for (latch, left) in [(&scene.latch, 2), (&other, 1), (&scene.latch, 0)] {
            assert_eq!(latch.count_down().await.unwrap(), left);
            assert_eq!(other.count().await.unwrap(), left);
        }
        soon(other.wait()).await.unwrap();
        assert_eq!(scene.server.keys().await, [COUNTED]);
    }
    let hour = scene.server.pttl(COUNTED).await;
    assert!((3_000_000..=3_600_000).contains(&hour), "{hour}");
}

#[tokio::test]
async fn a_latch_without_a_count_is_open() {
    let scene = Scene::new().await;
    assert_eq!(scene.latch.count().await.unwrap(), 0);
    assert_eq!(scene.latch.count_down().await.unwrap(), 0);
    assert!(!scene.latch.delete().await.unwrap());
    soon(scene.latch.wait()).await.unwrap();
    assert!(scene.server.keys().await.is_empty());
    assert!(scene.latch.try_set_count(1).await.unwrap(), "not counted");
}

/// Redisson's trySetCount takes any number, and leaves one below 1 in Redis.
#[tokio::test]
async fn a_count_below_one_is_open_and_goes_with_the_next_count() {
    let scene = Scene::new().await;
    for count in ["0", "-3"] {
        scene.server.cmd(&["SET", NAME, count]).await;
        assert_eq!(scene.latch.count().await.unwrap(), 0);
        soon(scene.latch.wait()).await.unwrap();
        assert!(!scene.latch.try_set_count(2).await.unwrap());
        assert_eq!(scene.latch.count_down().await.unwrap(), 0);
        assert!(scene.server.keys().await.is_empty());
    }
}

#[tokio::test]
async fn a_thousand_tasks_of_several_clients_are_counted_one_by_one() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1_001).await.unwrap();
    let mut latches = Vec::new();
    for _ in 0..4 {
        latches.push(scene.other().await);
    }
    let counts = (0..1_000).map(|task| latches[task % 4].count_down());
    let mut left: Vec<_> = soon(join_all(counts)).await;
    left.sort_by_key(|left| *left.as_ref().unwrap());
    let left: Vec<_> = left.into_iter().map(Result::unwrap).collect();
    assert_eq!(left, (1..=1_000).collect::<Vec<u64>>());
    assert_eq!(scene.latch.count_down().await.unwrap(), 0);
}

#[tokio::test]
async fn bad_counts_are_refused_and_nothing_is_written() {
    let scene = Scene::new().await;
    for given in [0, 1 << 31, u32::MAX] {
        let refused = scene.latch.try_set_count(given).await.unwrap_err();
        assert_eq!(refused.lock(), Some(NAME));
        assert!(!refused.was_sent() && !refused.is_transient());
        let range = match refused {
            Error::InvalidCount {
                given,
                smallest,
                largest,
                ..
            } => (given, smallest, largest),
            other => panic!("{other:?}"),
        };
        assert_eq!(range, (given.into(), 1, (1 << 31) - 1));
    }
    let nameless = scene.client.get_count_down_latch("");
    for refused in [
        nameless.wait().await,
        nameless.count_down().await.map(drop),
        nameless.count().await.map(drop),
        nameless.try_set_count(1).await.map(drop),
        nameless.delete().await.map(drop),
    ] {
        assert!(matches!(refused, Err(Error::InvalidName { .. })));
    }
    assert!(scene.server.keys().await.is_empty());
    assert!(scene.latch.try_set_count((1 << 31) - 1).await.unwrap());
    assert_eq!(scene.latch.count_down().await.unwrap(), (1 << 31) - 2);
}

#[tokio::test]
async fn keys_of_another_kind_are_left_alone() {
    let foreign: [&[&str]; 4] = [
        &["SET", NAME, "no number"],
        &["SET", NAME, "9007199254740993"],
        &["HSET", NAME, "a", "1"],
        &["RPUSH", NAME, "x"],
    ];
    for write in foreign {
        let scene = Scene::new().await;
        scene.server.cmd(write).await;
        let dump = async || scene.server.query::<Vec<u8>>(&["DUMP", NAME]).await;
        let before = dump().await;
        for refused in [
            soon(scene.latch.wait()).await,
            scene.latch.count_down().await.map(drop),
            scene.latch.count().await.map(drop),
            scene.latch.try_set_count(1).await.map(drop),
            scene.latch.delete().await.map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::WrongType { .. }), "{write:?}");
            assert_eq!(error.lock(), Some(NAME));
        }
        assert_eq!(dump().await, before, "{write:?}");
        assert_eq!(scene.server.keys().await, [NAME]);
    }
    let scene = Scene::new().await;
    scene.latch.try_set_count(2).await.unwrap();
    scene.server.cmd(&["SET", COUNTED, "x"]).await;
    let refused = scene.latch.count_down().await;
    assert!(matches!(refused, Err(Error::WrongType { .. })));
    assert_eq!(scene.latch.count().await.unwrap(), 2);
}

#[tokio::test]
async fn a_latch_is_named_as_redisson_names_it_behind_the_prefix() {
    let scene = Scene::with(|builder| builder.key_prefix("app:")).await;
    let latch = scene.client.get_count_down_latch("a:{b}:c");
    assert_eq!(latch.name(), "a:{b}:c");
    assert!(format!("{latch:?}").contains("a:{b}:c"));
    latch.try_set_count(2).await.unwrap();
    latch.count_down().await.unwrap();
    let mut keys = scene.server.keys().await;
    keys.sort();
    assert_eq!(keys, ["app:a:{b}:c", "watchlock_counted:app:a:{b}:c"]);
    let waits = crate::waits(&latch);
    let channel = "redisson_countdownlatch__channel__{app:a:{b}:c}";
    watchlock_support::eventually("it listens", crate::common::LONG, async || {
        scene.server.subscribers(channel).await == 1
    })
    .await;
    latch.count_down().await.unwrap();
    soon(waits).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_was_shut_down_counts_nothing() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(2).await.unwrap();
    let closed = connect(&scene.server).await;
    let latch = Client::get_count_down_latch(&closed, NAME);
    closed.shutdown(crate::common::LONG).await;
    for refused in [
        latch.wait().await,
        latch.count_down().await.map(drop),
        latch.count().await.map(drop),
        latch.delete().await.map(drop),
    ] {
        assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    }
    assert_eq!(scene.latch.count().await.unwrap(), 2);
}
