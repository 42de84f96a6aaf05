//! What an operation costs in commands, counts that cannot flake. The kind's description has today's numbers; who raises
//! one says why.

use std::sync::Arc;
use std::time::Duration;

use watchlock::{ClientBuilder, Clock, Lease, Lock, LockGuard};
use watchlock_support::eventually;

use crate::common::counted::Counted;
use crate::common::{LONG, ms, soon};
use crate::scene::Scene;
use crate::table::{Kind, body};

for_every_kind! {
    what_operations_cost_when_nothing_is_in_the_way,
    what_is_known_here_is_not_asked_there,
    a_refusal_is_one_try,
    a_section_costs_the_same_however_many_tasks_wait,
    renewals_travel_together,
}

/// A machine that is slow to answer is no second command.
fn unhurried(builder: ClientBuilder) -> ClientBuilder {
    builder.command_timeout(LONG)
}

async fn what_operations_cost_when_nothing_is_in_the_way(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, unhurried).await;
    let costs = &kind.costs;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "one");
    let mut counted = Counted::from_now(&proxy);
    let outer = lock.lock().await.unwrap();
    assert_eq!(counted.commands(), costs.lock, "lock");
    let by_owner = lock.lock().await.unwrap();
    assert_eq!(counted.commands(), costs.enter, "entering by the owner");
    let by_guard = outer.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(counted.commands(), costs.enter, "entering by the guard");
    by_guard.unlock().await.unwrap();
    assert_eq!(counted.commands(), costs.leave, "giving a level back");
    by_owner.detach().unwrap();
    assert_eq!(counted.commands(), 0, "detach");
    lock.unlock().await.unwrap();
    assert_eq!(counted.commands(), costs.leave, "giving one back detached");
    outer.verify().await.unwrap();
    assert_eq!(counted.commands(), costs.verify, "verify");
    outer.unlock().await.unwrap();
    assert_eq!(counted.commands(), costs.unlock, "unlock");

    let fixed = lock.lock_with_lease(ms(5_000)).await.unwrap();
    assert_eq!(counted.commands(), costs.lock, "lock_with_lease");
    fixed.extend(ms(9_000)).await.unwrap();
    assert_eq!(counted.commands(), costs.extend, "extend");
    fixed.unlock().await.unwrap();
    assert_eq!(counted.commands(), costs.unlock, "unlock of a fixed level");

    (kind.made.run)(&scene.client, "one", body(|_| async {}))
        .await
        .unwrap();
    assert_eq!(counted.commands(), costs.lock + costs.unlock, "run");
}

async fn what_is_known_here_is_not_asked_there(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, unhurried).await;
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "known");
    let guard = lock.lock().await.unwrap();
    let mut counted = Counted::from_now(&proxy);
    assert!(guard.is_valid() && lock.is_held());
    assert_eq!((guard.hold_count(), lock.hold_count()), (1, 1));
    assert!(guard.check().is_ok() && guard.valid_for() > Duration::ZERO);
    let rival = scene.rival(&scene.client, "known");
    let refused = rival.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(refused.unwrap().is_none(), "held by this client");
    assert_eq!(counted.commands(), 0);
    let stranger = scene.lock("known");
    assert!(stranger.is_locked().await.unwrap());
    assert_eq!(counted.commands(), 1, "is_locked");
    stranger.remain_time_to_live().await.unwrap();
    assert_eq!(counted.commands(), 1, "remain_time_to_live");
    guard.unlock().await.unwrap();
}

async fn a_refusal_is_one_try(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, unhurried).await;
    let other = scene.other().await;
    let rival = scene.rival(&other, "busy").lock().await.unwrap();
    // From now on the server knows every script that this takes.
    let refused = scene.try_once(&scene.client, "busy").await;
    assert!(refused.unwrap().is_none());
    let mut counted = Counted::from_now(&proxy);
    for _ in 0..2 {
        let refused = scene.try_once(&scene.client, "busy").await;
        assert!(refused.unwrap().is_none());
        assert_eq!(counted.commands(), kind.costs.busy);
    }
    rival.unlock().await.unwrap();
}

const SECTIONS: u64 = 320;

async fn a_section_costs_the_same_however_many_tasks_wait(kind: &'static Kind) {
    // The subscription, and the tries before and after it, come once.
    let limit = kind.costs.in_line * SECTIONS + 12;
    for tasks in [8, 32, 160] {
        let commands = commands_of_sections(kind, tasks).await;
        assert!(commands <= limit, "{tasks} tasks: {commands} > {limit}");
    }
}

/// What `tasks` tasks send that take turns. The client's clock stands still: a task that gets no CPU for 20 ms when its turn
/// comes would cost a release and a try more.
async fn commands_of_sections(kind: &'static Kind, tasks: u64) -> u64 {
    let (clock, driver) = Clock::driven();
    let (scene, proxy) = Scene::proxied(kind, |it| unhurried(it).clock(clock)).await;
    driver.stop();
    let lock: Arc<dyn Lock> = scene.lock("contended").into();
    let first = lock.lock().await.unwrap();
    let mut counted = Counted::from_now(&proxy);
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let lock = Arc::clone(&lock);
            tokio::spawn(async move {
                for _ in 0..SECTIONS / tasks {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        })
        .collect();
    first.unlock().await.unwrap();
    for task in running {
        soon(task).await.unwrap();
    }
    counted.commands()
}

async fn renewals_travel_together(kind: &'static Kind) {
    const HOLDS: u64 = 300;
    const PERIODS: u64 = 2;
    let set = |it: ClientBuilder| unhurried(it).watchdog_lease(ms(3_000));
    let (scene, proxy) = Scene::proxied(kind, set).await;
    let lock = |number| scene.lock(&format!("held:{number}"));
    let locks: Vec<_> = (0..HOLDS).map(lock).collect();
    let held = futures_util::future::join_all(locks.iter().map(Lock::lock)).await;
    let held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
    let mut counted = Counted::from_now(&proxy);
    let before = proxy.traffic();
    let calls = || proxy.scripts().values().sum::<u64>();
    let renewals = calls() + PERIODS * HOLDS;
    eventually("each hold is renewed twice", LONG, async || {
        calls() >= renewals
    })
    .await;
    let (after, commands) = (proxy.traffic(), counted.commands());
    // The next period may have begun.
    let most = (PERIODS + 1) * HOLDS;
    assert!(commands <= most, "{commands} commands for two periods");
    let bytes = (after.bytes - before.bytes) / commands;
    assert!(bytes <= kind.costs.renewal_bytes, "{bytes} bytes a renewal");
    let reads = after.reads - before.reads;
    assert!(
        reads <= commands / 5,
        "{reads} reads of {commands} commands"
    );
    assert!(held.iter().all(LockGuard::is_valid));
}
