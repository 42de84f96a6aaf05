//! Thousands of waiters and of holds, counted in commands, channels, tasks and connections (F18, I7).

#[path = "../common/mod.rs"]
mod common;
mod crowds;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Barrier;
use watchlock::{Client, Clock, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use common::{channel, connect, ms, poll_once, without_polls};

const MANY: usize = 10_000;
/// How long thousands of steps may take on a busy machine.
const AGES: Duration = Duration::from_secs(120);

/// One test at a time has the processors: time-outs are short beside what thousands of tasks need.
async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    TURN.lock().await
}

/// What the server and the runtime have of ours.
#[derive(Debug, PartialEq, Eq)]
struct Footprint {
    keys: usize,
    channels: usize,
    connections: usize,
    tasks: usize,
    threads: usize,
}

impl Footprint {
    async fn of(server: &RedisServer) -> Self {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let named = threads.filter(|thread| {
            let path = thread.as_ref().unwrap().path().join("comm");
            let name = std::fs::read_to_string(path).unwrap_or_default();
            name.starts_with("watchlock-keep")
        });
        Self {
            keys: server.keys().await.len(),
            channels: server.channels().await.len(),
            connections: server.connections().await,
            tasks: tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks(),
            threads: named.count(),
        }
    }
}

/// Waits until nothing is left that was not there before.
async fn as_before(server: &RedisServer, before: &Footprint) {
    let end = Instant::now() + AGES;
    loop {
        let now = Footprint::of(server).await;
        let extra = now.keys > before.keys
            || now.channels > before.channels
            || now.connections > before.connections
            || now.tasks > before.tasks
            || now.threads > before.threads;
        if !extra {
            return;
        }
        assert!(Instant::now() < end, "{now:?} is more than {before:?}");
        tokio::time::sleep(ms(20)).await;
    }
}

/// Lets both clients hold, wait and listen once, so that whatever stays permanently exists.
async fn warm_up(server: &RedisServer, clients: [&Client; 2]) -> Footprint {
    for [holds, waits] in [clients, [clients[1], clients[0]]] {
        let held = holds.get_lock("warm").lock().await.unwrap();
        let lock = waits.get_lock("warm");
        let waiter = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
        common::subscribed(server, "warm").await;
        held.unlock().await.unwrap();
        waiter.await.unwrap().unwrap();
        common::clean(server).await;
    }
    eventually("nobody listens", AGES, async || {
        let clients = server.clients().await;
        clients.iter().all(|client| client["sub"] == "0")
    })
    .await;
    Footprint::of(server).await
}

fn script_calls(calls: &BTreeMap<String, u64>) -> u64 {
    ["evalsha", "eval"]
        .iter()
        .filter_map(|name| calls.get(*name))
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_i5_ten_thousand_tasks_on_one_name_are_one_waiter_and_come_in_turn() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let client = without_polls(&server).connect().await.unwrap();
    let stranger = connect(&server).await;
    let before = warm_up(&server, [&client, &stranger]).await;
    server.reset_calls().await;
    let held = stranger
        .get_lock("crowd")
        .lock_with_lease(AGES * 10)
        .await
        .unwrap();
    let lock = client.get_lock("crowd");
    let mut line = Vec::with_capacity(MANY);
    for _ in 0..MANY {
        let lock = lock.clone();
        let mut waiting = Box::pin(async move { lock.lock().await });
        // Polled once each, in order: that is the order of their arrival.
        assert!(poll_once(&mut waiting).await.is_none());
        line.push(waiting);
    }
    common::subscribed(&server, "crowd").await;
    assert_eq!(server.subscribers(&channel("crowd")).await, 1);
    assert_eq!(server.calls_of("subscribe").await, 1);
    assert!(server.connections().await <= before.connections + 2);

    let served = Arc::new(Mutex::new(Vec::with_capacity(MANY)));
    let tasks = (0..).zip(line).map(|(place, waiting)| {
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            let guard = waiting.await.expect("its turn");
            served.lock().push(place);
            guard.unlock().await.expect("still its own");
        })
    });
    let tasks: Vec<_> = tasks.collect();
    server.reset_calls().await;
    held.unlock().await.unwrap();
    let done = tokio::time::timeout(AGES, join_all(tasks)).await;
    done.expect("all in time")
        .into_iter()
        .for_each(|task| task.unwrap());

    let order = Arc::into_inner(served).unwrap().into_inner();
    assert!(
        order.iter().copied().eq(0..MANY),
        "first come, first served"
    );
    let calls = script_calls(&server.calls().await);
    // An acquire and a release each; the stranger's release, and a try or two of the first in line.
    assert!(calls <= 2 * MANY as u64 + 5, "{calls} script calls");
    assert_eq!(server.calls_of("subscribe").await, 0);
    as_before(&server, &before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_waiters_that_go_away_leave_nothing() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let before = warm_up(&server, [&client, &client]).await;
    let held = client.get_lock("crowd").lock().await.unwrap();
    let gate = Arc::new(Barrier::new(1_001));
    let tasks = (0..1_000).map(|i| {
        let lock = client.get_lock("crowd");
        let gate = Arc::clone(&gate);
        tokio::spawn(async move {
            gate.wait().await;
            let wait = ms(200 + i % 7 * 100);
            lock.try_lock(wait, ms(10_000))
                .await
                .expect("busy")
                .is_none()
        })
    });
    let mut tasks: Vec<_> = tasks.collect();
    gate.wait().await;
    for task in tasks.drain(..300) {
        task.abort();
    }
    for task in tasks {
        assert!(task.await.unwrap(), "nobody gets in");
    }
    held.unlock().await.unwrap();
    as_before(&server, &before).await;
}

