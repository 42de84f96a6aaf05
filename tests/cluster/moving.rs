//! Slots that move from node to node while their locks are in use.

use std::time::{Duration, Instant};

use watchlock::{Backoff, Client, Lock, LockGuard, LostReason, Publish};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, channel, ms, script, soon, try_once};
use crate::failing::elsewhere;
use crate::scene::Load;

pub(crate) const NAME: &str = "job";

/// Moves the slot of [`NAME`] to and fro, with a pause in which it stays half-way.
pub(crate) async fn to_and_fro(cluster: &RedisCluster, times: usize, half_way: Duration) {
    let slot = cluster.slot_of(NAME).await;
    for _ in 0..times {
        let to = (cluster.owner(slot).await.expect("an owner") + 1) % 3;
        cluster.begin_move(slot, to).await;
        tokio::time::sleep(half_way).await;
        cluster.move_keys(slot, to).await;
        tokio::time::sleep(half_way).await;
        cluster.move_keys(slot, to).await;
        cluster.finish_move(slot, to).await;
        tokio::time::sleep(half_way).await;
    }
}

/// Two tasks of each of two clients, so that some wait here and some elsewhere.
async fn locks_of(
    cluster: &RedisCluster,
    lock: impl Fn(&Client) -> Box<dyn Lock>,
) -> (Vec<Client>, Vec<Box<dyn Lock>>) {
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(Client::connect(&cluster.url()).await.unwrap());
    }
    let locks = clients
        .iter()
        .flat_map(|client| [lock(client), lock(client)]);
    let locks = locks.collect();
    (clients, locks)
}

async fn nothing_fails_while_a_slot_moves(lock: impl Fn(&Client) -> Box<dyn Lock>) {
    let cluster = RedisCluster::masters().await;
    let (_clients, locks) = locks_of(&cluster, lock).await;
    let load = Load::start(locks);
    to_and_fro(&cluster, 6, ms(150)).await;
    let seen = load.stop().await;
    assert_eq!(seen.errors, Vec::<String>::new());
    assert_eq!(seen.overlaps, 0);
    assert!(seen.sections > 20, "{seen:?}");
    // A poll is never later than a second.
    assert!(seen.longest < Duration::from_secs(5), "{seen:?}");
}

#[tokio::test]
async fn a_plain_lock_works_while_its_slot_moves() {
    nothing_fails_while_a_slot_moves(|client| Box::new(client.get_lock(NAME))).await;
}

#[tokio::test]
async fn a_simple_lock_works_while_its_slot_moves() {
    nothing_fails_while_a_slot_moves(|client| Box::new(client.get_simple_lock(NAME))).await;
}

#[tokio::test]
async fn a_spin_lock_works_while_its_slot_moves() {
    nothing_fails_while_a_slot_moves(|client| Box::new(client.get_spin_lock(NAME))).await;
}

#[tokio::test]
async fn a_waiter_whose_slot_moved_is_woken_at_the_new_node() {
    let cluster = RedisCluster::masters().await;
    let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = || Client::builder(&cluster.url()).backoff(minute);
    let holder = builder().connect().await.unwrap();
    let waiter = builder().connect().await.unwrap();
    let guard = holder.get_lock(NAME).lock().await.unwrap();
    let lock = waiter.get_lock(NAME);
    let waits = tokio::spawn(async move { lock.lock().await });
    let listens = async |node: usize| {
        eventually("somebody listens", LONG, async || {
            cluster.node(node).subscribers(&channel(NAME)).await > 0
        })
        .await;
    };
    let slot = cluster.slot_of(NAME).await;
    let from = cluster.owner(slot).await.unwrap();
    listens(from).await;
    cluster.move_slot(slot, (from + 1) % 3).await;
    // No poll and no command of the waiter notices it, only the end of its subscription.
    listens((from + 1) % 3).await;
    nothing_listens(&cluster, from).await;
    guard.unlock().await.unwrap();
    soon(waits).await.unwrap().unwrap().unlock().await.unwrap();
    for node in 0..3 {
        nothing_listens(&cluster, node).await;
    }
}

/// Waits until no connection of a node speaks the protocol in which waiters listen; Redis shows it from 7.0 on.
async fn nothing_listens(cluster: &RedisCluster, node: usize) {
    eventually("the connection has ended", LONG, async || {
        let clients: String = cluster.node(node).query(&["CLIENT", "LIST"]).await;
        !clients.contains("resp=3")
    })
    .await;
}

