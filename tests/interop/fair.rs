//! Java and Rust in one queue: the fair lock goes to the first that came, on either side, and to the next one when that
//! one died, gave up, or waited for long.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use watchlock::{Client, Error, Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;
use watchlock_support::worker::{Reply, Worker};

use crate::LONG;

const LINE: &str = "line";
const QUEUE: &str = "redisson_lock_queue:{line}";
const SCORES: &str = "redisson_lock_timeout:{line}";

struct Scene {
    server: RedisServer,
    java: Worker,
    rust: Client,
}

/// A waiter, on either side.
enum Waiter {
    Java(&'static str, JoinHandle<Reply>),
    Rust(JoinHandle<Result<LockGuard, Error>>),
}

impl Scene {
    async fn new() -> Option<Self> {
        Some(Self::with(Worker::java()?).await)
    }

    async fn with(java: Worker) -> Self {
        let server = RedisServer::start();
        java.open(&server.url(), None).await.expect("a client");
        let rust = Client::connect(&server.url()).await.expect("a client");
        Self { server, java, rust }
    }

    async fn queue(&self) -> Vec<String> {
        self.server.query(&["LRANGE", QUEUE, "0", "-1"]).await
    }

    async fn queued(&self, waiters: usize) {
        eventually("they queue", LONG, async || {
            self.queue().await.len() == waiters
        })
        .await;
    }

    async fn java_waits(&self, owner: &'static str) -> Waiter {
        let before = self.queue().await.len();
        let fields = json!({"owner": owner, "kind": "fair", "name": LINE});
        let waiting = tokio::spawn(self.java.request("lock", fields));
        self.queued(before + 1).await;
        Waiter::Java(owner, waiting)
    }

    async fn rust_waits(&self) -> Waiter {
        let before = self.queue().await.len();
        let lock = self.rust.get_fair_lock(LINE);
        let waiting = tokio::spawn(async move { lock.lock().await });
        self.queued(before + 1).await;
        Waiter::Rust(waiting)
    }

    async fn java(&self, op: &str, owner: &str, more: Value) -> Value {
        let mut fields = json!({"owner": owner, "kind": "fair", "name": LINE});
        for (field, value) in more.as_object().into_iter().flatten() {
            fields[field] = value.clone();
        }
        let answer = self.java.call(op, fields).await;
        answer.unwrap_or_else(|error| panic!("{op}: {error}"))
    }

    /// It is its turn: nobody behind it has the lock, and it gives it back.
    async fn serves(&self, waiter: Waiter, behind: &[Waiter]) {
        let got = tokio::time::timeout(LONG, async {
            match waiter {
                Waiter::Java(owner, waiting) => {
                    waiting.await.unwrap().outcome.expect("the lock");
                    Ok(owner)
                }
                Waiter::Rust(waiting) => Err(waiting.await.unwrap().expect("the lock")),
            }
        });
        let got = got.await.expect("it is served");
        for waiter in behind {
            assert!(!waiter.is_served(), "overtaken");
        }
        match got {
            Ok(owner) => drop(self.java("unlock", owner, Value::Null).await),
            Err(guard) => guard.unlock().await.expect("our own lock"),
        }
    }

    /// How long Redisson still keeps a place.
    async fn kept_for(&self, place: &str) -> Duration {
        let score: String = self.server.query(&["ZSCORE", SCORES, place]).await;
        let score: u64 = score.parse().expect("a whole number");
        Duration::from_millis(score.saturating_sub(self.now_ms().await))
    }

    async fn now_ms(&self) -> u64 {
        let time: Vec<String> = self.server.query(&["TIME"]).await;
        time[0].parse::<u64>().unwrap() * 1000
    }

    async fn keep_until(&self, place: &str, ms: u64) {
        let score = ms.to_string();
        self.server.cmd(&["ZADD", SCORES, &score, place]).await;
    }

