//! Waiting: all who wait return when the latch opens, whatever opened it, and for nothing else.

use std::time::Duration;

use futures_util::future::join_all;
use watchlock::{Backoff, Error};
use watchlock_support::eventually;
use watchlock_test::Redis;

use crate::common::{LONG, connect, ms, poll_once, soon, without_polls};
use crate::{CHANNEL, NAME, Scene, waits};

#[tokio::test]
async fn the_last_count_wakes_those_who_wait_and_no_other_does() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(2).await.unwrap();
    let far = waits(&scene.without_polls().await);
    let near = waits(&scene.latch);
    scene.quiet(2).await;
    scene.latch.count_down().await.unwrap();
    tokio::time::sleep(ms(50)).await;
    assert!(!far.is_finished() && !near.is_finished());
    scene.latch.count_down().await.unwrap();
    soon(far).await.unwrap().unwrap();
    soon(near).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_of_several_clients_return_with_the_last_count() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1_000).await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..4 {
        let latch = scene.without_polls().await;
        waiters.extend((0..250).map(|_| waits(&latch)));
    }
    scene.quiet(4).await;
    soon(join_all((0..999).map(|_| scene.latch.count_down()))).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(scene.latch.count_down().await.unwrap(), 0);
    for waiter in soon(join_all(waiters)).await {
        waiter.unwrap().unwrap();
    }
    eventually("nobody listens any more", LONG, async || {
        scene.server.channels().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_message_leads_to_one_question_for_all_who_wait() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1).await.unwrap();
    let latch = scene.without_polls().await;
    let waiters: Vec<_> = (0..1_000).map(|_| waits(&latch)).collect();
    scene.quiet(1).await;
    for message in ["0", "1", "0"] {
        let before = scene.scripts().await;
        scene.server.cmd(&["PUBLISH", CHANNEL, message]).await;
        eventually("it asks", LONG, async || scene.scripts().await > before).await;
        scene.quiet(1).await;
        assert_eq!(scene.scripts().await, before + 1, "{message}");
    }
    scene.latch.delete().await.unwrap();
    for waiter in soon(join_all(waiters)).await {
        waiter.unwrap().unwrap();
    }
}

/// A `0` opens Redisson's waiters until a `1` comes, whatever the count is.
#[tokio::test]
async fn no_message_opens_a_latch_that_has_a_count() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1).await.unwrap();
    let waiter = waits(&scene.without_polls().await);
    scene.quiet(1).await;
    for message in ["0", "1", "-1", "open", ""] {
        let before = scene.scripts().await;
        scene.server.cmd(&["PUBLISH", CHANNEL, message]).await;
        eventually("it asks", LONG, async || scene.scripts().await > before).await;
    }
    scene.quiet(1).await;
    assert!(!waiter.is_finished());
    scene.latch.count_down().await.unwrap();
    soon(waiter).await.unwrap().unwrap();
}

/// Redisson's waiters sleep for ever (redisson/redisson#224).
#[tokio::test]
async fn those_who_wait_return_when_the_latch_is_deleted() {
    let scene = Scene::new().await;
    let far = scene.without_polls().await;
    for by_hand in [false, true] {
        scene.latch.try_set_count(5).await.unwrap();
        let waiters = [waits(&far), waits(&scene.latch)];
        scene.quiet(2).await;
        if by_hand {
            scene.server.cmd(&["DEL", NAME]).await;
            // One client polls, the other hears what Redisson says.
            let [far, near] = waiters;
            soon(near).await.unwrap().unwrap();
            scene.server.cmd(&["PUBLISH", CHANNEL, "1"]).await;
            soon(far).await.unwrap().unwrap();
        } else {
            assert!(scene.latch.delete().await.unwrap());
            for waiter in waiters {
                soon(waiter).await.unwrap().unwrap();
            }
        }
    }
}