/// A classic channel belongs to no slot, so the node does not end the subscription by itself.
#[tokio::test]
async fn nobody_listens_any_more_where_a_slot_was() {
    let cluster = RedisCluster::masters().await;
    let builder = || Client::builder(&cluster.url()).publish(Publish::Classic);
    let holder = builder().connect().await.unwrap();
    let waiter = builder().connect().await.unwrap();
    let slot = cluster.slot_of(NAME).await;
    let from = cluster.owner(slot).await.unwrap();
    // Another name at the same node, whose waiter needs the connection after the slot has moved.
    let mut stays = String::new();
    for number in 0..1_000 {
        stays = format!("stays:{number}");
        let its_slot = cluster.slot_of(&stays).await;
        if its_slot != slot && cluster.owner(its_slot).await == Some(from) {
            break;
        }
    }
    let listen = async |node: usize, name: &str, how_many: u64| {
        eventually("so many listen there", LONG, async || {
            cluster.node(node).subscribers(&channel(name)).await == how_many
        })
        .await;
    };
    let mut all = Vec::new();
    for name in [NAME, &stays] {
        let guard = holder.get_lock(name).lock().await.unwrap();
        let lock = waiter.get_lock(name);
        all.push((guard, tokio::spawn(async move { lock.lock().await })));
        listen(from, name, 1).await;
    }
    cluster.move_slot(slot, (from + 1) % 3).await;
    listen((from + 1) % 3, NAME, 1).await;
    listen(from, NAME, 0).await;
    listen(from, &stays, 1).await;
    for (guard, waits) in all {
        guard.unlock().await.unwrap();
        soon(waits).await.unwrap().unwrap().unlock().await.unwrap();
    }
}

#[tokio::test]
async fn no_reply_comes_to_another_caller_while_slots_move() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let waiter = Client::connect(&cluster.url()).await.unwrap();
    // One lock that moves with its slot, and others at the same nodes, whose callers know exactly what must come.
    let load = Load::start(vec![
        Box::new(client.get_lock(NAME)),
        Box::new(waiter.get_lock(NAME)),
    ]);
    let others = (0..16).map(|number| {
        let lock = client.get_lock(&format!("own:{number}"));
        tokio::spawn(async move {
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                assert!(!lock.is_locked().await.unwrap());
                let guard = lock.lock().await.unwrap();
                assert!(lock.is_locked().await.unwrap());
                guard.verify().await.unwrap();
                guard.unlock().await.unwrap();
            }
        })
    });
    let others: Vec<_> = others.collect();
    to_and_fro(&cluster, 12, ms(30)).await;
    for other in others {
        soon(other).await.expect("every reply was its own");
    }
    let seen = load.stop().await;
    assert_eq!((seen.overlaps, seen.errors), (0, Vec::new()));
}

#[tokio::test]
async fn a_hold_is_kept_alive_through_a_slow_move() {
    let cluster = RedisCluster::masters().await;
    let builder = Client::builder(&cluster.url()).watchdog_lease(SHORT);
    let client = builder.connect().await.unwrap();
    let guard = client.get_lock(NAME).lock().await.unwrap();
    to_and_fro(&cluster, 2, SHORT).await;
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    assert!(cluster.keys().await.is_empty());
}

/// While a slot moves, no node may have all keys of a lock, and a script with several keys is refused.
async fn every_hold_is_kept_alive_though_its_keys_part(moves_first: impl Fn(&str) -> bool) {
    let cluster = RedisCluster::masters().await;
    let builder = Client::builder(&cluster.url()).watchdog_lease(SHORT);
    let client = builder.connect().await.unwrap();
    let name = |kind: &str| format!("{{{NAME}}}:{kind}");
    let shared = |kind: &str| client.get_read_write_lock(&name(kind));
    let written = shared("downgraded").write_lock().lock().await.unwrap();
    let guards = [
        client.get_lock(&name("plain")).lock().await.unwrap(),
        client.get_fair_lock(&name("fair")).lock().await.unwrap(),
        shared("read").read_lock().lock().await.unwrap(),
        shared("write").write_lock().lock().await.unwrap().into(),
        written.downgrade().await.unwrap(),
    ];
    let fenced = client.get_fenced_lock(&name("fenced"));
    let fenced = fenced.lock().await.unwrap();
    let slot = cluster.slot_of(NAME).await;
    let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
    cluster.begin_move(slot, to).await;
    let keys = cluster.keys().await;
    assert!(keys.iter().any(|key| moves_first(key)), "{keys:?}");
    for key in keys.iter().filter(|key| moves_first(key)) {
        cluster.move_key(key, to).await;
    }
    let end = Instant::now() + SHORT * 3;
    while Instant::now() < end {
        for guard in &guards {
            assert!(guard.check().is_ok(), "{} is lost", guard.name());
        }
        fenced.check().unwrap();
        tokio::time::sleep(ms(20)).await;
    }
    cluster.move_keys(slot, to).await;
    cluster.finish_move(slot, to).await;
    for guard in guards {
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
    }
    fenced.verify().await.unwrap();
    fenced.unlock().await.unwrap();
}

