//! Waiting: nobody sleeps beside permits that it may take.

use std::time::{Duration, Instant};

use watchlock::Lease;

use crate::common::{LONG, ms, poll_once, soon, without_polls};
use crate::{CHANNEL, Kind, NAME, Scene, once};

for_both! {
    a_release_wakes_a_waiter_of_another_client,
    a_release_wakes_a_waiter_of_the_same_client,
    a_request_that_does_not_fit_keeps_no_other_client_from_what_is_free,
    any_message_wakes_a_waiter,
    without_messages_a_waiter_polls,
    a_try_within_a_time_ends_in_time,
    a_single_try_that_wants_less_is_not_refused_by_the_answer_for_more,
    a_permit_that_nobody_collects_goes_to_others,
    waiters_that_nobody_polls_delay_others_together_once,
    a_permit_is_not_taken_back_for_one_that_asks_for_more,
    waiters_behind_one_that_gives_up_are_served,
}

async fn a_release_wakes_a_waiter_of_another_client<K: Kind>() {
    let scene = Scene::new().await;
    let client = without_polls(&scene.server).connect().await.unwrap();
    let of = K::of(&scene.client, NAME).with_permits(2);
    let both = of.acquire_many(2).await.unwrap();
    let waits = tokio::spawn({
        let other = K::of(&client, NAME);
        async move { other.acquire().await }
    });
    scene.listens().await;
    both.release().await.unwrap();
    let permit = soon(waits).await.unwrap().unwrap();
    permit.release().await.unwrap();
    scene.all_are_free::<K>(2).await;
}

async fn a_release_wakes_a_waiter_of_the_same_client<K: Kind>() {
    let scene = Scene::new().await;
    let client = without_polls(&scene.server).connect().await.unwrap();
    let of = K::of(&client, NAME).with_permits(3);
    for denied in [false, true] {
        let permits = [
            of.acquire().await.unwrap(),
            of.acquire().await.unwrap(),
            of.acquire().await.unwrap(),
        ];
        let mut waits = Box::pin(of.acquire_many(2));
        assert!(poll_once(&mut waits).await.is_none());
        if denied {
            // The answer to the own release is enough.
            scene
                .server
                .cmd(&["ACL", "SETUSER", "default", "resetchannels"])
                .await;
        }
        for permit in permits.into_iter().take(2) {
            let _ = permit.release().await;
        }
        soon(waits).await.unwrap().release().await.unwrap();
    }
}

/// The missed wake-up of Redisson (redisson/redisson#6664): one permit comes back, and `1` wakes the one who waits for
/// five alone.
async fn a_request_that_does_not_fit_keeps_no_other_client_from_what_is_free<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(5);
    let one = of.acquire().await.unwrap();
    let four = of.acquire_many(4).await.unwrap();
    let (large, small) = (
        without_polls(&scene.server).connect().await.unwrap(),
        without_polls(&scene.server).connect().await.unwrap(),
    );
    let small = tokio::spawn({
        let of = K::of(&small, NAME);
        async move { of.acquire().await }
    });
    scene.listens().await;
    // It is the older one that gets it: the request for one came first here.
    tokio::time::sleep(ms(150)).await;
    let large = tokio::spawn({
        let of = K::of(&large, NAME);
        async move { of.acquire_many(5).await }
    });
    watchlock_support::eventually("both listen", LONG, async || {
        scene.server.subscribers(CHANNEL).await == 2
    })
    .await;
    one.release().await.unwrap();
    let small = soon(small).await.unwrap().unwrap();
    small.release().await.unwrap();
    four.release().await.unwrap();
    soon(large).await.unwrap().unwrap().release().await.unwrap();
    scene.all_are_free::<K>(5).await;
}

/// Java's say how many permits there are; an operator may say anything.
async fn any_message_wakes_a_waiter<K: Kind>() {
    for message in ["1", "0", "-3", "wake up", "1000000"] {
        let scene = Scene::new().await;
        let client = without_polls(&scene.server).connect().await.unwrap();
        let of = K::of(&client, NAME);
        of.try_set_permits(0).await.unwrap();
        let waits = tokio::spawn(async move { of.acquire().await });
        scene.listens().await;
        // As a client that says nothing does.
        scene.server.cmd(&["INCR", NAME]).await;
        let publish = ["PUBLISH", CHANNEL, message];
        scene.server.cmd(&publish).await;
        let permit = soon(waits).await.unwrap().unwrap();
        permit.release().await.unwrap();
    }
}

async fn without_messages_a_waiter_polls<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME);
    of.try_set_permits(0).await.unwrap();
    let waits = tokio::spawn(async move { of.acquire().await });
    scene.listens().await;
    scene.server.cmd(&["INCR", NAME]).await;
    soon(waits).await.unwrap().unwrap().release().await.unwrap();
}