/// Takes `names`, many at a time.
async fn hold_all(client: &Client, names: std::ops::Range<usize>) -> Vec<LockGuard> {
    let mut guards = Vec::with_capacity(names.len());
    for start in names.clone().step_by(500) {
        let end = names.end.min(start + 500);
        let taken = (start..end).map(|i| {
            let lock = client.get_lock(&format!("hold-{i}"));
            async move { lock.lock().await.expect("free") }
        });
        guards.extend(join_all(taken).await);
    }
    guards
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_ten_thousand_holds_are_renewed_in_few_writes_and_leave_nothing() {
    const PERIODS: u64 = 5;
    let _alone = alone().await;
    let server = RedisServer::start();
    let lease = Duration::from_secs(9);
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).watchdog_lease(lease);
    let client = client.command_timeout(lease).connect().await.unwrap();
    let before = warm_up(&server, [&client, &client]).await;
    let guards = hold_all(&client, 0..MANY).await;
    server.reset_calls().await;
    let sent = proxy.traffic();
    // Each period renews each once.
    let renewals = PERIODS * MANY as u64;
    eventually("five periods", AGES, async || {
        server.calls_of("pexpire").await >= renewals
    })
    .await;
    let calls = script_calls(&server.calls().await);
    assert!(guards.iter().all(LockGuard::is_valid), "none lost");
    let most = (PERIODS + 1) * MANY as u64;
    assert!(calls <= most, "{calls} script calls for {PERIODS} periods");
    let now = proxy.traffic();
    let (bytes, reads) = (now.bytes - sent.bytes, now.reads - sent.reads);
    assert!(bytes <= calls * 160, "{bytes} bytes for {calls} renewals");
    assert!(reads <= calls / 20, "{reads} reads of {calls} renewals");
    let mut guards = guards.into_iter().peekable();
    while guards.peek().is_some() {
        let given_back = guards.by_ref().take(500).map(LockGuard::unlock);
        for result in join_all(given_back).await {
            result.unwrap();
        }
    }
    as_before(&server, &before).await;
}

/// The end of a client releases all that is held in few writes, and takes as long as the server needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_a_shutdown_releases_twenty_thousand_holds_in_few_writes() {
    let _alone = alone().await;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).watchdog_lease(AGES);
    // A release is repeated after a time-out, which a busy machine reaches.
    let client = client.command_timeout(AGES / 2).connect().await.unwrap();
    let before = Footprint::of(&server).await;
    let mut guards = hold_all(&client, 0..2 * MANY).await;
    server.reset_calls().await;
    let sent = proxy.traffic();
    let report = client.shutdown(Duration::ZERO).await;
    let reads = proxy.traffic().reads - sent.reads;
    assert!(report.unreleased.is_empty(), "{}", report.unreleased.len());
    assert_eq!(report.held.len(), 2 * MANY);
    assert_eq!(server.keys().await.len(), 0);
    let calls = script_calls(&server.calls().await);
    assert!(calls <= 2 * MANY as u64 + 100, "{calls} script calls");
    assert!(reads <= calls / 20, "{reads} reads of {calls} releases");
    guards.clear();
    drop(client);
    as_before(&server, &before).await;
}

/// As after a pause of the process: most holds are over, and there is time to renew the others. To clean up behind the first
/// takes longer than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_are_renewed_before_those_that_are_lost_are_cleaned_up() {
    const LOST: usize = 50_000;
    let _alone = alone().await;
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let builder = Client::builder(&server.url()).clock(clock);
    let client = builder.watchdog_lease(AGES).connect().await.unwrap();
    let lease = AGES.saturating_sub(Duration::from_secs(10));
    let mut lost = Vec::new();
    for first in (0..LOST).step_by(500) {
        let locks = (first..first + 500).map(|name| client.get_lock(&format!("lost-{name}")));
        let held = locks.map(|lock| async move { lock.lock_with_lease(lease).await.unwrap() });
        lost.extend(join_all(held).await);
    }
    let live = hold_all(&client, 0..10).await;
    let left = live[0].valid_for().saturating_sub(Duration::from_secs(3));
    ahead.advance(left);
    eventually("all others are lost", AGES, async || {
        client.stats().lost >= LOST as u64
    })
    .await;
    assert!(lost.iter().all(|guard| !guard.is_valid()));
    assert_eq!(client.stats().lost, LOST as u64);
    for guard in live {
        guard.unlock().await.unwrap();
    }
}
