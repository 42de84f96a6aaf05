//! The Java peer: one method per operation.

use std::time::Duration;

use serde_json::{Value, json};
use watchlock_support::server::{RedisServer, in_cluster};
use watchlock_support::worker::{Worker, WorkerError};

/// What a test may set on the Java client.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) watchdog: Option<Duration>,
    pub(crate) prefix: Option<&'static str>,
    /// Whether it has a process of its own, which may be killed.
    pub(crate) alone: bool,
}

/// A Redisson client.
pub(crate) struct Java {
    worker: Worker,
}

/// What a call returned, and when.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) t_inv: u64,
    pub(crate) t_ret: u64,
    pub(crate) result: Value,
}

impl Java {
    /// A client with Redisson's defaults except for the options.
    pub(crate) async fn open(server: &RedisServer, options: Options) -> Option<Self> {
        let at = if in_cluster() {
            json!({ "cluster": true, "urls": [server.url()] })
        } else {
            json!({ "url": server.url() })
        };
        Self::open_at(at, options).await
    }

    /// A client of a cluster.
    pub(crate) async fn in_cluster(urls: Vec<String>) -> Option<Self> {
        Self::open_at(json!({ "cluster": true, "urls": urls }), Options::default()).await
    }

    /// A client of the master that these sentinels name.
    pub(crate) async fn by_sentinels(urls: Vec<String>, service: &str) -> Option<Self> {
        let sentinel = json!({ "service": service, "urls": urls });
        Self::open_at(json!({ "sentinel": sentinel }), Options::default()).await
    }

    async fn open_at(mut fields: Value, options: Options) -> Option<Self> {
        let worker = if options.alone {
            Worker::java_alone()?
        } else {
            Worker::java()?
        };
        let java = Self { worker };
        if let Some(lease) = options.watchdog {
            fields["watchdog_ms"] = json!(millis(lease));
        }
        if let Some(prefix) = options.prefix {
            fields["prefix"] = json!(prefix);
        }
        java.call("open", fields).await;
        Some(java)
    }

    pub(crate) async fn try_call(&self, op: &str, fields: Value) -> Result<Answer, WorkerError> {
        let reply = self.worker.answer(op, fields).await;
        reply.outcome.map(|result| Answer {
            t_inv: reply.t_inv,
            t_ret: reply.t_ret,
            result,
        })
    }

    pub(crate) async fn call(&self, op: &str, fields: Value) -> Answer {
        match self.try_call(op, fields).await {
            Ok(answer) => answer,
            Err(error) => panic!("Java, {op}: {error:?}"),
        }
    }

    /// Waits for the lock under the watchdog; returns the hold count.
    pub(crate) async fn lock(&self, owner: &str, name: &str) -> Answer {
        self.call("lock", named(owner, name)).await
    }

    /// Whether it takes locks at this server, the new master. The old one takes them, too, until it is a replica.
    pub(crate) async fn goes_on_at(&self, master: &RedisServer) -> bool {
        let mut fields = named("goes on", "goes on");
        fields["lease_ms"] = json!(1_000);
        let locks = self.try_call("lock", fields).await.is_ok();
        let is_there = locks && master.exists("goes on").await;
        let unlocks = locks
            && self
                .try_call("unlock", named("goes on", "goes on"))
                .await
                .is_ok();
        is_there && unlocks
    }

    pub(crate) async fn lock_with_lease(&self, owner: &str, name: &str, lease: Duration) -> Answer {
        let mut fields = named(owner, name);
        fields["lease_ms"] = json!(millis(lease));
        self.call("lock", fields).await
    }

    pub(crate) async fn try_lock(&self, owner: &str, name: &str, wait: Duration) -> bool {
        let mut fields = named(owner, name);
        fields["wait_ms"] = json!(millis(wait));
        self.call("try_lock", fields).await.result["acquired"] == json!(true)
    }

    pub(crate) async fn unlock(&self, owner: &str, name: &str) -> Answer {
        self.call("unlock", named(owner, name)).await
    }

    /// The kind of the error with which an unlock is refused.
    pub(crate) async fn unlock_refused(&self, owner: &str, name: &str) -> String {
        match self.try_call("unlock", named(owner, name)).await {
            Ok(answer) => panic!("Java unlocked {name}: {answer:?}"),
            Err(error) => error.kind,
        }
    }

    pub(crate) async fn is_held(&self, owner: &str, name: &str) -> bool {
        self.call("is_held", named(owner, name)).await.result["held"] == json!(true)
    }

    pub(crate) async fn is_locked(&self, name: &str) -> bool {
        self.call("is_locked", nameless(name)).await.result["locked"] == json!(true)
    }

    /// Milliseconds to live; -2 free, -1 without expiry.
    pub(crate) async fn ttl(&self, name: &str) -> i64 {
        let answer = self.call("ttl", nameless(name)).await;
        answer.result["ms"].as_i64().expect("an integer")
    }

    pub(crate) async fn force_unlock(&self, name: &str) -> bool {
        let answer = self.call("force_unlock", nameless(name)).await;
        answer.result["released"] == json!(true)
    }

    /// Closes the client: with `release` it first gives back what is held, otherwise it does as Redisson does by
    /// itself.
    pub(crate) async fn shutdown(&self, release: bool) {
        self.call("shutdown", json!({ "release": release })).await;
    }

    /// Kills the process with -9, if it has one of its own.
    pub(crate) fn kill(&self) {
        self.worker.kill();
    }
}

fn named(owner: &str, name: &str) -> Value {
    json!({ "owner": owner, "kind": "lock", "name": name })
}

fn nameless(name: &str) -> Value {
    json!({ "kind": "lock", "name": name })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a short time")
}

/// The hold count in an answer.
pub(crate) fn count(answer: &Answer) -> u64 {
    answer.result["count"].as_u64().expect("an integer")
}
