//! The end of a client: what happens to what it holds, what it waits for, and what is under way.

use std::time::Duration;

use watchlock::{Ended, Error, HoldView, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::Direction;

use crate::common::{LONG, ms, poll_once, soon};
use crate::scene::{MINUTE, Scene};
use crate::table::Kind;

for_every_kind! {
    a_shutdown_announces_waits_and_releases,
    a_shutdown_lets_waiters_go,
    the_last_handle_leaves_nothing_behind,
    i7_the_end_of_a_client_waits_for_a_dropped_acquire,
    guards_keep_the_client_alive,
    a_view_ends_with_its_hold,
}

async fn a_shutdown_announces_waits_and_releases(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let in_time = scene.lock("in-time").lock().await.unwrap();
    let late = scene.lock("late").lock_with_lease(MINUTE).await.unwrap();
    let client = scene.client.clone();
    let shutdown = tokio::spawn(async move { client.shutdown(ms(500)).await });
    soon(scene.client.shutting_down()).await;
    for guard in [&in_time, &late] {
        let lost = poll_once(&mut Box::pin(guard.lost())).await;
        assert!(lost.is_none() && guard.is_valid(), "{lost:?}");
    }
    let closed = scene.try_once(&scene.client, "new").await;
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    let again = in_time.reenter(Lease::Watchdog).await.unwrap();
    again.unlock().await.unwrap();
    in_time.unlock().await.unwrap();
    soon(shutdown).await.unwrap();
    assert!(!late.is_valid());
    assert_eq!(soon(late.lost()).await, LostReason::Shutdown);
    assert!(late.unlock().await.unwrap_err().is_lost());
    scene.nothing_is_left(0).await;
}

async fn a_shutdown_lets_waiters_go(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let other = scene.other().await;
    let rival = scene.rival(&other, "waited").lock().await.unwrap();
    let held = scene.keys().await;
    let lock = scene.lock("waited");
    let waiter = tokio::spawn(async move { lock.lock().await });
    scene.waited_for(1).await;
    soon(scene.client.shutdown(Duration::ZERO)).await;
    let closed = soon(waiter).await.unwrap();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    assert_eq!(scene.keys().await, held, "it left the queue");
    rival.verify().await.unwrap();
    rival.unlock().await.unwrap();
    drop(other);
    scene.nothing_is_left(0).await;
}

async fn the_last_handle_leaves_nothing_behind(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let ending = scene.other().await;
    let holds = [
        scene.of(&ending, "a").lock().await.unwrap(),
        scene
            .of(&ending, "b")
            .lock_with_lease(MINUTE)
            .await
            .unwrap(),
    ];
    let rival = scene.rival(&scene.client, "c").lock().await.unwrap();
    let waits = scene.of(&ending, "c");
    let mut waiting = Box::pin(waits.lock());
    assert!(poll_once(&mut waiting).await.is_none());
    scene.waited_for(1).await;
    drop(waiting);
    drop((holds, waits, ending));
    rival.unlock().await.unwrap();
    scene.clean().await;
    for name in ["a", "b", "c"] {
        assert!(scene.is_free(&scene.client, name).await, "{name}");
    }
}

/// The last handle goes while the reply to an acquire is under way that nobody awaits.
async fn i7_the_end_of_a_client_waits_for_a_dropped_acquire(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |builder| builder).await;
    let Scene { server, client, .. } = scene;
    let scene = Scene::on(kind, server, |builder| builder).await;
    let lock = scene.of(&client, "hour");
    drop(client);
    // Connected, so that the first poll sends the try.
    lock.lock().await.unwrap().unlock().await.unwrap();
    let before = scene.writes().await;
    proxy.hold(Direction::Replies);
    let mut acquiring = Box::pin(lock.lock_with_lease(MINUTE * 60));
    assert!(poll_once(&mut acquiring).await.is_none());
    eventually("it was executed", LONG, async || {
        scene.writes().await > before
    })
    .await;
    drop(acquiring);
    drop(lock);
    proxy.heal();
    scene.clean().await;
}

async fn guards_keep_the_client_alive(kind: &'static Kind) {
    let scene = Scene::with(kind, |builder| builder.watchdog_lease(ms(1_200))).await;
    let guard = scene.lock("alive").lock().await.unwrap();
    let Scene { server, client, .. } = scene;
    drop(client);
    let lost = tokio::time::timeout(ms(2_000), guard.lost()).await;
    assert!(lost.is_err() && guard.is_valid());
    guard.unlock().await.unwrap();
    eventually("its connections are closed", LONG, async || {
        server.connections().await == 0
    })
    .await;
}

/// However it ends: so does a task that watches it.
async fn a_view_ends_with_its_hold(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let lock = scene.lock("watched");
    let watch = |view: HoldView| tokio::spawn(async move { view.ended().await });

    let outer = lock.lock().await.unwrap();
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    let view = inner.hold();
    let watched = watch(inner.hold());
    outer.unlock().await.unwrap();
    assert!(poll_once(&mut Box::pin(view.ended())).await.is_none());
    inner.unlock().await.unwrap();
    assert_eq!(soon(watched).await.unwrap(), Ended::Released);
    assert_eq!(soon(view.ended()).await, Ended::Released);

    let dropped = lock.lock_with_lease(MINUTE).await.unwrap();
    let watched = watch(dropped.hold());
    drop(dropped);
    assert_eq!(soon(watched).await.unwrap(), Ended::Released);

    let short = lock.lock_with_lease(ms(200)).await.unwrap();
    let watched = watch(short.hold());
    let lost = Ended::Lost(LostReason::Expired);
    assert_eq!(soon(watched).await.unwrap(), lost);
    assert_eq!(soon(short.hold().ended()).await, lost);
    assert!(short.unlock().await.unwrap_err().is_lost());

    let left = lock.lock_with_lease(ms(200)).await.unwrap();
    let view = left.hold();
    let watched = watch(left.hold());
    left.let_expire().unwrap();
    assert_eq!(soon(watched).await.unwrap(), Ended::Left);
    lock.lock().await.unwrap().unlock().await.unwrap();
    assert_eq!(soon(view.ended()).await, Ended::Left, "and stays so");
    scene.clean().await;
}
