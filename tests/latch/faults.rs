//! Replies that are lost, servers that are silent or without memory, rights that are missing: each call counts once.

use std::time::{Duration, Instant};

use watchlock::{Client, Error};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};

use crate::common::{LONG, ms, script, soon};
use crate::{CHANNEL, COUNTED, NAME, Scene, waits};

const FAULTS: [fn() -> Fault; 3] = [
    || Fault::SwallowReply,
    || Fault::ResetAfter,
    || Fault::ResetBefore,
];

fn count_down() -> Match {
    Match::script(&script("latch/count_down.lua"))
}

async fn through(scene: &Scene, unavailable_after: Duration) -> (Proxy, Client) {
    let proxy = Proxy::to(&scene.server);
    let builder = Client::builder(&proxy.url()).command_timeout(ms(300));
    let builder = builder.unavailable_after(unavailable_after);
    let client = builder.connect().await.expect("a client");
    (proxy, client)
}

/// Redisson's countDown counts again.
#[tokio::test]
async fn a_count_whose_reply_is_lost_counts_once() {
    let scene = Scene::new().await;
    for fault in FAULTS {
        for (counts, left) in [(3, 2), (1, 0)] {
            let (proxy, client) = through(&scene, LONG).await;
            let latch = client.get_count_down_latch(NAME);
            latch.count_down().await.unwrap();
            latch.try_set_count(counts).await.unwrap();
            let shot = proxy.inject(fault()).on(count_down()).arm();
            assert_eq!(soon(latch.count_down()).await.unwrap(), left);
            assert_eq!(shot.fired(), 1);
            assert_eq!(scene.latch.count().await.unwrap(), left);
            scene.latch.delete().await.unwrap();
        }
    }
}

/// Others count it down before a repeat would arrive, which would close it for ever: nobody is left to count.
#[tokio::test]
async fn a_latch_that_was_set_and_counted_down_is_not_set_again_after_a_lost_reply() {
    let scene = Scene::new().await;
    assert!(scene.latch.try_set_count(1).await.unwrap(), "known script");
    scene.latch.delete().await.unwrap();
    let (proxy, client) = through(&scene, LONG).await;
    let latch = client.get_count_down_latch(NAME);
    let set = || Match::script(&script("latch/change.lua"));
    let lost = proxy.inject(Fault::SwallowReply).on(set()).arm();
    let sets = proxy.count(set());
    let counted = async {
        eventually("it is set", LONG, async || {
            scene.latch.count().await.unwrap() == 2
        })
        .await;
        for left in [1, 0] {
            assert_eq!(scene.latch.count_down().await.unwrap(), left);
        }
        proxy.reset_all();
    };
    let (set, ()) = tokio::join!(latch.try_set_count(2), counted);
    assert_eq!(scene.latch.count().await.unwrap(), 0);
    let unclear = set.expect_err("nobody knows whether it was this call");
    assert!(matches!(unclear, Error::Unavailable { .. }), "{unclear:?}");
    assert!(unclear.was_sent());
    assert_eq!((lost.fired(), sets.seen()), (1, 1));
}

/// Somebody has set it, perhaps this call.
#[tokio::test]
async fn a_latch_whose_set_has_no_reply_is_set() {
    let scene = Scene::new().await;
    let (proxy, client) = through(&scene, LONG).await;
    let latch = client.get_count_down_latch(NAME);
    assert!(latch.try_set_count(1).await.unwrap(), "known script");
    latch.delete().await.unwrap();
    let set = Match::script(&script("latch/change.lua"));
    let cut = proxy.inject(Fault::ResetAfter).on(set).arm();
    assert!(!soon(latch.try_set_count(2)).await.unwrap());
    assert_eq!((cut.fired(), scene.latch.count().await.unwrap()), (1, 2));
}

/// What certainly did not run is sent again.
#[tokio::test]
async fn a_latch_is_set_over_the_next_connection() {
    let scene = Scene::new().await;
    let (proxy, client) = through(&scene, LONG).await;
    let latch = client.get_count_down_latch(NAME);
    latch.count().await.unwrap();
    proxy.reset_all();
    assert!(soon(latch.try_set_count(2)).await.unwrap());
    assert_eq!(scene.latch.count().await.unwrap(), 2);
}

/// It arrives when the repeat has counted, and when another latch has the name.
#[tokio::test]
async fn a_count_that_arrives_late_counts_no_more() {
    let scene = Scene::new().await;
    for anew in [false, true] {
        let (proxy, client) = through(&scene, LONG).await;
        let latch = client.get_count_down_latch(NAME);
        latch.count_down().await.unwrap();
        latch.try_set_count(if anew { 1 } else { 3 }).await.unwrap();
        let delay = Fault::DelayRequest(ms(900));
        let late = proxy.inject(delay).on(count_down()).arm();
        soon(latch.count_down()).await.unwrap();
        assert_eq!(late.fired(), 1);
        if anew {
            assert!(scene.latch.try_set_count(2).await.unwrap());
        }
        tokio::time::sleep(ms(1_000)).await;
        assert_eq!(scene.latch.count().await.unwrap(), 2);
        scene.latch.delete().await.unwrap();
    }
}

