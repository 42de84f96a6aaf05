//! Who is first: in a client who called first, between clients whose request is older.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use watchlock::{Backoff, Client, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};

use crate::common::{LONG, ms, poll_once, script, soon, without_polls};
use crate::{Kind, NAME, Scene, once};

const NEEDS: &str = "watchlock_needs:{imports}";

for_both! {
    in_a_client_who_called_first_is_first,
    a_single_try_overtakes_nobody_who_waits_in_its_client,
    an_older_request_of_another_client_is_first_whatever_it_asks_for,
    a_request_that_leaves_lets_the_younger_ones_in,
    a_note_that_comes_behind_the_grant_is_removed,
    a_request_for_all_permits_does_not_starve,
}

async fn in_a_client_who_called_first_is_first<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(4);
    let held = of.acquire_many(4).await.unwrap();
    let turn = AtomicU32::new(0);
    let waits = [3, 1, 4, 2, 1, 4]
        .into_iter()
        .zip(0..)
        .map(|(permits, place)| {
            let (of, turn) = (of.clone(), &turn);
            async move {
                let got = of.acquire_many(permits).await.unwrap();
                assert_eq!(turn.fetch_add(1, Ordering::SeqCst), place);
                got.release().await.unwrap();
            }
        });
    // The first poll of each is in this order.
    let all = join_all(waits);
    let release = async {
        scene.listens().await;
        held.release().await.unwrap();
    };
    soon(futures_util::future::join(all, release)).await;
    assert_eq!(turn.load(Ordering::SeqCst), 6);
    scene.all_are_free::<K>(4).await;
}

async fn a_single_try_overtakes_nobody_who_waits_in_its_client<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(3);
    let two = of.acquire_many(2).await.unwrap();
    let mut waits = Box::pin(of.acquire_many(2));
    assert!(poll_once(&mut waits).await.is_none());
    for _ in 0..10 {
        assert!(once(&of).await.is_none(), "one is free, but not for it");
    }
    two.release().await.unwrap();
    let got = soon(waits).await.unwrap();
    assert!(once(&of).await.is_some());
    drop(got);
    scene.all_are_free::<K>(3).await;
}

/// A server that does not know the script of the note gets its text a round trip later.
async fn a_note_that_comes_behind_the_grant_is_removed<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(1);
    let held = of.acquire().await.unwrap();
    let proxy = Proxy::to(&scene.server);
    let note = Match::script(&script("permits/note.lua"));
    let late = proxy.inject(Fault::DelayReply(ms(200))).on(note).arm();
    let often = Backoff::new().base(ms(10)).cap(ms(20));
    let client = Client::builder(&proxy.url()).backoff(often).connect();
    let client = client.await.unwrap();
    let waits = K::of(&client, NAME);
    let waits = tokio::spawn(async move { waits.acquire().await });
    eventually("it leaves a note", LONG, async || late.fired() > 0).await;
    held.release().await.unwrap();
    let got = soon(waits).await.unwrap().unwrap();
    // By itself it ends after three seconds.
    eventually("no note keeps others out", ms(1_500), async || {
        !scene.server.exists(NEEDS).await && scene.server.calls_of("hset").await > 0
    })
    .await;
    got.release().await.unwrap();
    scene.all_are_free::<K>(1).await;
}

async fn an_older_request_of_another_client_is_first_whatever_it_asks_for<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(5);
    let one = of.acquire().await.unwrap();
    let older = tokio::spawn({
        let of = K::of(&scene.other().await, NAME);
        async move { of.acquire_many(5).await }
    });
    eventually("it has waited for a while", LONG, async || {
        scene.server.exists(NEEDS).await
    })
    .await;
    assert_eq!(of.available_permits().await.unwrap(), 4);
    for _ in 0..5 {
        assert!(once(&of).await.is_none(), "the older request needs them");
        let waited = of.try_acquire(ms(20), Lease::Watchdog).await.unwrap();
        assert!(waited.is_none());
    }
    one.release().await.unwrap();
    let all = soon(older).await.unwrap().unwrap();
    assert!(
        !scene.server.exists(NEEDS).await,
        "the grant removed the note"
    );
    all.release().await.unwrap();
    once(&of)
        .await
        .expect("nobody waits")
        .release()
        .await
        .unwrap();
}

async fn a_request_that_leaves_lets_the_younger_ones_in<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(5);
    let one = of.acquire().await.unwrap();
    let client = without_polls(&scene.server).connect().await.unwrap();
    let mut older = Box::pin(of.acquire_many(5));
    assert!(poll_once(&mut older).await.is_none());
    eventually("it has waited for a while", LONG, async || {
        scene.server.exists(NEEDS).await
    })
    .await;
    let younger = tokio::spawn({
        let of = K::of(&client, NAME);
        async move { of.acquire().await }
    });
    eventually("both wait", LONG, async || {
        scene.server.subscribers(crate::CHANNEL).await == 2
    })
    .await;
    drop(older);
    let got = soon(younger).await.unwrap().unwrap();
    got.release().await.unwrap();
    one.release().await.unwrap();
    scene.all_are_free::<K>(5).await;
}

/// Beside a Redisson waiter for 2 of 2 permits, others took one 800 times.
async fn a_request_for_all_permits_does_not_starve<K: Kind>() {
    let scene = Scene::new().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut others = Vec::new();
    for _ in 0..2 {
        let of = K::of(&scene.other().await, NAME).with_permits(2);
        let stop = Arc::clone(&stop);
        others.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let permit = of.acquire().await.unwrap();
                tokio::time::sleep(Duration::from_millis(3)).await;
                permit.release().await.unwrap();
            }
        }));
    }
    let of = K::of(&scene.client, NAME).with_permits(2);
    for _ in 0..3 {
        let both = soon(of.acquire_many(2)).await.unwrap();
        both.release().await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    for other in others {
        soon(other).await.unwrap();
    }
    scene.all_are_free::<K>(2).await;
}
