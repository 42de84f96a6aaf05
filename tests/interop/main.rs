//! Java and Rust on one lock: every test has its own redis-server, client of the real Redisson and watchlock client. The
//! Java clients are in one process, apart from those that are killed or frozen. `INTEROP_REDISSON` names the Redisson version, one that `scripts/interop-peer.sh` accepts (4).

mod cluster;
mod coming_and_going;
mod fair;
mod fenced;
mod java_holds;
mod java_kinds;
mod latch;
mod names;
mod passing;
mod peer;
mod permits;
mod queue;
mod readers;
mod red;
mod redsync;
mod rust_holds;
mod sentinel;
mod several;
mod spin;

use std::time::Duration;

use peer::{Java, Options};
use watchlock::{Backoff, Client};
use watchlock_support::server::RedisServer;
use watchlock_support::{eventually, now_ns};

/// Longer than any test: a waiter that gets in earlier was woken, and did not poll.
const NO_POLL: Duration = Duration::from_secs(60);
/// A wake-up and an acquire take some milliseconds; the rest is for a machine with two cores and many tests. A waiter
/// that was not woken comes after 30 s, the holder's TTL.
const WOKEN_MS: u64 = 3_000;
/// A watchdog lease that a test can wait for, and that a busy machine keeps.
const SHORT: Duration = Duration::from_secs(2);
/// How late a waiter may be that waits for a lease to end.
const LATE: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(20);

/// Every lock is gone. Redisson answers its caller first, and then deletes the latch of its unlock.
async fn nothing_is_left(server: &RedisServer) {
    let mut left = server.keys().await;
    left.retain(|key| !key.starts_with("redisson_unlock_latch:"));
    assert!(left.is_empty(), "{left:?}");
}

/// One server and a client of each side on it.
struct Two {
    server: RedisServer,
    java: Java,
    rust: Client,
}

/// Both sides with a watchdog lease of 30 s, and Rust's safety poll too late to matter.
async fn two() -> Option<Two> {
    two_with(Options::default(), Duration::from_secs(30)).await
}

/// Both sides with a watchdog lease of [`SHORT`].
async fn two_short() -> Option<Two> {
    let options = Options {
        watchdog: Some(SHORT),
        ..Options::default()
    };
    two_with(options, SHORT).await
}

/// The same, and Java has a process of its own.
async fn two_to_kill() -> Option<Two> {
    let options = Options {
        watchdog: Some(SHORT),
        alone: true,
        ..Options::default()
    };
    two_with(options, SHORT).await
}

async fn two_with(options: Options, rust_lease: Duration) -> Option<Two> {
    let server = RedisServer::start();
    let prefix = options.prefix.unwrap_or("");
    let java = Java::open(&server, options).await?;
    let rust = Client::builder(&server.url())
        .watchdog_lease(rust_lease)
        .command_timeout(LONG)
        .backoff(Backoff::new().base(NO_POLL).cap(NO_POLL))
        .key_prefix(prefix)
        .connect()
        .await
        .expect("a client");
    Some(Two { server, java, rust })
}

impl Two {
    /// Waits until `waiters` processes listen for releases of the lock with this key.
    async fn listening(&self, key: &str, waiters: u64) {
        let channel = channel(key);
        eventually("waiters listen", LONG, async || {
            self.server.subscribers(&channel).await == waiters
        })
        .await;
    }

    /// The hold counts in the lock's hash, one per holder.
    async fn counts(&self, key: &str) -> Vec<String> {
        self.server.hash(key).await.into_values().collect()
    }
}

fn channel(key: &str) -> String {
    if key.contains('{') {
        format!("redisson_lock__channel:{key}")
    } else {
        format!("redisson_lock__channel:{{{key}}}")
    }
}

/// Milliseconds from a time that a worker reported until now.
fn ms_since(t_ns: u64) -> u64 {
    now_ns().saturating_sub(t_ns) / 1_000_000
}