    async fn nothing_is_left(&self) {
        eventually("no key is left", LONG, async || {
            self.server.keys().await.is_empty()
        })
        .await;
    }
}

impl Waiter {
    fn is_served(&self) -> bool {
        match self {
            Self::Java(_, waiting) => waiting.is_finished(),
            Self::Rust(waiting) => waiting.is_finished(),
        }
    }
}

#[tokio::test]
async fn waiters_of_java_and_of_rust_come_in_the_order_of_their_arrival() {
    let Some(scene) = Scene::new().await else {
        return;
    };
    for rust_holds in [true, false] {
        let held = if rust_holds {
            Some(scene.rust.get_fair_lock(LINE).lock().await.unwrap())
        } else {
            scene.java("lock", "a", Value::Null).await;
            None
        };
        let mut line = std::collections::VecDeque::new();
        for (java, owner) in [
            (true, "b"),
            (false, ""),
            (false, ""),
            (true, "c"),
            (true, "d"),
            (false, ""),
        ] {
            let waiter = if java {
                scene.java_waits(owner).await
            } else {
                scene.rust_waits().await
            };
            line.push_back(waiter);
        }
        match held {
            Some(guard) => guard.unlock().await.unwrap(),
            None => drop(scene.java("unlock", "a", Value::Null).await),
        }
        while let Some(waiter) = line.pop_front() {
            scene.serves(waiter, line.make_contiguous()).await;
        }
        scene.nothing_is_left().await;
    }
}

#[tokio::test]
async fn waiters_of_two_processes_of_each_side_come_in_the_order_of_their_arrival() {
    let server = RedisServer::start();
    let (Some(one), Some(other)) = (Worker::java(), Worker::java()) else {
        return;
    };
    let workers = [one, Worker::rust(), other, Worker::rust()];
    for worker in &workers {
        worker.open(&server.url(), None).await.expect("a client");
    }
    let of = |owner: usize| json!({"owner": owner.to_string(), "kind": "fair", "name": LINE});
    workers[0].call("lock", of(99)).await.expect("it is free");
    let mut line = Vec::new();
    for owner in 0..16 {
        let worker = &workers[(owner + owner / 3) % workers.len()];
        line.push((owner, worker, worker.request("lock", of(owner))));
        eventually("it queues", LONG, async || {
            let queue: Vec<String> = server.query(&["LRANGE", QUEUE, "0", "-1"]).await;
            queue.len() == owner + 1
        })
        .await;
    }
    workers[0].call("unlock", of(99)).await.expect("its own");
    let mut left_at = 0;
    for (owner, worker, call) in line {
        let reply = tokio::time::timeout(LONG, call).await.expect("its turn");
        reply.outcome.expect("the lock");
        assert!(reply.t_ret > left_at, "waiter {owner} comes in its turn");
        let unlocked = worker.request("unlock", of(owner)).await;
        unlocked.outcome.expect("its own lock");
        left_at = unlocked.t_inv;
    }
}

#[tokio::test]
async fn one_try_of_either_side_overtakes_nobody_of_the_other() {
    let Some(scene) = Scene::new().await else {
        return;
    };
    let held = scene.rust.get_fair_lock(LINE).lock().await.unwrap();
    let java = scene.java_waits("b").await;
    let other = Client::connect(&scene.server.url()).await.unwrap();
    let once = async || {
        let lock = other.get_fair_lock(LINE);
        lock.try_lock(Duration::ZERO, Lease::Watchdog)
            .await
            .unwrap()
    };
    assert!(once().await.is_none());
    held.unlock().await.unwrap();
    scene.serves(java, &[]).await;
    scene.java("lock", "b", Value::Null).await;
    let rust = scene.rust_waits().await;
    scene.server.cmd(&["DEL", LINE]).await;
    let tried = scene.java("try_lock", "c", json!({"wait_ms": 0})).await;
    assert_eq!(tried["acquired"], false);
    scene.serves(rust, &[]).await;
}

/// Java's own waiters would lose their places, and wake up late.
#[tokio::test]
async fn a_waiter_that_gives_up_on_either_side_lets_the_next_one_of_the_other_in() {
    let Some(scene) = Scene::new().await else {
        return;
    };
    let held = scene.rust.get_fair_lock(LINE).lock().await.unwrap();
    let Waiter::Rust(gives_up) = scene.rust_waits().await else {
        unreachable!("it is Rust's");
    };
    let fields = json!({"owner": "b", "kind": "fair", "name": LINE, "wait_ms": 1_500});
    let java = tokio::spawn(scene.java.request("try_lock", fields));
    scene.queued(2).await;
    let last = scene.rust_waits().await;
    gives_up.abort();
    let gave_up = java.await.unwrap().outcome.expect("an answer");
    assert_eq!(gave_up["acquired"], false);
    scene.queued(1).await;
    held.unlock().await.unwrap();
    scene.serves(last, &[]).await;
    scene.nothing_is_left().await;
}

/// Its client cannot say that it is dead, so its score decides.
#[tokio::test]
async fn a_waiter_of_java_that_died_is_waited_for_until_its_time_is_over() {
    let Some(java) = Worker::java_alone() else {
        return;
    };
    let scene = Scene::with(java).await;
    let held = scene.rust.get_fair_lock(LINE).lock().await.unwrap();
    let _dead = scene.java_waits("b").await;
    let rust = scene.rust_waits().await;
    scene.java.kill();
    let head = scene.queue().await.remove(0);
    scene.keep_until(&head, scene.now_ms().await + 3_000).await;
    held.unlock().await.unwrap();
    let released = Instant::now();
    scene.serves(rust, &[]).await;
    let waited = released.elapsed();
    assert!(waited > Duration::from_millis(1_500), "{waited:?}");
    assert!(waited < Duration::from_secs(8), "{waited:?}");
    scene.nothing_is_left().await;
}

/// No client of ours is left that would skip it.
#[tokio::test]
async fn waiters_of_rust_that_died_keep_java_waiting_for_20_s() {
    let Some(scene) = Scene::new().await else {
        return;
    };
    let held = scene.rust.get_fair_lock(LINE).lock().await.unwrap();
    let rust = Worker::rust();
    rust.open(&scene.server.url(), None)
        .await
        .expect("a client");
    let mut dead = Vec::new();
    for owner in ["a", "b", "c"] {
        let fields = json!({"owner": owner, "kind": "fair", "name": LINE});
        dead.push(rust.request("lock", fields));
        scene.queued(dead.len()).await;
    }
    let java = scene.java_waits("b").await;
    let channel = format!("redisson_lock__channel:{{line}}:{}", scene.queue().await[0]);
    rust.kill();
    eventually("its connections are gone", LONG, async || {
        let heard: (String, u64) = scene.server.query(&["PUBSUB", "NUMSUB", &channel]).await;
        heard.1 == 0
    })
    .await;
    let killed = Instant::now();
    held.unlock().await.unwrap();
    eventually("Java is served", 2 * LONG, async || java.is_served()).await;
    let waited = killed.elapsed();
    assert!(waited < Duration::from_secs(22), "{waited:?}");
    scene.serves(java, &[]).await;
    scene.nothing_is_left().await;
}

/// Redisson takes a waiter out of the queue only after an answer. A wait of 0 gives it a place for five minutes.
#[tokio::test]
async fn a_try_of_java_that_was_not_answered_keeps_a_place_until_its_time_is_over() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let Some(java) = Worker::java() else { return };
    java.open(&proxy.url(), None).await.expect("a client");
    let rust = Client::connect(&server.url()).await.expect("a client");
    let scene = Scene { server, java, rust };
    // The lease of the lock, 30 s, is added.
    for (wait_ms, seconds) in [(0, 290..=330), (400, 0..=30)] {
        let held = scene.rust.get_fair_lock(LINE).lock().await.unwrap();
        // From here on the server knows the script.
        let busy = scene.java("try_lock", "b", json!({"wait_ms": 0})).await;
        assert_eq!(busy["acquired"], false);
        proxy.hold(Direction::Replies);
        let fields = json!({"owner": "b", "kind": "fair", "name": LINE, "wait_ms": wait_ms});
        let tried = tokio::spawn(scene.java.request("try_lock", fields));
        scene.queued(1).await;
        tried.await.unwrap().outcome.expect_err("no answer");
        assert_eq!(scene.queue().await.len(), 1, "it gave its place up");
        let kept = scene.kept_for(&scene.queue().await[0]).await;
        assert!(seconds.contains(&kept.as_secs()), "{kept:?}");
        scene.keep_until(&scene.queue().await[0], 1).await;
        proxy.heal();
        held.unlock().await.unwrap();
        let next = scene.rust.get_fair_lock(LINE).lock().await.unwrap();
        next.unlock().await.unwrap();
        scene.nothing_is_left().await;
    }
}

