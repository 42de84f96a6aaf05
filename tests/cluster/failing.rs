//! Masters that die, stand still, or hand over to their replica.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use watchlock::{Client, Lease, LostReason};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, ms, soon, try_once};
use crate::scene::Load;

const NAME: &str = "job";

/// A name whose lock another master has.
pub(crate) async fn elsewhere(cluster: &RedisCluster, master: usize) -> String {
    for number in 0.. {
        let name = format!("other:{number}");
        if cluster.owner_of(&name).await != master {
            return name;
        }
    }
    unreachable!("some name is elsewhere")
}

#[tokio::test]
async fn a_hold_that_its_replica_has_outlives_its_master() {
    let cluster = RedisCluster::start().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let master = cluster.owner_of(NAME).await;
    let guard = client.get_lock(NAME).lock().await.unwrap();
    let replica = cluster.replica_of(master);
    eventually("the replica has it", LONG, async || {
        replica.keys().await == [NAME]
    })
    .await;
    cluster.node(master).kill();
    cluster.replaced(master).await;
    eventually("the new master answers", LONG, async || {
        guard.verify().await.is_ok()
    })
    .await;
    guard.unlock().await.unwrap();
    assert!(!replica.exists(NAME).await);
}

#[tokio::test]
async fn t5_holds_are_verified_at_the_new_master() {
    let cluster = RedisCluster::start().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let master = cluster.owner_of(NAME).await;
    let replica = cluster.replica_of(master);
    // Nobody renews a lease of a minute, so only the question after the fail-over finds that the hold is missing.
    let lock = client.get_lock(NAME);
    let guard = lock.lock_with_lease(Duration::from_secs(60)).await.unwrap();
    eventually("the replica has it", LONG, async || {
        replica.keys().await == [NAME]
    })
    .await;
    cluster.node(master).freeze();
    cluster.replaced(master).await;
    replica.cmd(&["DEL", NAME]).await;
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    cluster.node(master).resume();
}

