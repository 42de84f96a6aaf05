//! Java and Rust at the master that sentinels name, also after it has changed.

use std::time::Duration;

use watchlock::{Backoff, Client, ClientBuilder, Lease};
use watchlock_support::eventually;
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};
use watchlock_support::server::RedisServer;

use crate::peer::Java;
use crate::{LONG, NO_POLL, WOKEN_MS, channel, ms_since};

struct Both {
    deployment: SentinelDeployment,
    java: Java,
    rust: Client,
}

async fn both() -> Option<Both> {
    let deployment = SentinelDeployment::start().await;
    let java = Java::by_sentinels(deployment.urls(), SERVICE).await?;
    let polls = Backoff::new().base(NO_POLL).cap(NO_POLL);
    let rust = ClientBuilder::sentinel(deployment.urls(), SERVICE).backoff(polls);
    let rust = rust.unavailable_after(LONG).connect().await;
    Some(Both {
        deployment,
        java,
        rust: rust.expect("a client"),
    })
}

impl Both {
    fn first(&self) -> &RedisServer {
        &self.deployment.servers()[0]
    }

    /// The replica takes the master's place, with all it had, and both sides go on there.
    async fn fail_over(&self, key: &str) -> &RedisServer {
        let replica = &self.deployment.servers()[1];
        eventually("it is replicated", LONG, async || replica.exists(key).await).await;
        self.deployment.fail_over().await;
        let sentinels = self.deployment.sentinels();
        let new = self.deployment.master_after(self.first(), sentinels).await;
        let goes_on = async || self.java.goes_on_at(new).await;
        eventually("Java goes on there", LONG, goes_on).await;
        new
    }
}

async fn listening(server: &RedisServer, name: &str) {
    eventually("a waiter listens", LONG, async || {
        server.subscribers(&channel(name)).await == 1
    })
    .await;
}

#[tokio::test]
async fn each_side_is_woken_by_the_other() {
    let Some(both) = both().await else { return };
    let guard = both.rust.get_lock("x").lock().await.unwrap();
    let waits = both.java.lock("o", "x");
    let release = async {
        listening(both.first(), "x").await;
        let released = watchlock_support::now_ns();
        guard.unlock().await.unwrap();
        released
    };
    let (_, released) = tokio::join!(waits, release);
    assert!(ms_since(released) < WOKEN_MS);
    let lock = both.rust.get_lock("x");
    let waits = lock.lock();
    let release = async {
        listening(both.first(), "x").await;
        both.java.unlock("o", "x").await
    };
    let (guard, released) = tokio::join!(waits, release);
    assert!(ms_since(released.t_inv) < WOKEN_MS);
    guard.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_hold_of_rust_excludes_java_after_a_fail_over() {
    let Some(both) = both().await else { return };
    let guard = both.rust.get_lock("x").lock().await.unwrap();
    let new = both.fail_over("x").await;
    assert!(!both.java.try_lock("o", "x", Duration::ZERO).await);
    guard.verify().await.unwrap();
    let waits = both.java.lock("o", "x");
    let release = async {
        listening(new, "x").await;
        guard.unlock().await.unwrap();
    };
    tokio::join!(waits, release);
    assert_eq!(new.hash("x").await.len(), 1);
    both.java.unlock("o", "x").await;
}

#[tokio::test]
async fn a_hold_of_java_excludes_rust_after_a_fail_over() {
    let Some(both) = both().await else { return };
    both.java.lock("o", "x").await;
    let new = both.fail_over("x").await;
    let lock = both.rust.get_lock("x");
    let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(tried.unwrap().is_none());
    let waits = lock.lock();
    let release = async {
        listening(new, "x").await;
        both.java.unlock("o", "x").await
    };
    let (guard, released) = tokio::join!(waits, release);
    let (began, ended) = (ms_since(released.t_inv), ms_since(released.t_ret));
    assert!(
        began < WOKEN_MS,
        "in {began} ms after the release began, {ended} ms after it ended"
    );
    guard.unwrap().unlock().await.unwrap();
}
