//! Readers and writers of both sides on one lock, each side in either role: a reader that dies, stands still, renews or
//! has a longer lease than another throws nobody out, no writer is in beside anybody, and a waiting writer gets in.
//!
//! A hold that was thrown out cannot be given back, so each release that must succeed shows that its hold was there to
//! the end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use watchlock::{Client, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;
use watchlock_support::worker::{Call, Reply, Worker};

use crate::{LATE, LONG, NO_POLL, SHORT};

const NAME: &str = "x";
const READ: &str = "read";
const WRITE: &str = "write";
/// Some renewals of either side.
const RENEWED: Duration = SHORT.saturating_mul(2);

/// One process, with Redisson or with this crate.
struct Side {
    worker: Worker,
    is_java: bool,
}

/// Two processes, the server, and a client that looks.
struct Scene {
    server: RedisServer,
    one: Side,
    other: Side,
    third: Client,
}

impl Side {
    fn request(&self, op: &str, kind: &str, owner: &str, lease: Option<Duration>) -> Call {
        let mut fields = json!({"owner": owner, "kind": kind, "name": NAME, "wait_ms": 0});
        if let Some(lease) = lease {
            fields["lease_ms"] = json!(u64::try_from(lease.as_millis()).unwrap());
        }
        self.worker.request(op, fields)
    }

    async fn ask(&self, op: &str, kind: &str, owner: &str, lease: Option<Duration>) -> Value {
        let reply = soon(self.request(op, kind, owner, lease)).await;
        let who = if self.is_java { "Java" } else { "Rust" };
        reply
            .outcome
            .unwrap_or_else(|error| panic!("{who}, {op} {kind} of {owner}: {error}"))
    }

    async fn lock(&self, kind: &str, owner: &str, lease: impl Into<Option<Duration>>) {
        self.ask("lock", kind, owner, lease.into()).await;
    }

    /// It had the lock to the end.
    async fn unlock(&self, kind: &str, owner: &str) {
        self.ask("unlock", kind, owner, None).await;
        assert!(self.worker.lost().is_empty(), "{:?}", self.worker.lost());
    }

    async fn unlock_refused(&self, kind: &str, owner: &str) {
        let reply = soon(self.request("unlock", kind, owner, None)).await;
        let error = reply.outcome.expect_err("it is not there any more");
        assert!(
            ["lost", "not_owner"].contains(&error.kind.as_str()),
            "{error}"
        );
    }

    async fn tries(&self, kind: &str, owner: &str) -> bool {
        self.ask("try_lock", kind, owner, None).await["acquired"] == true
    }
}

impl Scene {
    /// Each side in one role, and then in the other.
    async fn both_ways(scenario: impl AsyncFn(Scene)) {
        Self::with(Worker::java, scenario).await;
    }

    /// The same with processes that may be killed and frozen.
    async fn both_ways_alone(scenario: impl AsyncFn(Scene)) {
        Self::with(Worker::java_alone, scenario).await;
    }

    async fn with(java: fn() -> Option<Worker>, scenario: impl AsyncFn(Scene)) {
        for java_first in [true, false] {
            let server = RedisServer::start();
            let Some(java) = java() else { return };
            let sides = [(java, true), (Worker::rust(), false)];
            let sides = sides.map(|(worker, is_java)| Side { worker, is_java });
            for side in &sides {
                let opened = side.worker.open(&server.url(), Some(SHORT)).await;
                opened.expect("a client");
            }
            let [java, rust] = sides;
            let (one, other) = if java_first {
                (java, rust)
            } else {
                (rust, java)
            };
            let third = Client::connect(&server.url()).await.expect("a client");
            println!("Java first: {java_first}");
            scenario(Scene {
                server,
                one,
                other,
                third,
            })
            .await;
        }
    }

