//! What is granted, and what is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, yield_now};
use watchlock::{Backoff, Client, ConfigError, Error, Lease, Lock, MultiLock};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, gone, ms, soon, try_once};
use crate::{Pair, WITHIN, few};

/// A lock of each kind.
pub(crate) fn kinds(client: &Client) -> Vec<(&'static str, Arc<dyn Lock>)> {
    let rw = client.get_read_write_lock("rw");
    let several = ["a", "b"].map(|name| client.get_lock(name));
    vec![
        ("lock", client.get_lock("lock").into()),
        ("fenced", client.get_fenced_lock("fenced").into()),
        ("fair", client.get_fair_lock("fair").into()),
        ("spin", client.get_spin_lock("spin").into()),
        ("simple", client.get_simple_lock("simple").into()),
        ("read", rw.read_lock().into()),
        (
            "write",
            client.get_read_write_lock("rw2").write_lock().into(),
        ),
        ("multi", MultiLock::new(several).unwrap().into()),
    ]
}

#[tokio::test]
async fn the_replica_has_every_grant() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    for (kind, lock) in kinds(&client) {
        for _ in 0..3 {
            let guard = lock.lock().await.unwrap();
            assert!(!pair.replica.keys().await.is_empty(), "{kind}");
            guard.unlock().await.unwrap();
        }
        eventually("the releases get there", LONG, async || {
            let keys = pair.replica.keys().await;
            keys.iter()
                .all(|key| key.starts_with("redisson_lock_token"))
        })
        .await;
    }
}

