//! Java and Rust in one cluster of three masters: each side's release wakes the other's waiters, through sharded
//! channels.

use serde_json::json;
use watchlock::{Backoff, Client};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::eventually;

use crate::peer::Java;
use crate::{LONG, NO_POLL, WOKEN_MS, channel, ms_since};

struct Both {
    cluster: RedisCluster,
    java: Java,
    rust: Client,
}

async fn both() -> Option<Both> {
    let cluster = RedisCluster::masters().await;
    let java = Java::in_cluster(cluster.urls()).await?;
    let polls = Backoff::new().base(NO_POLL).cap(NO_POLL);
    let rust = Client::builder(&cluster.url()).backoff(polls);
    let rust = rust.connect().await.expect("a client");
    Some(Both {
        cluster,
        java,
        rust,
    })
}

impl Both {
    async fn listening(&self, name: &str, waiters: u64) {
        self.listening_to(name, &channel(name), waiters).await;
    }

    async fn listening_to(&self, name: &str, channel: &str, waiters: u64) {
        let node = self.cluster.server_of(name).await;
        eventually("waiters listen", LONG, async || {
            let asked = ["PUBSUB", "SHARDNUMSUB", channel];
            let (_, count): (String, u64) = node.query(&asked).await;
            count == waiters
        })
        .await;
    }
}

#[tokio::test]
async fn java_is_woken_by_rust_at_every_node() {
    let Some(both) = both().await else { return };
    for name in ["a", "b", "c", "{d}e"] {
        let guard = both.rust.get_lock(name).lock().await.unwrap();
        assert!(both.java.is_locked(name).await);
        let waits = both.java.lock("x", name);
        let release = async {
            both.listening(name, 1).await;
            let released = watchlock_support::now_ns();
            guard.unlock().await.unwrap();
            released
        };
        let (_, released) = tokio::join!(waits, release);
        assert!(ms_since(released) < WOKEN_MS);
        assert!(both.rust.get_lock(name).is_locked().await.unwrap());
        both.java.unlock("x", name).await;
    }
}

#[tokio::test]
async fn rust_is_woken_by_java_at_every_node() {
    let Some(both) = both().await else { return };
    for name in ["a", "b", "c", "{d}e"] {
        both.java.lock("x", name).await;
        let lock = both.rust.get_lock(name);
        let waits = lock.lock();
        let release = async {
            both.listening(name, 1).await;
            both.java.unlock("x", name).await
        };
        let (guard, released) = tokio::join!(waits, release);
        assert!(ms_since(released.t_inv) < WOKEN_MS);
        guard.unwrap().unlock().await.unwrap();
        assert!(!both.java.is_locked(name).await);
    }
}

#[tokio::test]
async fn semaphores_wake_each_others_waiters() {
    let Some(both) = both().await else { return };
    for (name, channel) in [("a", "redisson_sc:{a}"), ("x{b}", "redisson_sc:x{b}")] {
        let of = both.rust.get_permit_expirable_semaphore(name);
        // One: who waits for more in Redisson 3 sleeps through the message.
        of.set_permits(1).await.unwrap();
        let permit = of.acquire().await.unwrap();
        let fields = json!({"kind": "permit", "name": name, "permits": 1});
        let waits = both.java.call("acquire", fields);
        let release = async {
            both.listening_to(name, channel, 1).await;
            permit.release().await.unwrap();
            watchlock_support::now_ns()
        };
        let (theirs, released) = tokio::join!(waits, release);
        assert!(ms_since(released) < WOKEN_MS);
        let waits = of.acquire();
        let release = async {
            both.listening_to(name, channel, 1).await;
            let fields = json!({"kind": "permit", "name": name, "handle": theirs.result["handle"]});
            both.java.call("release", fields).await
        };
        let (permit, released) = tokio::join!(waits, release);
        assert!(ms_since(released.t_inv) < WOKEN_MS);
        permit.unwrap().release().await.unwrap();
        assert_eq!(of.available_permits().await.unwrap(), 1);
    }
}