/// Redisson's waiters sleep for ever (redisson/redisson#3811).
#[tokio::test]
async fn those_who_wait_return_when_the_key_ends() {
    let redis = Redis::start();
    redis.stop_clock();
    let hour = Duration::from_secs(3_600);
    let rarely = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = redis.client_builder().backoff(rarely);
    let client = builder.connect().await.unwrap();
    let latch = client.get_count_down_latch(NAME);
    latch.try_set_count(2).await.unwrap();
    let expire = ["PEXPIRE", NAME, "20000"];
    let server = watchlock_support::server::RedisServer::of_others(redis.port());
    server.cmd(&expire).await;
    let waiter = waits(&latch);
    eventually("it listens", LONG, async || {
        server.subscribers(CHANNEL).await == 1
    })
    .await;
    eventually("it knows the end", LONG, async || {
        redis.command_count("evalsha") + redis.command_count("eval") >= 3
    })
    .await;
    redis.advance(ms(19_900));
    tokio::time::sleep(ms(30)).await;
    assert!(!waiter.is_finished());
    redis.advance(ms(200));
    soon(waiter).await.unwrap().unwrap();
    redis.advance(hour);
}

#[tokio::test]
async fn without_messages_those_who_wait_poll() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1).await.unwrap();
    let channels = ["ACL", "SETUSER", "default", "resetchannels"];
    scene.server.cmd(&channels).await;
    let waiter = waits(&scene.other().await);
    scene.latch.count_down().await.unwrap();
    soon(waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_count_that_comes_while_somebody_subscribes_is_not_missed() {
    let scene = Scene::new().await;
    let other = scene.other().await;
    for round in 0..60 {
        let client = without_polls(&scene.server).connect().await.unwrap();
        let latch = client.get_count_down_latch(NAME);
        other.try_set_count(1).await.unwrap();
        let waiter = waits(&latch);
        let pause = Duration::from_micros(round * 50);
        tokio::time::sleep(pause).await;
        other.count_down().await.unwrap();
        soon(waiter).await.unwrap().unwrap();
    }
}

/// Whoever comes after a latch was set anew waits for it, whatever was said before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_returns_for_a_latch_that_was_open_before() {
    let scene = Scene::new().await;
    let mut early = Vec::new();
    for _ in 0..100 {
        scene.latch.try_set_count(1).await.unwrap();
        early.push(waits(&scene.latch));
        scene.latch.count_down().await.unwrap();
        scene.latch.try_set_count(1).await.unwrap();
        let late = tokio::time::timeout(ms(2), scene.latch.wait()).await;
        assert!(late.is_err(), "it has a count");
        scene.latch.delete().await.unwrap();
    }
    for waiter in soon(join_all(early)).await {
        waiter.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_waiter_that_nobody_polls_delays_nobody_and_stops_asking() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1).await.unwrap();
    let mut asleep = Box::pin(scene.latch.wait());
    assert!(poll_once(&mut asleep).await.is_none());
    let waiter = waits(&scene.latch);
    scene.listeners(1).await;
    scene.latch.count_down().await.unwrap();
    soon(waiter).await.unwrap().unwrap();
    eventually("nobody listens any more", LONG, async || {
        scene.server.channels().await.is_empty()
    })
    .await;
    let before = scene.scripts().await;
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(scene.scripts().await, before, "it needs no question");
    soon(asleep).await.unwrap();
}

#[tokio::test]
async fn a_client_that_ends_ends_the_waits_of_its_latches() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1).await.unwrap();
    let client = connect(&scene.server).await;
    let waiters: Vec<_> = (0..10)
        .map(|_| waits(&client.get_count_down_latch(NAME)))
        .collect();
    scene.listeners(1).await;
    client.shutdown(Duration::ZERO).await;
    for waiter in soon(join_all(waiters)).await {
        assert!(matches!(waiter.unwrap(), Err(Error::Closed)));
    }
}

/// As in Java, where a thread that is interrupted leaves no trace.
#[tokio::test]
async fn a_wait_with_a_limit_leaves_nothing() {
    let scene = Scene::new().await;
    scene.latch.try_set_count(1).await.unwrap();
    let connections = scene.server.connections().await;
    let limited = tokio::time::timeout(ms(200), scene.latch.wait()).await;
    assert!(limited.is_err());
    eventually("nothing is left", LONG, async || {
        scene.server.channels().await.is_empty()
            && scene.server.connections().await <= connections + 1
    })
    .await;
    assert_eq!(scene.server.keys().await, [NAME]);
}
