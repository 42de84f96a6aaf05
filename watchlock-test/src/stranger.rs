//! Somebody else, who holds a lock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::Reply;
use crate::server::Orders;
use crate::state::State;

/// How long Redisson's lock lasts without a renewal.
const LEASE_MS: &str = "30000";

static STRANGERS: AtomicU64 = AtomicU64::new(1);

/// Another client that holds a lock, as a Java process with Redisson would: from
/// [`Redis::held_by_stranger`](crate::Redis::held_by_stranger).
///
/// Dropped, it releases the lock, with the message that wakes those who wait for the plain or fenced lock. It renews nothing, so the lock ends after
/// 30 s on the clock of the Redis; [`dies`](Self::dies) leaves it to that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), watchlock::Error> {
/// use std::time::Duration;
/// use watchlock::Lease;
///
/// let redis = watchlock_test::Redis::start();
/// let client = redis.client().await?;
/// let lock = client.get_lock("import");
///
/// redis.held_by_stranger("import").dies();
/// assert!(lock.try_lock(Duration::ZERO, Lease::Watchdog).await?.is_none());
/// redis.advance(Duration::from_secs(31));
/// assert!(lock.try_lock(Duration::ZERO, Lease::Watchdog).await?.is_some());
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped, it releases the lock"]
pub struct Stranger {
    orders: Orders,
    name: String,
    field: String,
}

impl Stranger {
    pub(crate) fn takes(orders: &Orders, name: &str) -> Self {
        // Relaxed: the numbers only have to differ.
        let number = STRANGERS.fetch_add(1, Ordering::Relaxed);
        // Redisson's: the client's UUID and the thread's id.
        let field = format!("00000000-0000-4000-8000-{number:012x}:1");
        let stranger = Self {
            orders: orders.clone(),
            name: name.to_owned(),
            field: field.clone(),
        };
        let name = name.to_owned();
        let is_free = orders.ask(move |state: &mut State| {
            let is_free = state.run(&["EXISTS", &name]) == Reply::Integer(0);
            if is_free {
                state.run(&["HSET", &name, &field, "1"]);
                state.run(&["PEXPIRE", &name, LEASE_MS]);
            }
            is_free
        });
        if !is_free {
            let name = stranger.name.clone();
            stranger.dies();
            panic!("a stranger cannot hold {name:?}: the key exists");
        }
        stranger
    }

    /// Dies without releasing the lock, which lasts until its TTL ends.
    pub fn dies(mut self) {
        self.field.clear();
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        if self.field.is_empty() {
            return;
        }
        let (name, field) = (self.name.clone(), self.field.clone());
        let _ = self.orders.try_ask(move |state: &mut State| {
            // It may have expired, and be somebody else's.
            if state.run(&["HDEL", &name, &field]) == Reply::Integer(1) {
                state.run(&["PUBLISH", &channel_of(&name), "0"]);
            }
        });
    }
}

impl fmt::Debug for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stranger")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Redisson puts a name into braces, unless it has some.
fn channel_of(name: &str) -> String {
    if name.contains('{') {
        format!("redisson_lock__channel:{name}")
    } else {
        format!("redisson_lock__channel:{{{name}}}")
    }
}