/// A fixed lease is not renewed, and its holder sends nothing else.
#[tokio::test]
async fn i8_a_hold_that_is_not_renewed_is_lost_soon_after_its_node_forgot_it() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    // It is not the node whose address the client was given.
    let name = elsewhere(&cluster, 0).await;
    let node = cluster.server_of(&name).await;
    let guard = client
        .get_lock(&name)
        .lock_with_lease(LONG * 20)
        .await
        .unwrap();
    eventually("the keeper asked for it", LONG, async || {
        node.calls_of("pexpire").await >= 2
    })
    .await;
    node.restart();
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(guard.unlock().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn i8_a_silent_master_does_not_hide_that_another_forgot_a_hold() {
    let cluster = RedisCluster::with(3, 0, |options| {
        options.config("cluster-require-full-coverage", "no")
    });
    let cluster = cluster.await;
    let silent = cluster.owner_of(NAME).await;
    let name = elsewhere(&cluster, silent).await;
    let nodes = [cluster.node(silent), cluster.server_of(&name).await];
    let builder = Client::builder(&cluster.url()).command_timeout(LONG * 2);
    let client = builder.connect().await.unwrap();
    let lease = LONG * 20;
    let there = client.get_lock(NAME).lock_with_lease(lease).await.unwrap();
    let guard = client.get_lock(&name).lock_with_lease(lease).await.unwrap();
    for node in nodes {
        eventually("the keeper asked for it", LONG, async || {
            node.calls_of("pexpire").await >= 2
        })
        .await;
    }
    nodes[0].freeze();
    let before = nodes[1].calls_of("ping").await;
    eventually("it is probed while the other is silent", LONG, async || {
        nodes[1].calls_of("ping").await > before + 2
    })
    .await;
    nodes[1].restart();
    let lost = tokio::time::timeout(LONG / 2, guard.lost()).await;
    nodes[0].resume();
    assert_eq!(lost, Ok(LostReason::Missing));
    there.unlock().await.unwrap();
}

#[tokio::test]
async fn locks_go_on_after_the_fail_over_and_elsewhere_meanwhile() {
    for freezes in [false, true] {
        // Otherwise no node answers while one slot has none.
        let cluster = RedisCluster::with(3, 1, |options| {
            options.config("cluster-require-full-coverage", "no")
        });
        let cluster = cluster.await;
        let master = cluster.owner_of(NAME).await;
        let other = elsewhere(&cluster, master).await;
        let client = Client::connect(&cluster.url()).await.unwrap();
        client
            .get_lock(NAME)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        let load = Load::start(vec![Box::new(client.get_lock(&other))]);
        if freezes {
            cluster.node(master).freeze();
        } else {
            cluster.node(master).kill();
        }
        let lock = client.get_lock(NAME);
        let waits = tokio::spawn(async move {
            let minute = Duration::from_secs(60);
            let got = lock.try_lock(minute, Lease::Watchdog).await;
            (got, Instant::now())
        });
        cluster.replaced(master).await;
        let replaced = Instant::now();
        let (got, at) = soon(waits).await.unwrap();
        got.unwrap()
            .expect("a minute is enough")
            .unlock()
            .await
            .unwrap();
        let late = at.saturating_duration_since(replaced);
        assert!(
            late < Duration::from_secs(10),
            "{late:?} after the fail-over"
        );
        let seen = load.stop().await;
        assert_eq!(seen.errors, Vec::<String>::new());
        assert!(seen.longest < Duration::from_secs(1), "{seen:?}");
        if freezes {
            cluster.node(master).resume();
        }
    }
}

/// Each release there waits for its answer.
#[tokio::test]
async fn guards_that_were_dropped_at_a_silent_master_delay_no_release_at_another() {
    let cluster = RedisCluster::with(3, 0, |options| {
        options.config("cluster-require-full-coverage", "no")
    });
    let cluster = cluster.await;
    let master = cluster.owner_of(NAME).await;
    let other = elsewhere(&cluster, master).await;
    let server = cluster.server_of(&other).await;
    let builder = Client::builder(&cluster.url()).watchdog_lease(LONG * 20);
    let builder = builder.command_timeout(LONG).connect_timeout(LONG);
    let client = builder.connect().await.unwrap();
    let mut guards = Vec::new();
    for number in 0..200 {
        let lock = client.get_lock(&format!("{{{NAME}}}:{number}"));
        guards.push(lock.lock().await.unwrap());
    }
    let guard = client.get_lock(&other).lock().await.unwrap();
    cluster.node(master).freeze();
    drop(guards);
    drop(guard);
    eventually("the other master frees it", LONG / 3, async || {
        !server.exists(&other).await
    })
    .await;
    cluster.node(master).resume();
}

/// They all try to listen at the old master at first, one after the other.
#[tokio::test]
async fn hundreds_of_waiters_listen_at_the_new_master_soon() {
    const NAMES: usize = 400;
    let cluster = RedisCluster::start().await;
    let holder = Client::connect(&cluster.url()).await.unwrap();
    let waiter = Client::connect(&cluster.url()).await.unwrap();
    let master = cluster.owner_of(NAME).await;
    let (mut guards, mut waits) = (Vec::new(), tokio::task::JoinSet::new());
    for number in 0..NAMES {
        let name = format!("{{{NAME}}}:{number}");
        let lock = holder.get_lock(&name);
        guards.push(lock.lock_with_lease(LONG * 20).await.unwrap());
        let lock = waiter.get_lock(&name);
        waits.spawn(async move { lock.lock().await });
    }
    let all_listen = async |node: &RedisServer| {
        eventually("all listen there", LONG, async || {
            let (classic, sharded) = (node.channels().await, node.sharded_channels().await);
            classic.len().max(sharded.len()) == NAMES
        })
        .await;
    };
    all_listen(cluster.node(master)).await;
    let replica = cluster.replica_of(master);
    eventually("the replica has them", LONG, async || {
        replica.keys().await.len() == NAMES
    })
    .await;
    cluster.node(master).kill();
    cluster.replaced(master).await;
    all_listen(replica).await;
    waits.shutdown().await;
    drop(guards);
}

#[tokio::test]
async fn a_fail_over_by_agreement_fails_nothing() {
    let cluster = RedisCluster::start().await;
    let master = cluster.owner_of(NAME).await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let load = Load::start(vec![
        Box::new(client.get_lock(NAME)),
        Box::new(client.get_lock(NAME)),
    ]);
    tokio::time::sleep(ms(100)).await;
    cluster.fail_over(master + 3).await;
    tokio::time::sleep(ms(500)).await;
    let seen = load.stop().await;
    assert_eq!((seen.overlaps, seen.errors), (0, Vec::new()));
}

/// Nobody holds or waits, so nothing else asks for the slots: a try that found its node dead does.
#[tokio::test]
async fn a_single_try_that_finds_its_node_dead_has_the_slots_asked_for() {
    let cluster = RedisCluster::start().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let master = cluster.owner_of(NAME).await;
    cluster.node(master).kill();
    cluster.replaced(master).await;
    let questions = async || {
        let mut all = 0;
        for node in cluster.nodes().iter().filter(|node| node.is_running()) {
            let calls = node.calls().await;
            let about = calls
                .iter()
                .filter(|(command, _)| command.starts_with("cluster"));
            all += about.map(|(_, count)| count).sum::<u64>();
        }
        all
    };
    let before = questions().await;
    // The answer may or may not come in time.
    drop(try_once(&client, NAME).await);
    eventually("the slots are asked for", LONG, async || {
        questions().await > before
    })
    .await;
    eventually("the new master grants", LONG, async || {
        try_once(&client, NAME).await.is_ok_and(|got| got.is_some())
    })
    .await;
}

/// Both a client that has connections to the others, and one whose only connection was to the dead master.
#[tokio::test]
async fn while_a_master_is_down_its_clients_ask_the_others_once_a_second_on_open_connections() {
    let cluster = RedisCluster::with(3, 0, |options| {
        options.config("cluster-require-full-coverage", "no")
    });
    let cluster = cluster.await;
    let master = cluster.owner_of(NAME).await;
    let other = elsewhere(&cluster, master).await;
    let (held_nothing, holds) = (
        Client::connect(&cluster.url()).await.unwrap(),
        Client::connect(&cluster.url()).await.unwrap(),
    );
    let _guard = holds.get_lock(&other).lock().await.unwrap();
    for client in [&held_nothing, &holds] {
        let guard = client.get_lock(NAME).lock().await.unwrap();
        guard.unlock().await.unwrap();
    }
    cluster.node(master).kill();
    let others = || (0..3).filter(|node| *node != master);
    let count = async || {
        let (mut questions, mut connections) = (0, 0);
        for node in others().map(|node| cluster.node(node)) {
            questions += node.calls_of("cluster|slots").await;
            let received = node.info("stats", "total_connections_received").await;
            connections += received.unwrap().parse::<u64>().unwrap();
        }
        (questions, connections)
    };
    let locks = [held_nothing.get_lock(NAME), holds.get_lock(NAME)];
    let tries = async |count: u32| {
        for _ in 0..count {
            let [one, two] = locks
                .each_ref()
                .map(|lock| lock.try_lock(ms(500), Lease::Watchdog));
            let (one, two) = tokio::join!(one, two);
            assert!(one.is_err() && two.is_err());
        }
    };
    // The first moments: the questions come closer together.
    tries(6).await;
    let began = Instant::now();
    let before = count().await;
    let counted = count().await;
    tries(12).await;
    let after = count().await;
    let questions = after.0 - before.0;
    // The pauses are random, from two thirds of a second on.
    let most = 2 * (began.elapsed().as_secs() * 3 / 2 + 2);
    assert!((2..=most).contains(&questions), "{questions} questions");
    // Counting connects as well.
    let connections = (after.1 - counted.1).saturating_sub(counted.1 - before.1);
    assert!(connections <= 2, "{connections} connections");
}

/// A master that its peers do not hear any more, and its clients do: the others have replaced it, it answers CLUSTERDOWN,
/// and it still claims its slots. This needs a Redis before 7.2: later nodes make their peers forget, too.
async fn cut_off(cluster: &RedisCluster, master: usize) {
    let node = cluster.node(master);
    for (index, other) in cluster.nodes().iter().enumerate() {
        if index != master {
            let id: String = other.query(&["CLUSTER", "MYID"]).await;
            node.cmd(&["CLUSTER", "FORGET", &id]).await;
        }
    }
    let replica = cluster.replica_of(master);
    replica.cmd(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    let to = format!(":{}", replica.port());
    let witness = cluster.node((master + 1) % 3);
    eventually("the others know the new master", LONG, async || {
        let said = witness.try_cmd(&["GET", NAME]).await;
        said.is_err_and(|error| format!("{error:?}").contains(&to))
    })
    .await;
    eventually("the old one knows that it is alone", LONG, async || {
        let said = node.try_cmd(&["GET", NAME]).await;
        said.is_err_and(|error| format!("{error:?}").contains("down"))
    })
    .await;
}

#[tokio::test]
async fn a_master_that_was_cut_off_from_its_peers_is_left() {
    let cluster = RedisCluster::start().await;
    let master = cluster.owner_of(NAME).await;
    let client = Client::connect(&cluster.node(master).url()).await.unwrap();
    // Everything that it uses is at this node.
    let guard = try_once(&client, NAME).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    cut_off(&cluster, master).await;
    eventually("it finds the new master", LONG, async || {
        matches!(try_once(&client, NAME).await, Ok(Some(_)))
    })
    .await;
}

/// A waker may run any code: this one makes a try of its own.
struct Tries {
    client: Client,
    woken: AtomicBool,
    done: AtomicBool,
}

impl Wake for Tries {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        polled_once(&self.client);
        self.done.store(true, Ordering::SeqCst);
    }
}

fn polled_once(client: &Client) {
    let lock = client.get_lock("any");
    let mut trying = pin!(lock.try_lock(Duration::ZERO, Lease::Watchdog));
    let _ = trying
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
}

#[tokio::test]
async fn a_waker_may_make_a_try_when_a_node_leaves() {
    let cluster = RedisCluster::start().await;
    let master = cluster.owner_of(NAME).await;
    let other = elsewhere(&cluster, master).await;
    let server = cluster.server_of(&other).await;
    // The keeper has the slots asked for long before the attempt to connect ends.
    let builder = Client::builder(&server.url()).connect_timeout(LONG);
    let client = builder.command_timeout(LONG).connect().await.unwrap();
    let guard = try_once(&client, &other).await.unwrap().unwrap();
    cluster.node(master).freeze();
    let lock = client.get_lock(NAME);
    let mut trying = Box::pin(lock.try_lock(LONG * 2, Lease::Watchdog));
    let tries = Arc::new(Tries {
        client: client.clone(),
        woken: false.into(),
        done: false.into(),
    });
    let waker = Waker::from(Arc::clone(&tries));
    let first = trying.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(first.is_pending());
    cluster.replaced(master).await;
    eventually("the waker was called", LONG, async || {
        // Each connection that breaks has the slots asked for.
        server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        tries.woken.load(Ordering::SeqCst)
    })
    .await;
    let (tell, told) = std::sync::mpsc::channel();
    let (asked, runtime) = (client.clone(), tokio::runtime::Handle::current());
    std::thread::spawn(move || {
        let _on_it = runtime.enter();
        polled_once(&asked);
        tell.send(())
    });
    let returns = told.recv_timeout(LONG).is_ok();
    cluster.node(master).resume();
    if !returns || !tries.done.load(Ordering::SeqCst) {
        // What hangs cannot be dropped.
        std::mem::forget((client, guard, tries, trying));
        panic!("a call hangs: {}", !returns);
    }
    guard.unlock().await.unwrap();
}