#[tokio::test]
async fn a_grant_that_the_replica_does_not_acknowledge_is_refused_and_undone() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let other = pair.connect().await;
    for (kind, lock) in kinds(&client) {
        pair.replica.freeze();
        let refused = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        let shortfall = few(refused);
        assert_eq!((shortfall.wanted, shortfall.got), (1, 0), "{kind}");
        // By the time of the error the grant is undone; the token of a fenced lock stays.
        let left = pair.master.keys().await;
        let left: Vec<_> = left.iter().filter(|key| !key.contains("token")).collect();
        assert!(left.is_empty(), "{kind} left {left:?}");
        pair.replica.resume();
        // Neither the client nor the lock is broken by it.
        for client in [&client, &other] {
            let (_, lock) = kinds(client).into_iter().find(|(k, _)| *k == kind).unwrap();
            let guard = lock.try_lock(LONG, Lease::Watchdog).await.unwrap();
            guard.expect("granted").unlock().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_master_without_replicas_grants_nothing() {
    let server = RedisServer::start();
    let client = Client::builder(&server.url()).acknowledged_by(1, ms(20));
    let client = client.connect().await.unwrap();
    let shortfall = few(try_once(&client, "x").await);
    assert_eq!((shortfall.wanted, shortfall.got), (1, 0));
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn fewer_than_asked_for_are_too_few() {
    let pair = Pair::start().await;
    let client = pair
        .builder()
        .acknowledged_by(2, ms(50))
        .connect()
        .await
        .unwrap();
    let shortfall = few(try_once(&client, "x").await);
    assert_eq!((shortfall.wanted, shortfall.got), (2, 1));
    assert!(!pair.master.exists("x").await);
}

/// Nothing was granted, so no replica has to acknowledge anything.
#[tokio::test]
async fn a_lock_of_somebody_else_is_busy_whatever_the_replicas_have() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    pair.replica.freeze();
    pair.master.cmd(&["HSET", "x", "stranger:1", "1"]).await;
    pair.master.cmd(&["PEXPIRE", "x", "60000"]).await;
    let waits = pair.master.calls_of("wait").await;
    assert!(try_once(&client, "x").await.unwrap().is_none());
    let waited = pair.master.calls_of("wait").await - waits;
    assert_eq!(waited, 1, "replicas were asked, and did not answer");
    pair.replica.resume();
}

/// Nobody asks the replicas any more, and a busy lock is still busy: to one try, and to those who wait.
#[tokio::test]
async fn a_busy_lock_is_busy_while_no_replica_is_within_reach() {
    let pair = Pair::start().await;
    let builder = pair.builder().unavailable_after(WITHIN);
    let (client, other) = (
        builder.connect().await.unwrap(),
        Client::connect(&pair.master.url()).await.unwrap(),
    );
    let held = kinds(&other)
        .into_iter()
        .filter(|(kind, _)| *kind != "read");
    let mut guards = Vec::new();
    for (kind, lock) in held {
        guards.push((kind, lock.lock().await.unwrap()));
    }
    let writer = other.get_read_write_lock("rw").write_lock();
    guards.push(("read", writer.lock().await.unwrap().into()));
    let count = guards.len();
    pair.replica.freeze();
    // A batch has 64 commands at most, and one batch a second is sent in spite of all.
    for _ in 0..2 {
        few(try_once(&client, "free").await);
    }
    let started = Instant::now();
    let waits = pair.master.calls_of("wait").await;
    for (kind, lock) in kinds(&client) {
        for _ in 0..3 {
            let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
            let tried = tried.unwrap_or_else(|error| panic!("{kind}: {error:?}"));
            assert!(tried.is_none(), "{kind}");
        }
    }
    few(try_once(&client, "free").await);
    let probes = pair.master.calls_of("wait").await - waits;
    let most = 4 + 4 * started.elapsed().as_secs();
    assert!(probes <= most, "{probes} for {} tries", 3 * count);
    // Their tries go over the keeper's connection, which finds out for itself.
    let waiters = kinds(&client).into_iter().map(|(kind, lock)| {
        let waiting = async move { (kind, lock.lock().await.map(|_| ())) };
        tokio::spawn(waiting)
    });
    let waiters: Vec<_> = waiters.collect();
    // Longer than they bear that the server refuses them.
    tokio::time::sleep(4 * WITHIN).await;
    let ended = waiters
        .iter()
        .position(tokio::task::JoinHandle::is_finished);
    assert_eq!(ended, None, "they wait");
    pair.replica.resume();
    eventually("it is found out", LONG, async || {
        try_once(&client, "free")
            .await
            .is_ok_and(|granted| granted.is_some())
    })
    .await;
    for (_, guard) in guards {
        guard.unlock().await.unwrap();
    }
    for waiter in waiters {
        let (kind, ended) = soon(waiter).await.unwrap();
        ended.unwrap_or_else(|error| panic!("{kind}: {error:?}"));
    }
}

#[tokio::test]
async fn a_waiter_is_granted_when_the_replica_is_back() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    pair.replica.freeze();
    let waiter = tokio::spawn({
        let lock = client.get_lock("x");
        async move { lock.try_lock(LONG, Lease::Watchdog).await }
    });
    eventually("it was tried for", LONG, async || {
        pair.master.calls_of("wait").await > 0
    })
    .await;
    pair.replica.resume();
    let guard = soon(waiter).await.unwrap().unwrap().expect("granted");
    assert!(pair.replica.exists("x").await);
    guard.unlock().await.unwrap();
}

/// A script is sent by its text the first time: a NOSCRIPT would cost another `WAIT`.
#[tokio::test]
async fn a_script_that_a_server_never_ran_costs_one_wait_too() {
    let pair = Pair::start().await;
    for number in 0..kinds(&pair.connect().await).len() {
        let client = pair.connect().await;
        let (kind, lock) = kinds(&client).swap_remove(number);
        pair.master.cmd(&["SCRIPT", "FLUSH"]).await;
        let waits = pair.master.calls_of("wait").await;
        let guard = lock.lock().await.unwrap();
        let waited = pair.master.calls_of("wait").await - waits;
        // The second of several asks when the first is there.
        assert_eq!(waited, if kind == "multi" { 2 } else { 1 }, "{kind}");
        guard.unlock().await.unwrap();
    }
}

/// The first command of a batch sends the text, and the others their digest again behind it.
#[tokio::test]
async fn commands_that_a_flushed_server_does_not_know_send_the_text_once_for_all() {
    const TASKS: u64 = 64;
    let pair = Pair::start().await;
    let client = pair.connect().await;
    // Both connections have sent the text before.
    let known = (0..TASKS).map(|number| client.get_lock(&format!("known {number}")));
    for lock in known {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    pair.master.cmd(&["SCRIPT", "FLUSH"]).await;
    pair.master.reset_calls().await;
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let lock = client.get_lock(&format!("x{number}"));
        tasks.spawn(async move { lock.lock().await.unwrap() });
    }
    let guards = soon(tasks.join_all()).await;
    let texts = pair.master.calls_of("eval").await;
    assert!((1..=2).contains(&texts), "{texts} texts on 2 connections");
    for guard in guards {
        guard.unlock().await.unwrap();
    }
}

/// Commands that replicas must acknowledge have a connection of their own.
#[tokio::test]
async fn a_connection_that_fell_silent_is_replaced_and_no_other() {
    let pair = Pair::start().await;
    let proxy = Proxy::to(&pair.master);
    let builder = Client::builder(&proxy.url()).acknowledged_by(1, WITHIN);
    let client = builder.command_timeout(4 * WITHIN).connect().await.unwrap();
    let made = async || {
        let made = pair
            .master
            .info("stats", "total_connections_received")
            .await;
        made.and_then(|made| made.parse::<u64>().ok()).unwrap()
    };
    let first = try_once(&client, "x").await.unwrap().unwrap();
    first.unlock().await.unwrap();
    let before = made().await;
    for _ in 0..5 {
        let guard = try_once(&client, "x").await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
    assert_eq!(made().await, before);
    proxy.black_hole(Direction::Replies);
    proxy.heal();
    // Connections that existed get no replies any more.
    eventually("the lock is granted again", LONG, async || {
        try_once(&client, "x").await.is_ok_and(|got| got.is_some())
    })
    .await;
    assert!(made().await > before, "by a new connection");
}

#[tokio::test]
async fn a_client_that_ends_leaves_no_connection() {
    let pair = Pair::start().await;
    // The replica's own connection.
    let others = pair.master.connections().await;
    let client = pair.connect().await;
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    soon(client.shutdown(LONG)).await;
    eventually("it is gone", LONG, async || {
        pair.master.connections().await == others
    })
    .await;
}

/// The third answer comes without waiting: the client sends no more than one `WAIT` a second.
#[tokio::test]
async fn after_two_in_a_row_it_is_said_at_once_and_found_out_when_that_is_over() {
    const MANY: u32 = 20;
    let pair = Pair::start().await;
    let client = pair.connect().await;
    pair.replica.freeze();
    for _ in 0..2 {
        few(try_once(&client, "x").await);
    }
    let asked = pair.master.calls_of("wait").await;
    let started = Instant::now();
    for _ in 0..MANY {
        few(try_once(&client, "x").await);
    }
    let took = started.elapsed();
    let probes = pair.master.calls_of("wait").await - asked;
    assert!(probes <= 1 + took.as_secs(), "{probes} in {took:?}");
    pair.replica.resume();
    eventually("it is found out", LONG, async || {
        try_once(&client, "x")
            .await
            .is_ok_and(|granted| granted.is_some())
    })
    .await;
    gone(&pair.master, "x").await;
}

#[tokio::test]
async fn a_release_waits_for_no_replica() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    pair.replica.freeze();
    let trying = tokio::spawn({
        let lock = client.get_lock("y");
        async move { lock.try_lock(Duration::ZERO, Lease::Watchdog).await }
    });
    // The server waits for the replica of this one now.
    eventually("y is tried for", LONG, async || {
        pair.master.exists("y").await
    })
    .await;
    guard.unlock().await.unwrap();
    assert!(
        !trying.is_finished(),
        "the release waited for the replica, too"
    );
    few(trying.await.unwrap());
    pair.replica.resume();
}

#[tokio::test]
async fn many_share_a_wait() {
    const TASKS: u64 = 64;
    let pair = Pair::start().await;
    let client = pair.connect().await;
    pair.master.reset_calls().await;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let lock = client.get_lock(&format!("x{task}"));
        tasks.spawn(async move { lock.lock().await.unwrap() });
    }
    let guards = soon(tasks.join_all()).await;
    let waits = pair.master.calls_of("wait").await;
    assert!(waits < TASKS, "{waits} for {TASKS}");
    for guard in guards {
        guard.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_cannot_wait_is_refused_at_connect() {
    let server = RedisServer::options()
        .config("rename-command", "WAIT \"\"")
        .start();
    let error = Client::builder(&server.url()).acknowledged_by(1, ms(100));
    let error = error.connect().await.unwrap_err();
    let unsupported = matches!(error, Error::Config(ConfigError::Unsupported { .. }));
    assert!(unsupported, "{error:?}");
}

#[tokio::test]
async fn odd_numbers_are_refused() {
    let url = "redis://127.0.0.1:1/";
    for (replicas, within) in [
        (0, ms(100)),
        (65, ms(100)),
        (1, Duration::ZERO),
        (1, ms(251)),
    ] {
        let error = Client::builder(url)
            .acknowledged_by(replicas, within)
            .connect_lazy();
        let error = error.unwrap_err();
        let refused = matches!(error, Error::Config(ConfigError::OutOfRange { .. }));
        assert!(refused, "{error:?}");
    }
}

/// Its connections live on the runtime of the callers, and end with it.
#[test]
fn a_runtime_that_ends_takes_no_lock_along_and_no_other_caller() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let pair = second.block_on(Pair::start());
    let client = first.block_on(pair.builder().watchdog_lease(SHORT).connect());
    let client = client.unwrap();
    let guard = first.block_on(client.get_lock("x").lock()).unwrap();
    drop(first);
    second.block_on(async {
        let other = client.get_lock("y").lock().await.unwrap();
        assert_eq!(pair.replica.keys().await, ["x", "y"]);
        tokio::time::sleep(SHORT).await;
        guard.check().expect("it is renewed");
        for guard in [guard, other] {
            guard.unlock().await.unwrap();
        }
        gone(&pair.master, "x").await;
    });
}

/// For each kind: the simple lock takes with a plain command, and asks on by a script when that took nothing.
#[tokio::test]
async fn a_lock_of_another_client_is_busy_whatever_its_kind() {
    let pair = Pair::start().await;
    let (holder, other) = (pair.connect().await, pair.connect().await);
    for ((kind, lock), (_, wanted)) in kinds(&holder).into_iter().zip(kinds(&other)) {
        let guard = lock.lock().await.unwrap();
        let tried = wanted.try_lock(Duration::ZERO, Lease::Watchdog).await;
        if kind == "read" {
            tried
                .unwrap()
                .expect("many may read")
                .unlock()
                .await
                .unwrap();
        } else {
            assert!(
                tried.unwrap_or_else(|e| panic!("{kind}: {e:?}")).is_none(),
                "{kind}"
            );
        }
        guard.unlock().await.unwrap();
    }
}

/// A release of another client wakes the first in the queue, which tries until the replicas have its hold.
#[tokio::test]
async fn a_fair_waiter_that_is_woken_waits_for_the_replicas() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let other = Client::connect(&pair.master.url()).await.unwrap();
    let held = other.get_fair_lock("line").lock().await.unwrap();
    let queued = async |count: u64| {
        let queue = "redisson_lock_queue:{line}";
        let long = async || pair.master.query::<u64>(&["LLEN", queue]).await == count;
        eventually("they queue", LONG, long).await;
    };
    // The second has its place before anybody tries for it.
    let waiter = || {
        let lock = client.get_fair_lock("line");
        tokio::spawn(async move { lock.lock().await })
    };
    let first = waiter();
    queued(1).await;
    let second = waiter();
    queued(2).await;
    first.abort();
    queued(1).await;
    let listens = async || pair.master.channels().await.len() == 1;
    eventually("it listens", LONG, listens).await;
    pair.replica.freeze();
    let waits = pair.master.calls_of("wait").await;
    held.unlock().await.unwrap();
    // Granted, and undone.
    let tried = async || pair.master.calls_of("wait").await > waits;
    eventually("it tries", LONG, tried).await;
    assert!(!second.is_finished());
    pair.replica.resume();
    let guard = soon(second).await.unwrap().unwrap();
    assert!(pair.replica.exists("line").await);
    guard.unlock().await.unwrap();
    gone(&pair.master, "line").await;
}

