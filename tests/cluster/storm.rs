//! Everything at once: clients of every kind of lock, while slots move and masters fail according to a seed.
//!
//! `CLUSTER_SECONDS` (6) is the length, `CLUSTER_SEED` selects the storm: a failure prints its seed. Moving a slot, or
//! handing a master's place over by agreement, loses nothing, so then two may never be in at once. A master that is
//! killed or frozen may take with it a grant that its replica had not received: the test prints how often two were in;
//! that each of them was notified of its loss in time is asserted elsewhere.

use std::time::Duration;

use watchlock::{Backoff, Client, ClientBuilder, Lease, Lock};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;

use crate::common::{LONG, ms};
use crate::scene::{Load, Seen};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A hold that a stale replica brings back stays for a lease.
const LEASE: Duration = Duration::from_secs(6);
/// After it, the places of each client that came back in the fair queue stay for 15 s.
const STALE: Duration = Duration::from_secs(6 + 4 * 15);

struct Storm {
    cluster: RedisCluster,
    /// The last one comes when the others are gone.
    clients: Vec<Client>,
    loads: Vec<(String, Load)>,
    rng: fastrand::Rng,
    lasts: Duration,
}

impl Storm {
    async fn begin() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let seed = number("CLUSTER_SEED").unwrap_or_else(|| fastrand::u64(..));
        println!("CLUSTER_SEED={seed}");
        let cluster = RedisCluster::start().await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            let builder = ClientBuilder::cluster(cluster.urls()).unavailable_after(LONG);
            let builder = builder.watchdog_lease(LEASE);
            let builder = builder.backoff(Backoff::new().cap(ms(500)));
            let builder = builder.command_timeout(Duration::from_secs(10));
            clients.push(builder.connect().await.expect("a client"));
        }
        let loads = NAMES.iter().enumerate().map(|(kind, name)| {
            let locks = clients[..3].iter().flat_map(|client| {
                let lock = |client| lock(kind, client, name);
                [lock(client), lock(client)]
            });
            ((*name).to_owned(), Load::start(locks.collect()))
        });
        Self {
            loads: loads.collect(),
            cluster,
            clients,
            rng: fastrand::Rng::with_seed(seed),
            lasts: Duration::from_secs(number("CLUSTER_SECONDS").unwrap_or(6)),
        }
    }

    /// Moves the slot of one of the names, with a pause half-way.
    async fn move_a_slot(&mut self) {
        let name = NAMES[self.rng.usize(..NAMES.len())];
        let half_way = ms(self.rng.u64(0..300));
        let step = self.rng.usize(1..3);
        let slot = self.cluster.slot_of(name).await;
        let Some(from) = self.cluster.owner(slot).await else {
            return;
        };
        let masters = self.cluster.present_masters().await;
        let Some(place) = masters.iter().position(|master| *master == from) else {
            return;
        };
        let to = masters[(place + step) % masters.len()];
        if to == from {
            return;
        }
        self.cluster.begin_move(slot, to).await;
        tokio::time::sleep(half_way).await;
        self.cluster.move_keys(slot, to).await;
        self.cluster.finish_move(slot, to).await;
    }

    /// Everybody gets in again, and leaves nothing behind.
    async fn end(mut self) -> Vec<(String, Seen)> {
        let mut all = Vec::new();
        for (name, load) in self.loads {
            all.push((name, load.stop_within(STALE).await));
        }
        let last = self.clients.pop().expect("four of them");
        for client in self.clients {
            let report = client.shutdown(Duration::from_secs(10)).await;
            assert!(report.is_clean(), "{report:?}");
        }
        // Places that a stale replica brought back go when somebody asks after their time.
        eventually("nothing is left", STALE, async || {
            for (kind, name) in NAMES.iter().enumerate() {
                let guard = lock(kind, &last, name)
                    .try_lock(STALE, Lease::Watchdog)
                    .await;
                let guard = guard.expect("it is asked").expect("it is free");
                guard.unlock().await.expect("it is ours");
            }
            let mut keys = self.cluster.keys().await;
            keys.retain(|key| !key.starts_with("redisson_lock_token:"));
            println!("left: {keys:?}");
            keys.is_empty()
        })
        .await;
        all
    }
}

fn lock(kind: usize, client: &Client, name: &str) -> Box<dyn Lock> {
    match kind {
        0 => Box::new(client.get_lock(name)),
        1 => Box::new(client.get_simple_lock(name)),
        2 => Box::new(client.get_spin_lock(name)),
        3 => Box::new(client.get_fenced_lock(name)),
        4 => Box::new(client.get_fair_lock(name)),
        _ => Box::new(client.get_read_write_lock(name).write_lock()),
    }
}

#[tokio::test]
async fn slots_that_move_and_masters_that_agree_lose_nothing() {
    let mut storm = Storm::begin().await;
    let end = tokio::time::Instant::now() + storm.lasts;
    while tokio::time::Instant::now() < end {
        if storm.rng.u32(..4) > 0 {
            storm.move_a_slot().await;
            continue;
        }
        // A replica that has not heard of a move yet would take the slot back, without its keys.
        storm.cluster.settled().await;
        let (_, replica) = storm.cluster.pair(storm.rng.usize(..3)).await;
        storm.cluster.fail_over(replica).await;
        storm.cluster.settled().await;
    }
    for (name, seen) in storm.end().await {
        assert_eq!((seen.overlaps, seen.errors), (0, Vec::new()), "{name}");
        assert!(seen.sections > 0, "{name}");
    }
}

#[tokio::test]
async fn masters_that_die_or_stand_still_leave_no_lock_behind() {
    let mut storm = Storm::begin().await;
    let end = tokio::time::Instant::now() + storm.lasts;
    let mut both = 0;
    while tokio::time::Instant::now() < end {
        storm.move_a_slot().await;
        storm.cluster.settled().await;
        let (master, replica) = storm.cluster.pair(storm.rng.usize(..3)).await;
        let node = storm.cluster.node(master);
        if storm.rng.bool() {
            node.freeze();
            storm.cluster.promoted(replica).await;
            node.resume();
        } else {
            node.kill();
            storm.cluster.promoted(replica).await;
            node.launch();
        }
        storm.cluster.settled().await;
        tokio::time::sleep(ms(300)).await;
    }
    for (name, seen) in storm.end().await {
        both += seen.overlaps;
        assert!(seen.sections > 0, "{name}");
        let lost = |error: &String| error.contains("Lost") || error.contains("Unavailable");
        assert!(seen.errors.iter().all(lost), "{name}: {:?}", seen.errors);
    }
    println!("two were in {both} times");
}
