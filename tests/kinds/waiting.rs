//! Who gets in, when, and what ends a wait. Waiters that listen poll once a minute here, too late for a test: so a
//! message let them in, or the end of the lease in their busy answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use watchlock::{Backoff, Client, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::Fault;
use watchlock_support::worker::Worker;

use crate::common::{LONG, SHORT, ms, poll_once, soon};
use crate::scene::{MINUTE, Scene, about, through};
use crate::table::Kind;

for_every_kind! {
    i5_a_release_wakes_a_waiter_of_another_client,
    i5_a_release_of_a_rival_lets_waiters_in_and_the_other_way_round,
    i5_a_dropped_guard_wakes_a_waiter_of_another_client,
    i5_a_waiter_behind_a_hold_of_its_own_client_gets_in,
    i5_a_forced_release_lets_a_waiter_in,
    i5_a_waiter_gets_in_when_a_strangers_lease_ends,
    i5_a_waiter_gets_in_when_a_key_is_deleted_without_a_message,
    i5_a_release_during_a_try_is_not_missed,
    i6_a_wait_for_a_busy_lock_ends_in_time,
    f21_a_wait_ends_with_the_release_however_long_it_may_be,
    i7_i9_waiters_that_go_away_leave_nothing,
    i9_waiters_before_and_behind_a_dropped_one_are_served,
    i9_waiters_that_nobody_polls_delay_others_together_once,
    i9_a_waiter_that_is_polled_rarely_gets_in,
    twenty_waiters_of_two_clients_all_get_in_once,
    f1_i5_the_next_one_gets_in_when_a_killed_holders_lease_ends,
}

/// What a machine under load may add to a wait.
const LATE: Duration = Duration::from_millis(1_500);

/// A task of `client` that waits, says when it got in, and gives the lock back.
fn waits(scene: &Scene, client: &Client, name: &str) -> tokio::task::JoinHandle<Instant> {
    let lock = scene.of(client, name);
    tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        let got_in = Instant::now();
        guard.unlock().await.unwrap();
        got_in
    })
}

/// Each of them alone used to cost a command time-out, which is a second.
async fn i9_waiters_that_nobody_polls_delay_others_together_once(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    let guard = scene.rival(&client, "rest").lock().await.unwrap();
    let locks: Vec<_> = (0..80).map(|_| scene.rival(&client, "rest")).collect();
    let mut unpolled = Vec::new();
    for lock in &locks {
        let mut waiting = Box::pin(lock.lock());
        assert!(poll_once(&mut waiting).await.is_none());
        unpolled.push(waiting);
    }
    let both = [&client, &scene.client].map(|client| {
        let lock = scene.rival(client, "rest");
        tokio::spawn(async move { lock.lock().await.unwrap().unlock().await.unwrap() })
    });
    scene.waited_for(2).await;
    let begun = Instant::now();
    guard.unlock().await.unwrap();
    for through in both {
        soon(through).await.unwrap();
    }
    assert!(begun.elapsed() < ms(5_000), "{:?}", begun.elapsed());
    // They go on when somebody polls them.
    for waiting in unpolled {
        soon(waiting).await.unwrap().unlock().await.unwrap();
    }
    scene.clean().await;
}

/// Each of its grants is taken back at first.
async fn i9_a_waiter_that_is_polled_rarely_gets_in(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    let guard = scene.rival(&client, "rare").lock().await.unwrap();
    let lock = scene.rival(&client, "rare");
    let mut waiting = Box::pin(lock.lock());
    assert!(poll_once(&mut waiting).await.is_none());
    let other = scene.rival(&scene.client, "rare");
    let others = tokio::spawn(async move {
        loop {
            other.lock().await.unwrap().unlock().await.unwrap();
            tokio::time::sleep(ms(20)).await;
        }
    });
    guard.unlock().await.unwrap();
    for round in 0.. {
        assert!(round < 60, "it never gets in");
        // That the time passes is the point.
        tokio::time::sleep(ms(300)).await;
        if let Some(got) = poll_once(&mut waiting).await {
            got.unwrap().unlock().await.unwrap();
            break;
        }
    }
    others.abort();
    let _ = others.await;
    drop(waiting);
    scene.clean().await;
}

async fn i5_a_release_wakes_a_waiter_of_another_client(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let (one, two) = (scene.listener().await, scene.listener().await);
    let mut guard = scene.rival(&one, "ball").lock().await.unwrap();
    for _ in 0..10 {
        for client in [&two, &one] {
            let lock = scene.rival(client, "ball");
            let waiter = tokio::spawn(async move { lock.lock().await });
            scene.waited_for(1).await;
            guard.unlock().await.unwrap();
            guard = soon(waiter).await.unwrap().unwrap();
        }
    }
    guard.unlock().await.unwrap();
    scene.clean().await;
}