    /// No writer of either side, and no other client's, gets in while `time` passes.
    async fn nobody_writes(&self, time: Duration) {
        let begun = Instant::now();
        let write = self.third.get_read_write_lock(NAME).write_lock();
        while begun.elapsed() < time {
            let got = write.try_lock(Duration::ZERO, Lease::Watchdog).await;
            assert!(
                got.unwrap().is_none(),
                "a writer after {:?}",
                begun.elapsed()
            );
            for side in [&self.one, &self.other] {
                let got = side.worker.is_alive() && side.tries(WRITE, "nobody").await;
                assert!(!got, "a writer after {:?}", begun.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn reads_in_time(&self) {
        let read = self.third.get_read_write_lock(NAME).read_lock();
        soon(read.lock()).await.unwrap().unlock().await.unwrap();
    }

    async fn may_read(&self) -> bool {
        let read = self.third.get_read_write_lock(NAME).read_lock();
        let got = read.try_lock(Duration::ZERO, Lease::Watchdog).await;
        match got.expect("a clean answer") {
            Some(guard) => {
                guard.unlock().await.expect("our own hold");
                true
            }
            None => false,
        }
    }

    /// A writer waits from now on.
    async fn writer_waits(&self, side: &Side, owner: &str) -> Call {
        let before = self.listeners().await;
        let call = side.request("lock", WRITE, owner, None);
        eventually("it waits", LONG, async || self.listeners().await > before).await;
        call
    }

    async fn listeners(&self) -> u64 {
        self.server.subscribers("redisson_rwlock:{x}").await
    }

    /// Nothing is left except what ends by itself.
    async fn clean(&self) {
        eventually("no key is left", LONG, async || {
            self.server.keys().await.is_empty()
        })
        .await;
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it ends")
}

/// The writer got in, by then.
async fn gets_in(writer: Call, by: Duration) -> Reply {
    let reply = tokio::time::timeout(by, writer).await;
    let reply = reply.expect("the writer gets in");
    assert!(reply.outcome.is_ok(), "{:?}", reply.outcome);
    reply
}

#[tokio::test]
async fn readers_of_both_sides_overlap_and_renew_and_a_writer_gets_in_behind_the_last() {
    Scene::both_ways(async |scene| {
        let Scene { one, other, .. } = &scene;
        one.lock(READ, "a", None).await;
        other.lock(READ, "b", None).await;
        scene.nobody_writes(RENEWED).await;
        one.unlock(READ, "a").await;
        scene.nobody_writes(RENEWED).await;
        let writer = scene.writer_waits(one, "w").await;
        other.unlock(READ, "b").await;
        gets_in(writer, LATE).await;
        assert!(!scene.may_read().await, "it is alone");
        one.unlock(WRITE, "w").await;
        scene.clean().await;
    })
    .await;
}

/// Redisson gives a `1` to waiters that sleep, and keeps a `0` for one that will.
#[tokio::test]
async fn i5_a_writer_of_redisson_gets_in_behind_a_release_during_its_try() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let Some(java) = Worker::java() else { return };
    let opened = java.open(&proxy.url(), Some(SHORT)).await;
    opened.expect("a client");
    let java = Side {
        worker: java,
        is_java: true,
    };
    let rust = Client::connect(&server.url()).await.expect("a client");
    let lock = rust.get_read_write_lock(NAME);
    // From here on Java knows the script, and asks once for each try.
    assert!(java.tries(WRITE, "w").await);
    java.unlock(WRITE, "w").await;
    for writes in [false, true] {
        let guard = if writes {
            lock.write_lock()
                .lock_with_lease(NO_POLL)
                .await
                .unwrap()
                .into()
        } else {
            lock.read_lock().lock_with_lease(NO_POLL).await.unwrap()
        };
        let try_behind_the_subscription = Match::when(|command| {
            command.name().starts_with("EVAL")
                && command.args.iter().any(|arg| arg == NAME.as_bytes())
        });
        let delay = Fault::DelayReply(Duration::from_secs(1));
        let asked = proxy
            .inject(delay)
            .on(try_behind_the_subscription)
            .nth(2)
            .arm();
        let writer = java.request("lock", WRITE, "w", None);
        eventually("it asks again", LONG, async || asked.fired() == 1).await;
        guard.unlock().await.unwrap();
        gets_in(writer, LATE).await;
        java.unlock(WRITE, "w").await;
    }
}

#[tokio::test]
async fn a_reader_that_is_killed_throws_nobody_out_and_keeps_a_writer_waiting_for_its_lease() {
    Scene::both_ways_alone(async |scene| {
        let Scene { one, other, .. } = &scene;
        one.lock(READ, "dead", None).await;
        other.lock(READ, "alive", None).await;
        one.worker.kill();
        scene.nobody_writes(RENEWED).await;
        let writer = scene.writer_waits(other, "w").await;
        other.unlock(READ, "alive").await;
        gets_in(writer, LATE).await;
        other.unlock(WRITE, "w").await;
        scene.clean().await;
    })
    .await;
}

/// The dead reader's lease is still running when the last live one leaves.
#[tokio::test]
async fn a_release_behind_a_reader_that_was_just_killed_waits_for_that_lease() {
    Scene::both_ways_alone(async |scene| {
        let Scene { one, other, .. } = &scene;
        let (lease, asked) = (Duration::from_secs(4), Instant::now());
        one.lock(READ, "dead", lease).await;
        other.lock(READ, "alive", None).await;
        let writer = scene.writer_waits(other, "w").await;
        let killed = Instant::now();
        one.worker.kill();
        other.unlock(READ, "alive").await;
        let left = scene.server.pttl(NAME).await;
        let left = Duration::from_millis(u64::try_from(left).expect("the dead one's lease"));
        // The server counts in whole ms.
        let until = asked.elapsed() + left + Duration::from_millis(2);
        assert!(
            until >= lease,
            "its own lease, and no shorter one: {left:?}"
        );
        gets_in(writer, left + LATE).await;
        let waited = killed.elapsed();
        assert!(waited + Duration::from_millis(100) > left, "{waited:?}");
        other.unlock(WRITE, "w").await;
        scene.clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_short_lease_and_a_long_one_end_each_for_itself() {
    Scene::both_ways(async |scene| {
        let Scene { one, other, .. } = &scene;
        let (short, long) = (Duration::from_millis(700), Duration::from_secs(15));
        for short_first in [true, false] {
            if short_first {
                one.lock(READ, "short", short).await;
                other.lock(READ, "long", long).await;
            } else {
                other.lock(READ, "long", long).await;
                one.lock(READ, "short", short).await;
            }
            scene.nobody_writes(short * 4).await;
            if one.is_java {
                // It does not know; the lock is there, and so is its field.
                one.ask("unlock", READ, "short", None).await;
            } else {
                one.unlock_refused(READ, "short").await;
            }
            scene.nobody_writes(short).await;
            let writer = scene.writer_waits(one, "w").await;
            other.unlock(READ, "long").await;
            gets_in(writer, LATE).await;
            one.ask("unlock", WRITE, "w", None).await;
        }
        scene.clean().await;
    })
    .await;
}

/// Redisson's renewal sets the lease of the whole lock to its own.
#[tokio::test]
async fn renewals_of_a_short_lease_cut_no_long_one_short() {
    Scene::both_ways_alone(async |scene| {
        let Scene { one, other, .. } = &scene;
        other.lock(READ, "long", Duration::from_secs(40)).await;
        one.lock(READ, "short", None).await;
        scene.nobody_writes(RENEWED).await;
        one.worker.kill();
        scene.nobody_writes(RENEWED).await;
        let writer = scene.writer_waits(other, "w").await;
        other.unlock(READ, "long").await;
        gets_in(writer, LATE).await;
        other.unlock(WRITE, "w").await;
        scene.clean().await;
    })
    .await;
}

#[tokio::test]
async fn releases_of_one_side_throw_no_reader_of_the_other_out() {
    Scene::both_ways(async |scene| {
        let Scene { one, other, .. } = &scene;
        for lease in [None, Some(Duration::from_secs(60))] {
            other.lock(READ, "stays", lease).await;
            for round in 0..10 {
                let owner = format!("goes-{}", round % 3);
                one.lock(READ, &owner, None).await;
                one.lock(READ, &owner, lease).await;
                one.unlock(READ, &owner).await;
                scene.nobody_writes(Duration::from_millis(1)).await;
                one.unlock(READ, &owner).await;
                scene.nobody_writes(Duration::from_millis(1)).await;
            }
            other.unlock(READ, "stays").await;
        }
        scene.clean().await;
    })
    .await;
}

#[tokio::test]
async fn readers_get_in_when_the_lease_of_a_killed_writer_is_over_and_not_before() {
    Scene::both_ways_alone(async |scene| {
        let Scene { one, other, .. } = &scene;
        one.lock(WRITE, "dead", None).await;
        let readers = ["a", "b"].map(|owner| other.request("lock", READ, owner, None));
        assert!(!scene.may_read().await);
        one.worker.kill();
        let killed = Instant::now();
        let left = scene.server.pttl(NAME).await;
        let left = Duration::from_millis(u64::try_from(left).expect("its lease"));
        for reader in readers {
            let reply = soon(reader).await;
            reply.outcome.expect("the lock");
            let waited = killed.elapsed();
            assert!(waited + Duration::from_millis(100) > left, "{waited:?}");
            assert!(waited < left + LATE, "{waited:?}");
        }
        scene.nobody_writes(Duration::from_millis(100)).await;
        other.unlock(READ, "a").await;
        other.unlock(READ, "b").await;
        scene.clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_writer_that_is_killed_while_it_waits_keeps_nobody_out() {
    Scene::both_ways_alone(async |scene| {
        let Scene { one, other, .. } = &scene;
        other.lock(READ, "a", None).await;
        let waits = scene.writer_waits(one, "dead").await;
        one.worker.kill();
        drop(waits);
        // By the end of its note, if it left one.
        scene.reads_in_time().await;
        scene.nobody_writes(Duration::from_millis(100)).await;
        let writer = scene.writer_waits(other, "w").await;
        other.unlock(READ, "a").await;
        gets_in(writer, LATE).await;
        other.unlock(WRITE, "w").await;
        scene.clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_writer_that_goes_on_reading_lets_readers_of_the_other_side_in_and_no_writer() {
    Scene::both_ways(async |scene| {
        let Scene { one, other, .. } = &scene;
        one.lock(WRITE, "a", None).await;
        one.lock(READ, "a", None).await;
        assert!(!other.tries(READ, "b").await && !scene.may_read().await);
        let reader = other.request("lock", READ, "b", None);
        one.unlock(WRITE, "a").await;
        // Redisson wakes nobody then: ours polls, and Redisson's own waiter comes at the end of the lease that it read.
        soon(reader).await.outcome.expect("the lock");
        scene.nobody_writes(RENEWED).await;
        one.unlock(READ, "a").await;
        scene.nobody_writes(SHORT).await;
        let writer = scene.writer_waits(one, "w").await;
        other.unlock(READ, "b").await;
        gets_in(writer, LATE).await;
        one.unlock(WRITE, "w").await;
        scene.clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_stood_still_for_longer_than_its_lease_harms_no_writer() {
    Scene::both_ways_alone(async |scene| {
        let Scene { one, other, .. } = &scene;
        one.lock(READ, "frozen", None).await;
        let writer = scene.writer_waits(other, "w").await;
        one.worker.freeze();
        gets_in(writer, SHORT + LATE).await;
        one.worker.resume();
        // Long enough for its plan.
        let begun = Instant::now();
        while begun.elapsed() < RENEWED {
            assert!(!scene.may_read().await, "beside a writer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        one.unlock_refused(READ, "frozen").await;
        assert!(!scene.may_read().await, "beside a writer");
        other.unlock(WRITE, "w").await;
        scene.clean().await;
    })
    .await;
}
