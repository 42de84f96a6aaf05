//! A quorum of ours, and Redisson's locks over several servers, on the same keys: `RedissonRedLock`, and a
//! `RedissonMultiLock` of the locks of one name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use watchlock::{Backoff, Client, Lease, LockGuard, MultiLock, Quorum};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use super::{LONG, NO_POLL, channel, nothing_is_left};

/// A lease of Java's that no test waits for.
const JAVA_LEASE_MS: u64 = 60_000;

/// Several servers, with a client of each side on all of them.
struct Sides {
    servers: Vec<RedisServer>,
    java: Worker,
    ours: Quorum,
}

async fn sides(servers: usize) -> Option<Sides> {
    let servers: Vec<_> = (0..servers).map(|_| RedisServer::start()).collect();
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let java = Worker::java()?;
    java.call("open", json!({"urls": urls}))
        .await
        .expect("a client of each");
    let ours = quorum(&servers).await;
    Some(Sides {
        servers,
        java,
        ours,
    })
}

/// It polls once a minute, so a waiter that comes sooner was woken; and its servers have just started.
async fn quorum(servers: &[RedisServer]) -> Quorum {
    Quorum::builder(servers.iter().map(RedisServer::url))
        .restart_delay(Duration::ZERO)
        .node_timeout(Duration::from_secs(1))
        .backoff(Backoff::new().base(NO_POLL).cap(NO_POLL))
        .connect()
        .await
        .expect("a quorum")
}

impl Sides {
    async fn ask(&self, op: &str, kind: &str, more: Value) -> Value {
        let mut fields = json!({"owner": "j", "kind": kind, "name": ["x"]});
        for (field, value) in more.as_object().into_iter().flatten() {
            fields[field] = value.clone();
        }
        let answer = self.java.call(op, fields).await;
        answer.unwrap_or_else(|error| panic!("{op}: {error}"))
    }

    async fn java_locks(&self, kind: &str) {
        self.ask("lock", kind, json!({"lease_ms": JAVA_LEASE_MS}))
            .await;
    }

    async fn java_gets_in(&self, kind: &str) -> bool {
        let tried = self
            .ask(
                "try_lock",
                kind,
                json!({"wait_ms": 100, "lease_ms": JAVA_LEASE_MS}),
            )
            .await;
        tried["acquired"] == true
    }

    async fn java_unlocks(&self, kind: &str) {
        self.ask("unlock", kind, Value::Null).await;
    }

    async fn we_get_in(&self) -> Option<LockGuard> {
        let lock = self.ours.get_lock("x");
        let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        tried.expect("a clean answer")
    }

    /// All servers have the lock.
    async fn is_everywhere(&self) {
        for server in &self.servers {
            eventually("it is there", LONG, async || server.exists("x").await).await;
        }
    }

    async fn is_gone(&self) {
        for server in &self.servers {
            eventually("it is gone", LONG, async || !server.exists("x").await).await;
            nothing_is_left(server).await;
        }
    }