#[tokio::test]
async fn every_hold_is_kept_alive_though_its_lock_stays_behind() {
    every_hold_is_kept_alive_though_its_keys_part(|key| {
        key.contains("rwlock_timeout") || key.contains("token")
    })
    .await;
}

#[tokio::test]
async fn every_hold_is_kept_alive_though_its_lock_goes_ahead() {
    every_hold_is_kept_alive_though_its_keys_part(|key| !key.contains("rwlock_timeout")).await;
}

/// A long lease is renewed by nobody, and no connection breaks: only the move says that there is something to ask.
#[tokio::test]
async fn t5_a_hold_that_did_not_move_with_its_slot_is_lost() {
    let cluster = RedisCluster::masters().await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let guard = client
        .get_lock(NAME)
        .lock_with_lease(LONG * 20)
        .await
        .unwrap();
    let slot = cluster.slot_of(NAME).await;
    let from = cluster.owner(slot).await.unwrap();
    let to = (from + 1) % 3;
    // The keeper is connected to the new node already; otherwise it would ask there for that reason.
    let mut number = 0;
    while cluster.owner_of(&format!("stays:{number}")).await != to {
        number += 1;
    }
    let stays = client.get_lock(&format!("stays:{number}"));
    let stays = stays.lock().await.unwrap();
    eventually("it is connected", LONG, async || {
        cluster.node(to).connections().await == 2
    })
    .await;
    cluster.begin_move(slot, to).await;
    cluster.node(from).cmd(&["DEL", NAME]).await;
    cluster.finish_move(slot, to).await;
    // A caller is redirected to the new node; the test does not wait for the keeper's own question after ten seconds.
    let other = client.get_lock(&format!("{{{NAME}}}:other"));
    assert!(!other.is_locked().await.unwrap());
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    assert!(guard.unlock().await.unwrap_err().is_lost());
    stays.unlock().await.unwrap();
}

/// Makes a server without slots a node, and begins to move a slot there.
async fn begin_move_to_empty(cluster: &RedisCluster, empty: &RedisServer, slot: u16) {
    let from = cluster.owner(slot).await.unwrap();
    let (slot, port) = (slot.to_string(), empty.port().to_string());
    let meet = ["CLUSTER", "MEET", "127.0.0.1", &port];
    cluster.node(from).cmd(&meet).await;
    eventually("it knows who has which slots", LONG, async || {
        let info: String = empty.query(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    })
    .await;
    let [source, target]: [String; 2] = [
        cluster.node(from).query(&["CLUSTER", "MYID"]).await,
        empty.query(&["CLUSTER", "MYID"]).await,
    ];
    let import = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source];
    let migrate = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target];
    for (node, command) in [(empty, import), (cluster.node(from), migrate)] {
        eventually("they know each other", LONG, async || {
            node.try_cmd(&command).await.is_ok()
        })
        .await;
    }
}

/// A node without slots is in no answer about slots.
#[tokio::test]
async fn a_single_try_at_a_node_without_slots_outlives_a_question_about_slots() {
    let cluster = RedisCluster::masters().await;
    let empty = RedisServer::options().config("cluster-enabled", "yes");
    let empty = empty.start();
    let slot = cluster.slot_of(NAME).await;
    begin_move_to_empty(&cluster, &empty, slot).await;
    let proxy = Proxy::to(&empty);
    let (announced, leads_to) = (empty.port(), proxy.port());
    let client = Client::builder(&cluster.url())
        .command_timeout(LONG)
        .node_addresses(move |host, port| {
            let port = if port == announced { leads_to } else { port };
            (host.to_owned(), port)
        });
    let client = client.connect().await.unwrap();
    // It is still being connected to when the client asks for the slots.
    proxy.hold(Direction::Replies);
    let trying = tokio::spawn({
        let client = client.clone();
        async move { try_once(&client, NAME).await }
    });
    eventually("it is redirected", LONG, async || proxy.accepted() == 1).await;
    // Once it asks for the second time, it has used the first answer.
    for name in ["moved", "moved too"] {
        let other = cluster.slot_of(name).await;
        let to = (cluster.owner(other).await.unwrap() + 1) % 3;
        cluster.move_slot(other, to).await;
        let asked = async || {
            let mut asked = 0;
            for node in cluster.nodes() {
                asked += node.calls_of("cluster|slots").await;
            }
            asked
        };
        let before = asked().await;
        assert!(!client.get_lock(name).is_locked().await.unwrap());
        eventually("it asks for the slots", LONG, async || {
            asked().await > before
        })
        .await;
    }
    proxy.heal();
    let guard = soon(trying).await.unwrap().unwrap();
    guard.expect("it is free").unlock().await.unwrap();
}

