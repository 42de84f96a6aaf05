//! Latches of Java and Rust on one name: each side counts and waits, and ours returns where Java sleeps on.

use std::time::Duration;

use serde_json::{Value, json};
use watchlock::{Backoff, Client, CountDownLatch, Error};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::{Call, Worker};

use crate::{LONG, NO_POLL, WOKEN_MS, ms_since};

const NAME: &str = "parts";
const CHANNEL: &str = "redisson_countdownlatch__channel__{parts}";

/// A server, a Java client of it, and a latch of ours that polls once a minute.
struct Both {
    server: RedisServer,
    java: Worker,
    latch: CountDownLatch,
}

impl Both {
    async fn open() -> Option<Self> {
        Some(Self::with(Worker::java()?).await)
    }

    async fn with(java: Worker) -> Self {
        let server = RedisServer::start();
        java.open(&server.url(), None).await.expect("a client");
        let rare = Backoff::new().base(NO_POLL).cap(NO_POLL);
        let rust = Client::builder(&server.url()).backoff(rare).connect().await;
        let latch = rust.expect("a client").get_count_down_latch(NAME);
        Self {
            server,
            java,
            latch,
        }
    }

    async fn ask(&self, op: &str, fields: Value) -> Value {
        answered(self.java.request(op, with_name(fields))).await
    }

    fn java_waits(&self) -> Call {
        let fields = with_name(json!({"wait_ms": 20_000}));
        self.java.request("latch_await", fields)
    }

    fn rust_waits(&self) -> tokio::task::JoinHandle<Result<(), Error>> {
        let latch = self.latch.clone();
        tokio::spawn(async move { latch.wait().await })
    }

    /// Waits until so many processes listen.
    async fn listening(&self, processes: u64) {
        eventually("they listen", LONG, async || {
            self.server.subscribers(CHANNEL).await == processes
        })
        .await;
    }
}

fn with_name(mut fields: Value) -> Value {
    fields["name"] = json!(NAME);
    fields
}

async fn answered(call: Call) -> Value {
    let answer = tokio::time::timeout(LONG, call).await.expect("in time");
    answer.outcome.expect("an answer")
}

async fn opened(waiter: tokio::task::JoinHandle<Result<(), Error>>) {
    let waited = tokio::time::timeout(LONG, waiter).await.expect("in time");
    waited.unwrap().unwrap();
}

#[tokio::test]
async fn java_and_rust_count_down_one_latch_and_wait_for_each_other() {
    let Some(both) = Both::open().await else {
        return;
    };
    for last_is_java in [true, false] {
        // Each side sets it once.
        if last_is_java {
            let set = both.ask("latch_set", json!({"count": 3})).await;
            assert_eq!(set["set"], true);
            assert!(!both.latch.try_set_count(9).await.unwrap());
        } else {
            assert!(both.latch.try_set_count(3).await.unwrap());
            let set = both.ask("latch_set", json!({"count": 9})).await;
            assert_eq!(set["set"], false);
        }
        assert_eq!(both.latch.count_down().await.unwrap(), 2);
        assert_eq!(both.ask("latch_count", json!({})).await["count"], 2);
        let (java, rust) = (both.java_waits(), both.rust_waits());
        both.listening(2).await;
        both.ask("latch_down", json!({})).await;
        assert_eq!(both.latch.count().await.unwrap(), 1);
        let since = watchlock_support::now_ns();
        if last_is_java {
            both.ask("latch_down", json!({})).await;
        } else {
            assert_eq!(both.latch.count_down().await.unwrap(), 0);
        }
        opened(rust).await;
        assert_eq!(answered(java).await["reached"], true);
        assert!(ms_since(since) < WOKEN_MS, "both were woken");
    }
    assert_eq!(
        both.server.keys().await,
        ["watchlock_counted:{parts}"],
        "the ids of our counts"
    );
}

/// Redisson's delete leaves its own waiters asleep.
#[tokio::test]
async fn our_delete_wakes_java_and_javas_delete_wakes_us() {
    let Some(both) = Both::open().await else {
        return;
    };
    assert!(both.latch.try_set_count(2).await.unwrap());
    let (java, rust) = (both.java_waits(), both.rust_waits());
    both.listening(2).await;
    assert!(both.latch.delete().await.unwrap());
    opened(rust).await;
    assert_eq!(answered(java).await["reached"], true);

    both.ask("latch_set", json!({"count": 2})).await;
    let rust = both.rust_waits();
    both.listening(1).await;
    assert_eq!(both.ask("latch_delete", json!({})).await["deleted"], true);
    opened(rust).await;
}