async fn i5_a_release_of_a_rival_lets_waiters_in_and_the_other_way_round(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    for _ in 0..5 {
        let rival = scene.rival(&scene.client, "turn").lock().await.unwrap();
        let waiters: Vec<_> = (0..3).map(|_| waits(&scene, &client, "turn")).collect();
        scene.waited_for(1).await;
        rival.unlock().await.unwrap();
        for waiter in waiters {
            soon(waiter).await.unwrap();
        }

        let guard = scene.lock("turn").lock().await.unwrap();
        let rival = scene.rival(&client, "turn");
        let waiter = tokio::spawn(async move { rival.lock().await });
        scene.waited_for(1).await;
        guard.unlock().await.unwrap();
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    scene.clean().await;
}

async fn i5_a_dropped_guard_wakes_a_waiter_of_another_client(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    let guard = scene.lock("drop").lock_with_lease(LONG * 4).await.unwrap();
    let rival = scene.rival(&client, "drop");
    let waiter = tokio::spawn(async move { rival.lock().await });
    scene.waited_for(1).await;
    drop(guard);
    drop(soon(waiter).await.unwrap().unwrap());
    scene.clean().await;
}

async fn i5_a_waiter_behind_a_hold_of_its_own_client_gets_in(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    for _ in 0..10 {
        let guard = scene.of(&client, "own").lock().await.unwrap();
        let rival = scene.rival(&client, "own");
        let mut waiting = Box::pin(rival.lock());
        assert!(poll_once(&mut waiting).await.is_none());
        guard.unlock().await.unwrap();
        soon(waiting).await.unwrap().unlock().await.unwrap();
    }
    scene.clean().await;
}

async fn i5_a_forced_release_lets_a_waiter_in(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    // Behind a hold of another client, and behind one of its own.
    for holder in [&scene.client, &client] {
        let guard = scene.of(holder, "wake").lock().await.unwrap();
        let rival = scene.rival(&client, "wake");
        let waiter = tokio::spawn(async move { rival.lock().await });
        scene.waited_for(1).await;
        let anybody = scene.other().await;
        assert!(scene.of(&anybody, "wake").force_unlock().await.unwrap());
        let entered = soon(waiter).await.unwrap().unwrap();
        // The old holder's unlock is late and harms nobody.
        assert!(guard.unlock().await.unwrap_err().is_lost());
        entered.verify().await.unwrap();
        entered.unlock().await.unwrap();
    }
    scene.clean().await;
}

async fn i5_a_waiter_gets_in_when_a_strangers_lease_ends(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    scene.put_stranger("over", SHORT).await;
    let ends = Instant::now() + SHORT;
    let waiter = waits(&scene, &client, "over");
    let got_in = soon(waiter).await.unwrap();
    assert!(got_in + ms(20) >= ends, "not before its end");
    assert!(got_in < ends + LATE, "{:?}", got_in - ends);
    scene.clean().await;
}

async fn i5_a_waiter_gets_in_when_a_key_is_deleted_without_a_message(kind: &'static Kind) {
    let polls = Backoff::new().base(ms(20)).cap(ms(200));
    let scene = Scene::with(kind, |builder| builder.backoff(polls)).await;
    for ttl in [MINUTE * 10, Duration::ZERO] {
        scene.put_stranger("deleted", MINUTE * 10).await;
        if ttl.is_zero() {
            scene.server.cmd(&["PERSIST", "deleted"]).await;
        }
        let waiter = waits(&scene, &scene.client, "deleted");
        scene.waited_for(1).await;
        scene.server.cmd(&["DEL", "deleted"]).await;
        let deleted = Instant::now();
        let got_in = soon(waiter).await.unwrap();
        let took = got_in.saturating_duration_since(deleted);
        assert!(took < ms(200) + LATE, "{took:?}");
    }
    scene.clean().await;
}

async fn i5_a_release_during_a_try_is_not_missed(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |it| it).await;
    let builder = through(&proxy).backoff(scene.rare());
    let client = builder.connect().await.unwrap();
    let holder = scene.other().await;
    for nth in 1..3 {
        let name = format!("during-{nth}");
        let rival = scene.rival(&holder, &name).lock_with_lease(LONG * 4).await;
        let before = scene.calls().await;
        let slow = proxy.inject(Fault::DelayReply(ms(300)));
        let slow = slow.on(about(&name)).nth(nth).arm();
        let waiter = waits(&scene, &client, &name);
        eventually("the try is made", LONG, async || slow.fired() == 1).await;
        // Answered busy by now, and the answer is still on its way.
        eventually("it was executed", LONG, async || {
            scene.calls().await >= before + nth
        })
        .await;
        rival.unwrap().unlock().await.unwrap();
        soon(waiter).await.unwrap();
    }
    scene.clean().await;
}

async fn i6_a_wait_for_a_busy_lock_ends_in_time(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let other = scene.other().await;
    // Of its own client, of another one, and of a third one.
    for holder in [Some(&scene.client), Some(&other), None] {
        let rival = if let Some(client) = holder {
            Some(scene.rival(client, "busy").lock().await.unwrap())
        } else {
            scene.put_stranger("busy", MINUTE * 10).await;
            None
        };
        for wait in [0, 1, 50, 300].map(ms) {
            let started = Instant::now();
            let lock = scene.lock("busy");
            assert!(
                lock.try_lock(wait, Lease::Fixed(MINUTE))
                    .await
                    .unwrap()
                    .is_none()
            );
            let took = started.elapsed();
            assert!(took >= wait && took < wait + LATE, "{wait:?}: {took:?}");
        }
        if let Some(rival) = rival {
            rival.unlock().await.unwrap();
        } else {
            let rival = (kind.rival)(&scene.client, "busy");
            assert!(rival.force_unlock().await.unwrap());
        }
        let lock = scene.lock("busy");
        let guard = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        let guard = guard.unwrap().expect("it is free");
        guard.unlock().await.unwrap();
    }
    scene.clean().await;
}