#[tokio::test]
async fn a_silent_server_is_unavailable_and_a_count_has_counted_once_at_most() {
    let scene = Scene::new().await;
    for direction in [Direction::Requests, Direction::Replies] {
        let (proxy, client) = through(&scene, ms(800)).await;
        let latch = client.get_count_down_latch(NAME);
        latch.try_set_count(5).await.unwrap();
        let waiter = waits(&latch);
        scene.listeners(1).await;
        proxy.black_hole(direction);
        let since = Instant::now();
        let (counted, waited) = tokio::join!(soon(latch.count_down()), soon(waiter));
        assert!(since.elapsed() < ms(800) * 4, "{:?}", since.elapsed());
        let counted = counted.unwrap_err();
        assert!(matches!(counted, Error::Unavailable { .. }), "{counted:?}");
        assert!(counted.was_sent());
        let waited = waited.unwrap().unwrap_err();
        assert!(matches!(waited, Error::Unavailable { .. }), "{waited:?}");
        assert_eq!(waited.lock(), Some(NAME));
        proxy.heal();
        client.shutdown(LONG).await;
        let left = scene.latch.count().await.unwrap();
        assert!([4, 5].contains(&left), "{left}");
        scene.latch.delete().await.unwrap();
        scene.listeners(0).await;
    }
}

/// Longer than what counts as a pause of the process, in which nobody looked at the clock.
#[tokio::test]
async fn an_outage_ends_the_wait_of_a_client_that_holds_nothing() {
    let scene = Scene::new().await;
    let long = ms(2_500);
    for is_silent in [false, true] {
        let (proxy, client) = through(&scene, long).await;
        let latch = client.get_count_down_latch(NAME);
        latch.try_set_count(1).await.unwrap();
        let waiter = waits(&latch);
        scene.listeners(1).await;
        let since = Instant::now();
        if is_silent {
            proxy.black_hole(Direction::Requests);
        } else {
            proxy.refuse();
            proxy.reset_all();
        }
        let waited = soon(waiter).await.unwrap().unwrap_err();
        assert!(matches!(waited, Error::Unavailable { .. }), "{waited:?}");
        assert!(since.elapsed() < long * 3, "{:?}", since.elapsed());
        proxy.heal();
        client.shutdown(LONG).await;
        scene.latch.delete().await.unwrap();
        scene.listeners(0).await;
    }
}

#[tokio::test]
async fn those_who_wait_outlive_a_break_of_their_connections() {
    let scene = Scene::new().await;
    let (proxy, client) = through(&scene, LONG).await;
    let latch = client.get_count_down_latch(NAME);
    latch.try_set_count(1).await.unwrap();
    let waiter = waits(&latch);
    scene.listeners(1).await;
    proxy.refuse();
    proxy.reset_all();
    scene.listeners(0).await;
    scene.latch.count_down().await.unwrap();
    assert!(!waiter.is_finished());
    proxy.accept();
    soon(waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn those_who_wait_listen_again_after_a_break() {
    let scene = Scene::new().await;
    let (proxy, client) = through(&scene, LONG).await;
    let latch = client.get_count_down_latch(NAME);
    latch.try_set_count(1).await.unwrap();
    let waiter = waits(&latch);
    for _ in 0..3 {
        scene.listeners(1).await;
        proxy.reset_subscribers();
    }
    eventually("it listens again", LONG, async || {
        scene.server.subscribers(CHANNEL).await == 1
    })
    .await;
    scene.latch.count_down().await.unwrap();
    soon(waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_lost_its_data_has_an_open_latch() {
    let scene = Scene::with(|builder| builder.unavailable_after(LONG)).await;
    scene.latch.try_set_count(1).await.unwrap();
    let waiter = waits(&scene.latch);
    scene.listeners(1).await;
    scene.server.restart();
    soon(waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn without_memory_a_latch_is_counted_down_and_none_is_set() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(2).await.unwrap();
    let waiter = waits(&scene.other().await);
    scene.listeners(1).await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for left in [1, 0] {
        assert_eq!(scene.latch.count_down().await.unwrap(), left);
    }
    soon(waiter).await.unwrap().unwrap();
    let refused = scene.latch.try_set_count(2).await.unwrap_err();
    assert!(matches!(
        refused,
        Error::Refused {
            transient: true,
            ..
        }
    ));
}

#[tokio::test]
async fn what_is_denied_changes_nothing() {
    let scene = Scene::new().await;
    let limited = async |denied: &str| {
        let rights = ["ACL", "SETUSER", "limited", "reset", "on", ">pw"];
        let call = [&rights[..], &["~*", "&*", "+@all", denied]].concat();
        scene.server.cmd(&call).await;
        let url = scene.server.url().replace("//", "//limited:pw@");
        let client = Client::connect(&url).await.expect("a client");
        client.get_count_down_latch(NAME)
    };
    scene.latch.try_set_count(2).await.unwrap();
    for denied in ["-zadd", "-decr", "-pexpire", "-get"] {
        let latch = limited(denied).await;
        let refused = latch.count_down().await.unwrap_err();
        assert!(matches!(refused, Error::Denied { .. }), "{denied}");
        assert_eq!(scene.latch.count().await.unwrap(), 2);
        assert!(!scene.server.exists(COUNTED).await);
        if denied == "-get" {
            let refused = soon(latch.wait()).await.unwrap_err();
            assert!(matches!(refused, Error::Denied { .. }), "{refused:?}");
        }
    }
    // The count is there, and the message is not: those who wait poll.
    let latch = limited("-publish").await;
    let waiter = waits(&scene.latch);
    scene.listeners(1).await;
    for left in [1, 0] {
        assert_eq!(latch.count_down().await.unwrap(), left);
    }
    soon(waiter).await.unwrap().unwrap();
}