    async fn we_listen(&self) {
        for server in &self.servers {
            let listens = async || server.subscribers(&channel("x")).await > 0;
            eventually("we listen", LONG, listens).await;
        }
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it ends")
}

async fn exclude_each_other(sides: &Sides, kind: &str) {
    let guard = sides.we_get_in().await.expect("it is free");
    sides.is_everywhere().await;
    assert!(!sides.java_gets_in(kind).await, "{kind}");
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    sides.is_gone().await;

    sides.java_locks(kind).await;
    sides.is_everywhere().await;
    assert!(sides.we_get_in().await.is_none(), "{kind}");
    assert!(sides.ours.get_lock("x").is_locked().await.unwrap());
    sides.java_unlocks(kind).await;
    sides.is_gone().await;
    assert!(sides.java_gets_in(kind).await, "{kind}: it is free again");
    sides.java_unlocks(kind).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_and_javas_red_lock_exclude_each_other_on_three_servers_and_on_five() {
    for servers in [3, 5] {
        let Some(sides) = sides(servers).await else {
            return;
        };
        exclude_each_other(&sides, "red").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_and_javas_multi_lock_of_all_servers_exclude_each_other() {
    let Some(sides) = sides(3).await else {
        return;
    };
    exclude_each_other(&sides, "multi").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_lock_of_several_servers_and_javas_exclude_each_other() {
    let Some(sides) = sides(3).await else {
        return;
    };
    let mut locks = Vec::new();
    for server in sides.servers.iter().rev() {
        let client = Client::connect(&server.url()).await.expect("a client");
        locks.push(client.get_lock("x"));
    }
    let ours = MultiLock::new(locks).unwrap();
    let guard = ours.lock().await.unwrap();
    assert!(!sides.java_gets_in("multi").await);
    guard.unlock().await.unwrap();
    sides.java_locks("multi").await;
    let tried = ours.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(tried.unwrap().is_none());
    let waiting = tokio::spawn(async move { ours.lock().await });
    sides.java_unlocks("multi").await;
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    sides.is_gone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_javas_red_lock_wakes_ours() {
    let Some(sides) = sides(5).await else {
        return;
    };
    for _ in 0..3 {
        sides.java_locks("red").await;
        let lock = sides.ours.get_lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        sides.we_listen().await;
        sides.java_unlocks("red").await;
        soon(waiting)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    sides.is_gone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_ours_lets_javas_red_lock_in() {
    let Some(sides) = sides(5).await else {
        return;
    };
    for _ in 0..3 {
        let guard = sides.we_get_in().await.expect("it is free");
        sides.is_everywhere().await;
        let waits = sides.java_locks("red");
        let release = async {
            let server = &sides.servers[0];
            let waits = async || server.subscribers(&channel("x")).await > 0;
            eventually("Java waits at the first", LONG, waits).await;
            guard.unlock().await.unwrap();
        };
        soon(async { tokio::join!(waits, release) }).await;
        assert!(sides.we_get_in().await.is_none(), "it is Java's");
        sides.java_unlocks("red").await;
        sides.is_gone().await;
    }
}

/// Java waits for a server that is away until its time-outs are over, so this takes a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_two_of_five_dead_they_exclude_each_other_all_the_same() {
    let Some(sides) = sides(5).await else {
        return;
    };
    sides.java_locks("red").await;
    sides.is_everywhere().await;
    sides.servers[1].kill();
    sides.servers[4].kill();
    assert!(sides.we_get_in().await.is_none(), "three have Java's");
    let lock = sides.ours.get_lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    sides.java_unlocks("red").await;
    let guard = tokio::time::timeout(LONG * 3, waiting).await;
    let guard = guard.expect("three are free").unwrap().unwrap();
    assert!(!sides.java_gets_in("red").await, "three have ours");
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ours_and_javas_in_a_crowd_all_finish_and_never_meet() {
    let Some(sides) = sides(3).await else {
        return;
    };
    let inside = Arc::new(AtomicU32::new(0));
    let mut ours = Vec::new();
    for _ in 0..2 {
        let (quorum, inside) = (quorum_with_polls(&sides.servers).await, Arc::clone(&inside));
        ours.push(async move {
            for _ in 0..10 {
                let guard = quorum.get_lock("x").lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "Rust is alone");
                tokio::time::sleep(Duration::from_millis(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            }
        });
    }
    let theirs = async {
        for _ in 0..10 {
            sides.java_locks("red").await;
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "Java is alone");
            tokio::time::sleep(Duration::from_millis(2)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            sides.java_unlocks("red").await;
        }
    };
    let all = async { tokio::join!(theirs, join_all(ours)) };
    tokio::time::timeout(LONG * 3, all)
        .await
        .expect("all finish");
    sides.is_gone().await;
}

/// As in services: a poll finds locks that were freed in between without a message.
async fn quorum_with_polls(servers: &[RedisServer]) -> Quorum {
    Quorum::builder(servers.iter().map(RedisServer::url))
        .restart_delay(Duration::ZERO)
        .node_timeout(Duration::from_secs(1))
        .connect()
        .await
        .expect("a quorum")
}