/// Redisson's scripts drop a head whose score is over, and its waiter goes to the tail.
#[tokio::test]
async fn a_waiter_of_rust_keeps_its_place_though_java_dropped_it() {
    let Some(scene) = Scene::new().await else {
        return;
    };
    let held = scene.rust.get_fair_lock(LINE).lock().await.unwrap();
    let first = scene.rust_waits().await;
    let second = scene.rust_waits().await;
    for place in scene.queue().await {
        scene.keep_until(&place, 1).await;
    }
    let before = scene.queue().await;
    // It drops both, and queues.
    let fields = json!({"owner": "b", "kind": "fair", "name": LINE});
    let java = Waiter::Java("b", tokio::spawn(scene.java.request("lock", fields)));
    eventually("they are put back, ahead of Java's", LONG, async || {
        let queue = scene.queue().await;
        queue.len() == 3 && queue[..2] == before
    })
    .await;
    held.unlock().await.unwrap();
    scene.serves(first, &[]).await;
    scene.serves(second, &[]).await;
    scene.serves(java, &[]).await;
    scene.nothing_is_left().await;
}

/// Each side's release wakes a waiter of the other at once: nobody polls here, and a lease is 30 s.
#[tokio::test]
async fn a_release_wakes_the_head_on_the_other_side() {
    let Some(scene) = Scene::new().await else {
        return;
    };
    for _ in 0..3 {
        let held = scene.rust.get_fair_lock(LINE).lock().await.unwrap();
        let java = scene.java_waits("b").await;
        let head = scene.queue().await.remove(0);
        let channel = format!("redisson_lock__channel:{{line}}:{head}");
        eventually("Java listens", LONG, async || {
            scene.server.subscribers(&channel).await == 1
        })
        .await;
        let released = Instant::now();
        held.unlock().await.unwrap();
        scene.serves(java, &[]).await;
        assert!(
            released.elapsed() < Duration::from_secs(3),
            "{:?}",
            released.elapsed()
        );

        scene.java("lock", "b", Value::Null).await;
        let rust = scene.rust_waits().await;
        let released = Instant::now();
        scene.java("unlock", "b", Value::Null).await;
        scene.serves(rust, &[]).await;
        assert!(
            released.elapsed() < Duration::from_secs(3),
            "{:?}",
            released.elapsed()
        );
    }
}
