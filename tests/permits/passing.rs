//! Passing on: inside a client a permit changes hands without a command.

use std::any::TypeId;

use watchlock::kind::Counting;
use watchlock::{Client, ClientBuilder, Clock, Permit, SemaphoreHandle};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, connect, poll_once, soon, without_polls};
use crate::{Kind, NAME, Scene, once};

/// Of requests that wait.
const NEEDS: &str = "watchlock_needs:{imports}";

for_both! {
    permits_without_an_id_to_give_them_back_by_are_passed_on,
    the_switch_turns_it_off,
    a_permit_that_is_passed_on_is_given_back_once,
    permits_are_passed_on_to_requests_for_as_many,
    a_forgotten_permit_is_passed_on_to_nobody,
    a_forget_that_is_dropped_concerns_no_later_holder,
    a_denied_look_at_the_next_lease_keeps_no_permit,
    a_note_of_a_younger_request_wakes_who_the_older_held_back,
    nobody_waits_for_permits_of_a_deleted_semaphore,
}

/// A client whose clock stands still, so that it passes permits on without an end.
async fn scene(set: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Scene {
    let server = RedisServer::start();
    let (clock, driver) = Clock::driven();
    let builder = Client::builder(&server.url()).clock(clock);
    let client = set(builder).connect().await.unwrap();
    driver.stop();
    Scene { server, client }
}

async fn records<K: Kind>(scene: &Scene) -> Vec<Vec<u8>> {
    scene.server.query(&["ZRANGE", K::RECORDS, "0", "-1"]).await
}

/// `one` is given back while somebody waits for another number. Returns the permits that it got, and whether their records
/// are those of the ones before.
async fn goes_on<K: Kind>(scene: &Scene, one: Permit, wants: u32) -> (Permit, bool) {
    let of = K::of(&scene.client, NAME);
    let mut waits = Box::pin(async move { of.acquire_many(wants).await });
    assert!(poll_once(&mut waits).await.is_none());
    let waits = tokio::spawn(waits);
    scene.listens().await;
    let before = records::<K>(scene).await;
    one.release().await.unwrap();
    let next = soon(waits).await.unwrap().unwrap();
    (next, records::<K>(scene).await == before)
}

/// In how many of twenty turns. The try of the one that waits may be under way yet.
async fn turns<K: Kind>(scene: &Scene) -> usize {
    let of = K::of(&scene.client, NAME).with_permits(1);
    let (mut permit, mut passed_on) = (of.acquire().await.unwrap(), 0);
    for _ in 0..20 {
        let (next, stayed) = goes_on::<K>(scene, permit, 1).await;
        passed_on += usize::from(stayed);
        assert!(next.is_valid());
        assert!(
            once(&K::of(&connect(&scene.server).await, NAME))
                .await
                .is_none()
        );
        permit = next;
    }
    permit.release().await.unwrap();
    scene.all_are_free::<K>(1).await;
    passed_on
}

async fn permits_without_an_id_to_give_them_back_by_are_passed_on<K: Kind>() {
    let passed_on = turns::<K>(&scene(|builder| builder).await).await;
    let may = TypeId::of::<K>() == TypeId::of::<Counting>();
    assert_eq!(passed_on > 0, may, "{passed_on}");
}

async fn the_switch_turns_it_off<K: Kind>() {
    let scene = scene(|builder| builder.pass_on(false)).await;
    assert_eq!(turns::<K>(&scene).await, 0);
}

async fn a_permit_that_is_passed_on_is_given_back_once<K: Kind>() {
    let scene = scene(|builder| builder).await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    let kept = of.acquire().await.unwrap();
    let mut permit = of.acquire().await.unwrap();
    for _ in 0..5 {
        (permit, _) = goes_on::<K>(&scene, permit, 1).await;
    }
    assert_eq!(scene.state::<K>().await, (Some(0), 2));
    drop(permit);
    kept.release().await.unwrap();
    scene.all_are_free::<K>(2).await;
}

async fn permits_are_passed_on_to_requests_for_as_many<K: Kind>() {
    let scene = scene(|builder| builder).await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    for _ in 0..10 {
        let two = of.acquire_many(2).await.unwrap();
        let (one, stayed) = goes_on::<K>(&scene, two, 1).await;
        assert!(!stayed && scene.state::<K>().await == (Some(1), 1));
        one.release().await.unwrap();
    }
    scene.all_are_free::<K>(2).await;
}

/// The records of a client's permits, and when their leases end.
async fn ends<K: Kind>(scene: &Scene) -> Vec<(Vec<u8>, f64)> {
    let look = ["ZRANGE", K::RECORDS, "0", "-1", "WITHSCORES"];
    scene.server.query(&look).await
}

async fn a_forgotten_permit_is_passed_on_to_nobody<K: Kind>() {
    let scene = scene(|builder| builder).await;
    let of = K::of(&scene.client, NAME).with_permits(1);
    let (permit, _) = goes_on::<K>(&scene, of.acquire().await.unwrap(), 1).await;
    let mut waits = Box::pin(of.acquire());
    assert!(poll_once(&mut waits).await.is_none());
    permit.forget().await.unwrap();
    assert!(poll_once(&mut waits).await.is_none());
    assert_eq!(scene.state::<K>().await.0, Some(0));
}

/// It may still take the end off the records that it is about.
async fn a_forget_that_is_dropped_concerns_no_later_holder<K: Kind>() {
    let server = RedisServer::start();
    let (proxy, (clock, driver)) = (Proxy::to(&server), Clock::driven());
    let client = Client::builder(&proxy.url()).clock(clock);
    let client = client.connect().await.unwrap();
    driver.stop();
    let scene = Scene { server, client };
    let of = K::of(&scene.client, NAME).with_permits(1);
    let (permit, _) = goes_on::<K>(&scene, of.acquire().await.unwrap(), 1).await;
    let waits = tokio::spawn({
        let of = of.clone();
        async move { of.acquire().await }
    });
    eventually("it waits", LONG, async || scene.client.stats().waiters == 1).await;
    let forgotten = records::<K>(&scene).await;
    proxy.hold(Direction::Requests);
    let mut forget = Box::pin(permit.forget());
    assert!(poll_once(&mut forget).await.is_none());
    drop(forget);
    proxy.heal();
    let next = soon(waits).await.unwrap().unwrap();
    let theirs = ends::<K>(&scene).await;
    assert!(
        theirs
            .iter()
            .all(|(id, end)| !forgotten.contains(id) && *end < 1e14)
    );
    next.release().await.unwrap();
    scene.all_are_free::<K>(1).await;
}

async fn a_denied_look_at_the_next_lease_keeps_no_permit<K: Kind>() {
    let scene = scene(|builder| builder).await;
    let of = K::of(&scene.client, NAME).with_permits(1);
    let deny = ["ACL", "SETUSER", "default", "-zrange"];
    scene.server.cmd(&deny).await;
    let permit = once(&of).await.expect("it is granted");
    assert_eq!(scene.state::<K>().await, (Some(0), 1));
    permit.release().await.unwrap();
    scene.all_are_free::<K>(1).await;
}

/// Neither who waits already, nor who comes while the client still listens.
async fn nobody_waits_for_permits_of_a_deleted_semaphore<K: Kind>() {
    let scene = scene(|builder| builder).await;
    let of = K::of(&scene.client, NAME).with_permits(1);
    for _ in 0..2 {
        let lost = of.acquire().await.unwrap();
        let waits = tokio::spawn({
            let of = of.clone();
            async move { of.acquire().await }
        });
        scene.listens().await;
        assert!(
            K::of(&connect(&scene.server).await, NAME)
                .delete()
                .await
                .unwrap()
        );
        let permit = soon(waits).await.unwrap().unwrap();
        let mut waits = Box::pin(of.acquire());
        assert!(poll_once(&mut waits).await.is_none());
        drop(waits);
        assert!(of.delete().await.unwrap());
        soon(of.acquire()).await.unwrap().release().await.unwrap();
        drop((lost, permit));
    }
}

/// The request that kept permits from others is gone, and the next one of its client is younger than theirs.
async fn a_note_of_a_younger_request_wakes_who_the_older_held_back<K: Kind>() {
    let scene = Scene::new().await;
    let other = without_polls(&scene.server).connect().await.unwrap();
    let of = K::of(&scene.client, NAME).with_permits(3);
    let kept = of.acquire().await.unwrap();
    let waits =
        |of: SemaphoreHandle<K>, wants| tokio::spawn(async move { of.acquire_many(wants).await });
    let notes = async |count: i64| {
        eventually("they have waited for a while", LONG, async || {
            let noted: i64 = scene.server.query(&["HLEN", NEEDS]).await;
            noted == count
        })
        .await;
    };
    let first = waits(of.clone(), 3);
    notes(1).await;
    let held_back = waits(K::of(&other, NAME), 1);
    notes(2).await;
    let second = waits(of.clone(), 3);
    eventually("both wait", LONG, async || {
        scene.client.stats().waiters == 2
    })
    .await;
    first.abort();
    let permit = soon(held_back).await.unwrap().unwrap();
    permit.release().await.unwrap();
    kept.release().await.unwrap();
    soon(second)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}