#[tokio::test]
async fn a_try_that_waits_behind_an_acknowledgement_far_away_is_not_overdue() {
    // More than share a batch.
    const LAST: u64 = 150;
    let pair = Pair::start().await;
    let proxy = Proxy::to(&pair.master);
    // Half of the command time-out is the time for two acknowledgements, so two batches are under way at a time.
    let client = Client::builder(&proxy.url())
        .acknowledged_by(1, ms(350))
        .command_timeout(ms(1_400))
        .connect_timeout(LONG)
        .watchdog_lease(LONG)
        .connect()
        .await
        .unwrap();
    let acquire = |name: &str| {
        let lock = client.get_lock(name);
        tokio::spawn(async move { lock.try_lock(LONG, Lease::Watchdog).await })
    };
    // The names share a slot, and so a connection. Each answer on it makes room for one more command.
    for n in 0..LAST {
        let guard = try_once(&client, &format!("{{x}}{n}"))
            .await
            .unwrap()
            .unwrap();
        guard.unlock().await.unwrap();
    }
    proxy.latency(ms(800));
    // The first answer shows the distance.
    let first = acquire("{x}0").await.unwrap().unwrap().unwrap();
    first.unlock().await.unwrap();
    let mut tries = Vec::new();
    let (before, waits) = (scripts(&proxy), waits(&proxy));
    for batch in 1..=2 {
        tries.push(acquire(&format!("{{x}}{batch}")));
        eventually("it is sent", LONG, async || {
            self::waits(&proxy) == waits + batch
        })
        .await;
    }
    tries.extend((3..=LAST).map(|n| acquire(&format!("{{x}}{n}"))));
    let mut guards = Vec::new();
    for acquire in tries {
        guards.push(acquire.await.unwrap().unwrap().expect("a free lock"));
    }
    assert_eq!(scripts(&proxy) - before, LAST, "each ran once");
}

