//! What an operation costs, in counts that cannot flake: commands that a client sends, bytes of its futures.
//! The limits are today's numbers; who raises one says why.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{LONG, connect, ms, soon};
use watchlock::{Client, Lease, LockGuard, ReentrantLock};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

/// A client behind a proxy that counts its commands, and the state of that count.
struct Counted {
    server: RedisServer,
    proxy: Proxy,
    client: Client,
    seen: BTreeMap<String, u64>,
}

impl Counted {
    async fn start() -> Self {
        Self::with_lease(Duration::from_secs(30)).await
    }

    /// Connected, every script known to the server, nothing counted yet.
    async fn with_lease(lease: Duration) -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let builder = Client::builder(&proxy.url()).watchdog_lease(lease);
        // A machine that is slow to answer is no second command.
        let builder = builder.command_timeout(LONG);
        let client = builder.connect().await.expect("a client");
        let guard = client.get_lock("warm").lock().await.unwrap();
        guard
            .reenter(Lease::Watchdog)
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        guard.unlock().await.unwrap();
        client.get_lock("warm").force_unlock().await.unwrap();
        let seen = proxy.commands();
        Self {
            server,
            proxy,
            client,
            seen,
        }
    }

    /// Commands since the last look; a PING now and then belongs to the connection.
    fn commands(&mut self) -> u64 {
        let now = self.proxy.commands();
        let sent = |counts: &BTreeMap<String, u64>| {
            let asked = counts.iter().filter(|(command, _)| *command != "PING");
            asked.map(|(_, count)| count).sum::<u64>()
        };
        let new = sent(&now) - sent(&self.seen);
        self.seen = now;
        new
    }
}

#[tokio::test]
async fn lock_and_unlock_are_one_round_trip_each() {
    let mut counted = Counted::start().await;
    let lock = counted.client.get_lock("one");
    let guard = lock.lock().await.unwrap();
    assert_eq!(counted.commands(), 1, "lock");
    guard.unlock().await.unwrap();
    assert_eq!(counted.commands(), 1, "unlock");

    let guard = lock.lock_for(ms(5000)).await.unwrap();
    assert_eq!(counted.commands(), 1, "lock_for");
    guard.extend(ms(9000)).await.unwrap();
    assert_eq!(counted.commands(), 1, "extend");
    guard.unlock().await.unwrap();
    assert_eq!(counted.commands(), 1, "unlock of a fixed level");

    lock.run(async |_| ()).await.unwrap();
    assert_eq!(counted.commands(), 2, "run");
}

#[tokio::test]
async fn a_simple_lock_is_one_set_and_one_script() {
    let mut counted = Counted::start().await;
    let other = connect(&counted.server).await;
    let lock = counted.client.get_simple_lock("one");
    lock.lock().await.unwrap().unlock().await.unwrap();
    counted.commands();
    let before = counted.seen.clone();
    let guard = lock.lock().await.unwrap();
    guard.unlock().await.unwrap();
    assert_eq!(counted.commands(), 2, "lock and unlock");
    for command in ["SET", "EVALSHA"] {
        assert_eq!(counted.seen[command] - before[command], 1, "{command}");
    }
    let held = other.get_simple_lock("one").lock().await.unwrap();
    assert!(
        lock.try_lock(Duration::ZERO, Lease::Watchdog)
            .await
            .unwrap()
            .is_none()
    );
    // Nobody knows the script yet: its digest, and its text.
    assert_eq!(counted.commands(), 3, "who has it, for how long");
    let busy = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(busy.unwrap().is_none());
    assert_eq!(counted.commands(), 2, "who has it, for how long");
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn entering_again_and_leaving_are_one_round_trip_each() {
    let mut counted = Counted::start().await;
    let owner = counted.client.new_owner();
    let lock = owner.get_lock("levels");
    let outer = lock.lock().await.unwrap();
    counted.commands();
    let by_owner = lock.lock().await.unwrap();
    assert_eq!(counted.commands(), 1, "by the owner");
    let by_guard = outer.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(counted.commands(), 1, "by the guard");
    by_guard.unlock().await.unwrap();
    by_owner.unlock().await.unwrap();
    assert_eq!(counted.commands(), 2, "two levels given back");
    outer.unlock().await.unwrap();
    assert_eq!(counted.commands(), 1, "the last level");
}

#[tokio::test]
async fn what_is_known_here_is_not_asked_there() {
    let mut counted = Counted::start().await;
    let owner = counted.client.new_owner();
    let lock = owner.get_lock("known");
    let guard = lock.lock().await.unwrap();
    counted.commands();
    assert!(guard.is_valid() && lock.is_held());
    assert_eq!((guard.hold_count(), lock.hold_count()), (1, 1));
    assert!(guard.check().is_ok() && guard.valid_for() > Duration::ZERO);
    let stranger = counted.client.get_lock("known");
    let refused = stranger.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(refused.unwrap().is_none(), "held by this client");
    assert_eq!(counted.commands(), 0);
    assert!(stranger.is_locked().await.unwrap());
    assert_eq!(counted.commands(), 1, "is_locked");
    stranger.remain_time_to_live().await.unwrap();
    assert_eq!(counted.commands(), 1, "remain_time_to_live");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_refusal_is_one_round_trip() {
    let mut counted = Counted::start().await;
    let other = connect(&counted.server).await;
    let held = other.get_lock("busy").lock().await.unwrap();
    let lock = counted.client.get_lock("busy");
    let refused = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(refused.unwrap().is_none());
    assert_eq!(counted.commands(), 1);
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn a_section_costs_two_commands_however_many_tasks_wait() {
    const SECTIONS: u64 = 320;
    for tasks in [8, 32, 160] {
        let mut counted = Counted::start().await;
        let lock = counted.client.get_lock("contended");
        let first = lock.lock().await.unwrap();
        let running: Vec<_> = (0..tasks)
            .map(|_| {
                let lock = lock.clone();
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
        // The subscription, and the tries before and after it, come once.
        let commands = counted.commands();
        let limit = 2 * SECTIONS + 12;
        assert!(commands <= limit, "{tasks} tasks: {commands} > {limit}");
    }
}

#[tokio::test]
async fn renewals_travel_together() {
    const HOLDS: u64 = 300;
    let mut counted = Counted::with_lease(ms(3000)).await;
    let lock = |number| counted.client.get_lock(&format!("held:{number}"));
    let locks: Vec<_> = (0..HOLDS).map(lock).collect();
    let held = futures_util::future::join_all(locks.iter().map(ReentrantLock::lock)).await;
    let held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
    let renewed = async || counted.server.calls_of("pexpire").await >= 3 * HOLDS;
    eventually("each hold is renewed twice", LONG, renewed).await;
    let commands = counted.commands() - HOLDS;
    assert!(commands <= 12, "{commands} commands for two periods");
    assert!(held.iter().all(LockGuard::is_valid));
}

#[tokio::test]
async fn the_futures_of_a_section_are_small() {
    let counted = Counted::start().await;
    let lock = counted.client.get_lock("small");
    let waiting = size_of_val(&lock.lock());
    assert!(waiting <= 128, "{waiting} bytes to wait");
    let guard = lock.lock().await.unwrap();
    let unlocking = size_of_val(&guard.unlock());
    assert!(unlocking <= 184, "{unlocking} bytes to unlock");
}

#[tokio::test]
async fn a_client_that_holds_nothing_says_nothing() {
    let counted = Counted::start().await;
    tokio::time::sleep(ms(1500)).await; // nothing to wait for: silence is what is looked at
    assert_eq!(counted.proxy.commands(), counted.seen, "not even a PING");
}