/// A client whose replies of one node can be held up, with a lock in the slot of [`NAME`] there, and one at another node.
struct HeldUp {
    cluster: RedisCluster,
    from: usize,
    proxy: Proxy,
    client: Client,
    earlier: LockGuard,
    there: LockGuard,
}

impl HeldUp {
    async fn new() -> Self {
        let cluster = RedisCluster::masters().await;
        let from = cluster.owner_of(NAME).await;
        let proxy = Proxy::to(cluster.node(from));
        let (announced, leads_to) = (cluster.node(from).port(), proxy.port());
        let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
        let client = Client::builder(&cluster.url())
            .command_timeout(LONG * 2)
            .backoff(minute)
            .node_addresses(move |host, port| {
                let port = if port == announced { leads_to } else { port };
                (host.to_owned(), port)
            });
        let client = client.connect().await.unwrap();
        let other = elsewhere(&cluster, from).await;
        let there = client.get_lock(&other).lock().await.unwrap();
        let earlier = client.get_lock(&format!("{{{NAME}}}:earlier"));
        let earlier = earlier.lock_with_lease(LEASE).await.unwrap();
        Self {
            cluster,
            from,
            proxy,
            client,
            earlier,
            there,
        }
    }

    fn node(&self) -> &RedisServer {
        self.cluster.node(self.from)
    }

    /// The slot moves to a node that has none of its keys, as after a fail-over to a replica that was behind. Waits until
    /// the keeper has verified what was held by then.
    async fn moves_without_keys(&self) {
        for key in self.node().keys().await {
            self.node().cmd(&["DEL", &key]).await;
        }
        let slot = self.cluster.slot_of(NAME).await;
        self.cluster.move_slot(slot, (self.from + 1) % 3).await;
        // From time to time the keeper asks for the slots. The node of the other lock answers.
        assert!(self.there.is_valid());
        assert_eq!(soon(self.earlier.lost()).await, LostReason::Missing);
    }
}

/// Nobody renews it, so only a question about it finds that it is missing.
const LEASE: Duration = LONG.saturating_mul(20);

#[tokio::test]
async fn t5_a_hold_that_is_granted_when_its_slot_has_moved_is_verified_at_the_new_node() {
    let scene = HeldUp::new().await;
    scene.proxy.hold(Direction::Replies);
    let lock = scene.client.get_lock(NAME);
    let late = tokio::spawn(async move { lock.lock_with_lease(LEASE).await });
    eventually("it has the lock", LONG, async || {
        scene.node().exists(NAME).await
    })
    .await;
    scene.moves_without_keys().await;
    scene.proxy.heal();
    let late = soon(late).await.unwrap().unwrap();
    let stranger = Client::connect(&scene.cluster.url()).await.unwrap();
    let theirs = try_once(&stranger, NAME).await.unwrap();
    let theirs = theirs.expect("its node knows of no other");
    assert_eq!(soon(late.lost()).await, LostReason::Missing);
    theirs.unlock().await.unwrap();
}

/// One try got them for all who waited.
#[tokio::test]
async fn t5_permits_that_are_granted_when_their_slot_has_moved_are_verified_at_the_new_node() {
    let scene = HeldUp::new().await;
    let stranger = Client::connect(&scene.cluster.url()).await.unwrap();
    let all = stranger.get_semaphore(NAME).with_permits(3);
    let all = all.acquire_many(3).await.unwrap();
    let late: Vec<_> = (0..3)
        .map(|_| {
            let of = scene.client.get_semaphore(NAME);
            tokio::spawn(async move { of.try_acquire(LONG * 2, LEASE).await })
        })
        .collect();
    eventually("all wait", LONG, async || {
        let channel = format!("redisson_sc:{{{NAME}}}");
        let listens = scene.node().subscribers(&channel).await > 0;
        listens && scene.client.stats().waiters == 3
    })
    .await;
    let acquire = Match::script(&script("permits/acquire.lua"));
    let late_reply = scene.proxy.inject(Fault::DelayReply(ms(5_000)));
    let late_reply = late_reply.on(acquire).arm();
    all.release().await.unwrap();
    eventually("they have the permits", LONG, async || {
        let free: Option<i64> = scene.node().query(&["GET", NAME]).await;
        late_reply.fired() == 1 && free == Some(0)
    })
    .await;
    scene.proxy.hold(Direction::Replies);
    scene.moves_without_keys().await;
    scene.proxy.heal();
    for late in late {
        let permit = soon(late).await.unwrap().unwrap().expect("it is granted");
        assert_eq!(soon(permit.lost()).await, LostReason::Missing);
    }
}