#[tokio::test]
async fn callers_that_verify_all_the_time_keep_no_acquire_out() {
    // Some of them fall into the batch of another, but not all.
    const VERIFIERS: usize = 5;
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let verified = Arc::new(AtomicU64::new(0));
    let mut verifying = JoinSet::new();
    for n in 0..VERIFIERS {
        let guard = try_once(&client, &format!("{{x}}{n}"))
            .await
            .unwrap()
            .unwrap();
        let verified = Arc::clone(&verified);
        verifying.spawn(async move {
            loop {
                guard.verify().await.unwrap();
                verified.fetch_add(1, Ordering::SeqCst);
                // Not in step with the others.
                for _ in 0..n {
                    yield_now().await;
                }
            }
        });
    }
    for n in 0..200 {
        let before = verified.load(Ordering::SeqCst);
        let guard = try_once(&client, &format!("{{x}}free{n}")).await.unwrap();
        guard.expect("a free lock").unlock().await.unwrap();
        let meanwhile = verified.load(Ordering::SeqCst) - before;
        assert!(meanwhile <= 40, "{meanwhile} commands of others went first");
    }
}

fn scripts(proxy: &Proxy) -> u64 {
    proxy.scripts().values().sum()
}

fn waits(proxy: &Proxy) -> u64 {
    proxy.commands().get("WAIT").copied().unwrap_or(0)
}