async fn f21_a_wait_ends_with_the_release_however_long_it_may_be(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    for wait in [LONG, Duration::from_secs(u64::MAX), Duration::MAX] {
        let rival = scene.rival(&scene.client, "max").lock().await.unwrap();
        let lock = scene.of(&client, "max");
        let waiter = tokio::spawn(async move { lock.try_lock(wait, Lease::Fixed(LONG)).await });
        scene.waited_for(1).await;
        rival.unlock().await.unwrap();
        let guard = soon(waiter).await.unwrap().unwrap();
        guard.expect("acquired").unlock().await.unwrap();
    }
    scene.clean().await;
}

async fn i7_i9_waiters_that_go_away_leave_nothing(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    let rival = scene.rival(&scene.client, "left").lock().await.unwrap();
    let held = scene.keys().await;
    let waiters: Vec<_> = (0..5).map(|_| waits(&scene, &client, "left")).collect();
    let lock = scene.of(&client, "left");
    let bounded = tokio::spawn(async move { lock.try_lock(ms(200), Lease::Watchdog).await });
    scene.waited_for(1).await;
    for waiter in waiters {
        waiter.abort();
    }
    assert!(soon(bounded).await.unwrap().unwrap().is_none());
    eventually("only the hold is there", LONG, async || {
        scene.keys().await == held && scene.server.channels().await.is_empty()
    })
    .await;
    rival.verify().await.unwrap();
    rival.unlock().await.unwrap();
    scene.clean().await;
}

async fn i9_waiters_before_and_behind_a_dropped_one_are_served(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    let lock = scene.of(&client, "row");
    for dropped in 0..3 {
        let rival = scene.rival(&scene.client, "row").lock().await.unwrap();
        let mut row: Vec<_> = (0..3).map(|_| Some(Box::pin(lock.lock()))).collect();
        for waiter in row.iter_mut().flatten() {
            assert!(poll_once(waiter).await.is_none());
        }
        scene.waited_for(1).await;
        row[dropped] = None;
        rival.unlock().await.unwrap();
        for waiter in row.into_iter().flatten() {
            soon(waiter).await.unwrap().unlock().await.unwrap();
        }
    }
    scene.clean().await;
}

async fn twenty_waiters_of_two_clients_all_get_in_once(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let clients = [scene.listener().await, scene.listener().await];
    let alone = !kind.differs(kind.shared);
    let rival = scene.rival(&scene.client, "crowd").lock().await.unwrap();
    let inside = Arc::new(AtomicU32::new(0));
    let entries = Arc::new(AtomicU32::new(0));
    let waiters: Vec<_> = (0..20)
        .map(|number| {
            let lock = scene.of(&clients[number % 2], "crowd");
            let (inside, entries) = (Arc::clone(&inside), Arc::clone(&entries));
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                let others = inside.fetch_add(1, Ordering::SeqCst);
                assert!(others == 0 || !alone, "{others} others");
                entries.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            })
        })
        .collect();
    scene.waited_for(2).await;
    assert_eq!(entries.load(Ordering::SeqCst), 0);
    rival.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap();
    }
    assert_eq!(entries.load(Ordering::SeqCst), 20);
    scene.clean().await;
}

/// A killed holder wakes nobody: the waiter goes by the lease in its busy answer. Before, it waited in line itself.
async fn f1_i5_the_next_one_gets_in_when_a_killed_holders_lease_ends(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let client = scene.listener().await;
    let worker = Worker::rust();
    worker.open(&scene.server.url(), None).await.unwrap();
    let rival = scene.rival(&client, "killed").lock().await.unwrap();
    let lease = u64::try_from((SHORT * 2).as_millis()).unwrap();
    let fields = json!({"owner": "a", "kind": kind.worker, "name": "killed", "lease_ms": lease});
    let call = worker.request("lock", fields);
    scene.waited_for(1).await;
    rival.unlock().await.unwrap();
    soon(call).await.outcome.unwrap();

    let waiter = {
        let rival = scene.rival(&client, "killed");
        tokio::spawn(async move { rival.lock().await.map(|guard| (guard, Instant::now())) })
    };
    scene.waited_for(1).await;
    worker.kill();
    eventually("the lease ends", LONG, async || {
        scene.server.pttl("killed").await < 0 || waiter.is_finished()
    })
    .await;
    let ended = Instant::now();
    let (guard, got_in) = soon(waiter).await.unwrap().unwrap();
    assert!(got_in.saturating_duration_since(ended) < LATE);
    guard.unlock().await.unwrap();
    scene.clean().await;
}