/// A `0` opens the gate of a Java client, which then waits for nothing until a `1` comes. So each of our sets sends a `1`.
#[tokio::test]
async fn after_our_set_java_waits_again_and_its_early_message_does_not_open_ours() {
    let Some(both) = Both::open().await else {
        return;
    };
    assert!(both.latch.try_set_count(1).await.unwrap());
    let (java, rust) = (both.java_waits(), both.rust_waits());
    both.listening(2).await;
    both.server.cmd(&["PUBLISH", CHANNEL, "0"]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!rust.is_finished(), "a message opens nothing");
    assert_eq!(both.latch.count_down().await.unwrap(), 0);
    opened(rust).await;
    assert_eq!(answered(java).await["reached"], true);

    assert!(both.latch.try_set_count(1).await.unwrap());
    let wait = with_name(json!({"wait_ms": 300}));
    let brief = both.java.request("latch_await", wait);
    assert_eq!(answered(brief).await["reached"], false);
    let java = both.java_waits();
    both.ask("latch_down", json!({})).await;
    assert_eq!(answered(java).await["reached"], true);
}

/// Redisson accepts counts below 1 and leaves their key.
#[tokio::test]
async fn a_count_below_one_of_java_is_open_here() {
    let Some(both) = Both::open().await else {
        return;
    };
    for count in [0, -3] {
        let set = both.ask("latch_set", json!({"count": count})).await;
        assert_eq!(set["set"], true);
        assert!(both.server.exists(NAME).await);
        assert_eq!(both.latch.count().await.unwrap(), 0);
        opened(both.rust_waits()).await;
        assert_eq!(both.latch.count_down().await.unwrap(), 0);
        assert!(!both.server.exists(NAME).await);
    }
}

/// Whoever dies leaves the count as it is, and no key but the latch.
#[tokio::test]
async fn a_death_on_either_side_counts_nothing() {
    let Some(java) = Worker::java_alone() else {
        return;
    };
    let both = Both::with(java).await;
    assert!(both.latch.try_set_count(2).await.unwrap());
    let (java, rust) = (both.java_waits(), both.rust_waits());
    let ours = Worker::rust();
    ours.open(&both.server.url(), None).await.expect("a client");
    let waits = ours.request("latch_await", with_name(json!({"wait_ms": 20_000})));
    both.listening(3).await;
    ours.kill();
    both.listening(2).await;
    drop(waits);
    both.java.kill();
    both.listening(1).await;
    drop(java);
    assert!(!rust.is_finished());
    for left in [1, 0] {
        assert_eq!(both.latch.count_down().await.unwrap(), left);
    }
    opened(rust).await;
}

#[tokio::test]
async fn in_a_cluster_java_and_rust_count_down_one_latch() {
    let Some(java) = Worker::java() else { return };
    let cluster = RedisCluster::masters().await;
    let at = json!({"cluster": true, "urls": cluster.urls()});
    java.call("open", at).await.expect("a client");
    let rare = Backoff::new().base(NO_POLL).cap(NO_POLL);
    let rust = Client::builder(&cluster.url())
        .backoff(rare)
        .connect()
        .await;
    let rust = rust.expect("a client");
    for (round, name) in ["a", "b", "c"].into_iter().enumerate() {
        let latch = rust.get_count_down_latch(name);
        assert!(latch.try_set_count(2).await.unwrap());
        let java_waits = java.request("latch_await", json!({"name": name, "wait_ms": 20_000}));
        let rust_waits = tokio::spawn({
            let latch = latch.clone();
            async move { latch.wait().await }
        });
        let node = cluster.server_of(name).await;
        let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
        eventually("both listen", LONG, async || {
            let asked = ["PUBSUB", "SHARDNUMSUB", &channel];
            let (_, count): (String, u64) = node.query(&asked).await;
            count == 2
        })
        .await;
        for count in 0..2 {
            if (round + count) % 2 == 0 {
                latch.count_down().await.unwrap();
            } else {
                answered(java.request("latch_down", json!({"name": name}))).await;
            }
        }
        opened(rust_waits).await;
        assert_eq!(answered(java_waits).await["reached"], true);
    }
}