async fn a_try_within_a_time_ends_in_time<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    let permit = of.acquire().await.unwrap();
    let since = Instant::now();
    let tried = of.try_acquire_many(2, ms(200), Lease::Watchdog).await;
    assert!(tried.unwrap().is_none());
    assert!(since.elapsed() >= ms(200));
    let waits = async {
        let got = of.try_acquire_many(2, LONG, Lease::Watchdog).await;
        got.unwrap().expect("it is given back")
    };
    let (got, released) = tokio::join!(waits, permit.release());
    released.unwrap();
    drop(got);
    scene.all_are_free::<K>(2).await;
}

/// Both are under way at once, so the second waits behind the first.
async fn a_single_try_that_wants_less_is_not_refused_by_the_answer_for_more<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(5);
    let four = of.acquire_many(4).await.unwrap();
    for _ in 0..50 {
        let many = of.try_acquire_many(2, Duration::ZERO, Lease::Watchdog);
        let (many, few) = tokio::join!(many, once(&of));
        assert!(many.unwrap().is_none());
        few.expect("one is free").release().await.unwrap();
    }
    four.release().await.unwrap();
    scene.all_are_free::<K>(5).await;
}

async fn a_permit_that_nobody_collects_goes_to_others<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(1);
    let permit = of.acquire().await.unwrap();
    let mut asleep = Box::pin(of.acquire());
    assert!(poll_once(&mut asleep).await.is_none());
    scene.listens().await;
    let others = K::of(&scene.other().await, NAME);
    let waits = tokio::spawn(async move { others.acquire().await });
    tokio::time::sleep(ms(20)).await;
    permit.release().await.unwrap();
    // It is granted to the one that nobody polls, and taken back.
    let got = soon(waits).await.unwrap().unwrap();
    got.release().await.unwrap();
    soon(asleep).await.unwrap().release().await.unwrap();
    scene.all_are_free::<K>(1).await;
}

/// Each of them alone used to cost 100 ms.
async fn waiters_that_nobody_polls_delay_others_together_once<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    let permits = of.acquire_many(2).await.unwrap();
    let mut unpolled: Vec<_> = (0..80).map(|_| Box::pin(of.acquire())).collect();
    for waiting in &mut unpolled {
        assert!(poll_once(waiting).await.is_none());
    }
    scene.listens().await;
    let mut polled = Box::pin(of.acquire());
    assert!(poll_once(&mut polled).await.is_none());
    let since = Instant::now();
    permits.release().await.unwrap();
    soon(polled).await.unwrap().release().await.unwrap();
    assert!(since.elapsed() < ms(2_500), "{:?}", since.elapsed());
    // They go on when somebody polls them.
    for waiting in unpolled {
        soon(waiting).await.unwrap().release().await.unwrap();
    }
    scene.all_are_free::<K>(2).await;
}

/// The one that asks for more is polled, but could not use it.
async fn a_permit_is_not_taken_back_for_one_that_asks_for_more<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    let first = of.acquire().await.unwrap();
    let second = of.acquire().await.unwrap();
    let mut rarely = Box::pin(of.acquire());
    assert!(poll_once(&mut rarely).await.is_none());
    let mut both = Box::pin(of.acquire_many(2));
    assert!(poll_once(&mut both).await.is_none());
    scene.listens().await;
    second.release().await.unwrap();
    let gets_one = async {
        let got = loop {
            if let Some(got) = poll_once(&mut rarely).await {
                break got.unwrap();
            }
            tokio::time::sleep(ms(60)).await; // the fault
        };
        got.release().await.unwrap();
        first.release().await.unwrap();
    };
    let (both, ()) = soon(futures_util::future::join(both, gets_one)).await;
    both.unwrap().release().await.unwrap();
    scene.all_are_free::<K>(2).await;
}

async fn waiters_behind_one_that_gives_up_are_served<K: Kind>() {
    let scene = Scene::new().await;
    let client = without_polls(&scene.server).connect().await.unwrap();
    let of = K::of(&client, NAME).with_permits(3);
    let two = of.acquire_many(2).await.unwrap();
    let mut large = Box::pin(of.acquire_many(3));
    assert!(poll_once(&mut large).await.is_none());
    scene.listens().await;
    let mut small = Box::pin(of.acquire());
    assert!(poll_once(&mut small).await.is_none());
    drop(large);
    soon(small).await.unwrap().release().await.unwrap();

    let large = of.try_acquire_many(3, ms(100), Lease::Watchdog);
    let small = async {
        tokio::time::sleep(ms(30)).await;
        of.acquire().await
    };
    let (large, small) = soon(futures_util::future::join(large, small)).await;
    assert!(large.unwrap().is_none());
    small.unwrap().release().await.unwrap();
    two.release().await.unwrap();
    scene.all_are_free::<K>(3).await;
}
