//! Replies that are lost, a server without memory, rights that are missing: a permit is taken once and given back once.

use std::time::Duration;

use watchlock::kind::Counting;
use watchlock::{Backoff, Client, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};

use crate::common::{LONG, ms, script, soon};
use crate::{Kind, NAME, Scene, once};

for_both! {
    an_acquire_whose_reply_is_lost_takes_a_permit_once,
    a_release_whose_reply_is_lost_gives_back_once,
    out_of_memory_permits_are_renewed_and_given_back_and_none_is_taken,
    a_denied_acquire_takes_nothing,
    an_acquire_that_nobody_awaits_takes_nothing,
}

const FAULTS: [fn() -> Fault; 3] = [
    || Fault::SwallowReply,
    || Fault::ResetAfter,
    || Fault::ResetBefore,
];

async fn through(scene: &Scene) -> (Proxy, Client) {
    let proxy = Proxy::to(&scene.server);
    let builder = Client::builder(&proxy.url()).command_timeout(ms(400));
    let client = builder.connect().await.unwrap();
    (proxy, client)
}

/// Redisson's throws after its time-out, and the permit is gone for good.
async fn an_acquire_whose_reply_is_lost_takes_a_permit_once<K: Kind>() {
    let scene = Scene::new().await;
    for fault in FAULTS {
        let (proxy, client) = through(&scene).await;
        let of = K::of(&client, NAME).with_permits(3);
        drop(of.acquire().await.unwrap());
        scene.all_are_free::<K>(3).await;
        let acquire = Match::script(&script("permits/acquire.lua"));
        let shot = proxy.inject(fault()).on(acquire).arm();
        let permit = soon(of.acquire_many(2)).await.unwrap();
        assert_eq!(shot.fired(), 1);
        assert_eq!(scene.state::<K>().await, (Some(1), 2));
        permit.release().await.unwrap();
        scene.all_are_free::<K>(3).await;
    }
}

/// A repeat of Redisson's adds a permit.
async fn a_release_whose_reply_is_lost_gives_back_once<K: Kind>() {
    let scene = Scene::new().await;
    for fault in FAULTS {
        let (proxy, client) = through(&scene).await;
        let of = K::of(&client, NAME).with_permits(3);
        let permit = of.acquire_many(2).await.unwrap();
        let release = Match::script(&script("permits/release.lua"));
        let shot = proxy.inject(fault()).on(release).arm();
        let released = soon(permit.release()).await;
        assert_eq!(shot.fired(), 1);
        if let Err(error) = released {
            assert!(error.is_transient(), "{error}");
        }
        scene.all_are_free::<K>(3).await;
        drop(of.acquire_many(3).await.unwrap());
        scene.all_are_free::<K>(3).await;
    }
}

async fn out_of_memory_permits_are_renewed_and_given_back_and_none_is_taken<K: Kind>() {
    let scene = Scene::with(|builder| builder.watchdog_lease(ms(900))).await;
    let of = K::of(&scene.client, NAME).with_permits(3);
    let permits = [of.acquire().await.unwrap(), of.acquire().await.unwrap()];
    let maxmemory = async |bytes| {
        let set = ["CONFIG", "SET", "maxmemory", bytes];
        scene.server.cmd(&set).await;
    };
    maxmemory("1").await;
    let refused = of.try_acquire(Duration::ZERO, Lease::Watchdog).await;
    assert!(
        matches!(
            refused,
            Err(Error::Refused {
                transient: true,
                ..
            })
        ),
        "{refused:?}"
    );
    assert_eq!(scene.state::<K>().await, (Some(1), 2));
    tokio::time::sleep(ms(1_800)).await;
    for permit in permits {
        permit.check().expect("it was renewed");
        permit.release().await.unwrap();
    }
    scene.all_are_free::<K>(3).await;
    maxmemory("0").await;
    once(&of)
        .await
        .expect("there is memory")
        .release()
        .await
        .unwrap();
}

async fn a_denied_acquire_takes_nothing<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    drop(of.acquire().await.unwrap());
    scene.all_are_free::<K>(2).await;
    scene
        .server
        .cmd(&[
            "ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-zadd",
        ])
        .await;
    let url = scene.server.url().replace("//", "//limited:pw@");
    let limited = Client::connect(&url).await.unwrap();
    let denied = K::of(&limited, NAME).acquire().await;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    scene.all_are_free::<K>(2).await;
}

/// The server runs it after its caller has gone.
async fn an_acquire_that_nobody_awaits_takes_nothing<K: Kind>() {
    let scene = Scene::new().await;
    let (proxy, client) = through(&scene).await;
    let of = K::of(&client, NAME).with_permits(2);
    drop(of.acquire().await.unwrap());
    scene.all_are_free::<K>(2).await;
    let acquire = Match::script(&script("permits/acquire.lua"));
    let late = proxy.inject(Fault::DelayRequest(ms(700))).on(acquire).arm();
    let tried = of.try_acquire(Duration::ZERO, Lease::Watchdog).await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    assert_eq!(late.fired(), 1);
    drop((of, proxy));
    client.shutdown(LONG).await;
    let other = K::of(&scene.client, NAME);
    watchlock_support::eventually("all come back", LONG, async || {
        other.available_permits().await.unwrap() == 2
    })
    .await;
}

/// Redis granted them all, and until it says so to each, they are nobody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_whose_grants_were_lost_together_need_no_poll() {
    let scene = Scene::new().await;
    let of = scene.client.get_semaphore(NAME).with_permits(24);
    let all = of.acquire_many(24).await.unwrap();
    let proxy = Proxy::to(&scene.server);
    let never = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = Client::builder(&proxy.url()).command_timeout(ms(400));
    let client = builder.backoff(never).connect().await.unwrap();
    let waiters = (0..8).map(|_| {
        let of = client.get_semaphore(NAME);
        tokio::spawn(async move { of.acquire_many(3).await })
    });
    let waiters: Vec<_> = waiters.collect();
    eventually("all wait", LONG, async || client.stats().waiters == 8).await;
    scene.listens().await;
    let acquire = Match::script(&script("permits/acquire.lua"));
    proxy.inject(Fault::SwallowReply).on(acquire).arm();
    all.release().await.unwrap();
    let mut held = Vec::new();
    for waiter in waiters {
        held.push(soon(waiter).await.unwrap().unwrap());
    }
    assert_eq!(scene.state::<Counting>().await, (Some(0), 24));
    drop(held);
    scene.all_are_free::<Counting>(24).await;
}