/// A try that had no reply in time is made again, on another connection, under the same hold id. That too few replicas
/// acknowledged the first one must not end what the second one got.
#[tokio::test]
async fn a_try_whose_acknowledgement_fails_late_does_not_end_what_the_next_one_got() {
    let pair = Pair::start().await;
    let proxy = Proxy::to(&pair.master);
    let client = Client::builder(&proxy.url())
        .acknowledged_by(1, ms(500))
        .command_timeout(ms(2_000))
        .connect_timeout(LONG)
        .watchdog_lease(LONG)
        .backoff(Backoff::new().base(ms(10)).cap(ms(10)))
        .connect()
        .await
        .unwrap();
    // A caller of another runtime has connections of its own.
    let (warmed, is_warm) = tokio::sync::oneshot::channel();
    let (begin, begins) = tokio::sync::oneshot::channel();
    let locking = tokio::task::spawn_blocking({
        let client = client.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let warm = try_once(&client, "x").await.unwrap().unwrap();
                warm.unlock().await.unwrap();
                warmed.send(()).unwrap();
                begins.await.unwrap();
                let guard = client.get_lock("x").lock().await.unwrap();
                tokio::time::sleep(ms(2_000)).await;
                guard.verify().await.unwrap();
                guard.unlock().await.unwrap();
            });
        }
    });
    is_warm.await.unwrap();
    proxy.reset_all();
    // The client's next tries go over its own connections, which are up again.
    let first = try_once(&client, "x").await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let lock = client.get_lock("x");
        async move { lock.lock().await }
    });
    eventually("one waits", LONG, async || client.stats().waiters > 0).await;
    first.unlock().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    second.unlock().await.unwrap();
    // The caller's are not: its try has to connect first, so it is overdue before its acknowledgement is.
    proxy.latency(ms(800));
    pair.replica.freeze();
    begin.send(()).unwrap();
    for (what, blocked) in [("it ran", "1"), ("nobody acknowledged it", "0")] {
        eventually(what, LONG, async || {
            let now = pair.master.info("clients", "blocked_clients").await;
            now.as_deref() == Some(blocked)
        })
        .await;
    }
    pair.replica.resume();
    locking.await.unwrap();
}
