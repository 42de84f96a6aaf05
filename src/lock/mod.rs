//! Kinds of lock: names, scripts and replies; nothing about waiting or renewing.

mod acting;
mod guard;
mod owner;
mod reentrant;
mod run;
pub(crate) mod scope;

use std::time::Duration;

use async_trait::async_trait;

pub use self::guard::{HoldView, LockGuard};
pub use self::owner::Owner;
pub use self::reentrant::{OwnerLock, ReentrantLock};
use crate::error::Error;
use crate::lease::Lease;

/// How much longer Redis keeps a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ttl {
    /// Nobody holds the lock.
    Free,
    /// The key has no expiry. No lock of this crate or of Redisson is ever like that: somebody wrote it
    /// by hand or removed its expiry.
    NoExpiry,
    /// For so long, unless it is renewed.
    Left(Duration),
}

/// What every kind of lock can do, for code that does not care which it gets.
///
/// Object-safe; each method is that of the same name of [`ReentrantLock`], where it is described.
///
/// ```no_run
/// use std::time::Duration;
/// use watchlock::{Error, Lease, Lock};
///
/// async fn nightly(lock: &dyn Lock) -> Result<bool, Error> {
///     let Some(guard) = lock.try_lock(Duration::ZERO, Lease::Watchdog).await? else {
///         return Ok(false);
///     };
///     // …
///     guard.unlock().await?;
///     Ok(true)
/// }
/// ```
#[async_trait]
pub trait Lock: Send + Sync {
    /// The lock's name, without the client's prefix.
    fn name(&self) -> &str;

    /// Waits for the lock; the watchdog keeps it.
    async fn lock(&self) -> Result<LockGuard, Error>;

    /// Waits for the lock, for a fixed lease.
    async fn lock_for(&self, lease: Duration) -> Result<LockGuard, Error>;

    /// Waits for the lock for at most `wait`; `None` when it stayed busy.
    async fn try_lock(&self, wait: Duration, lease: Lease) -> Result<Option<LockGuard>, Error>;

    /// Gives back the newest detached level.
    async fn unlock(&self) -> Result<(), Error>;

    /// Whether anybody holds the lock; asks Redis.
    async fn is_locked(&self) -> Result<bool, Error>;

    /// Whether the owner that the handle acts for holds the lock; local.
    fn is_held(&self) -> bool;

    /// How many levels the owner that the handle acts for holds; local.
    fn hold_count(&self) -> u32;

    /// How much longer Redis keeps the lock; asks Redis.
    async fn remain_time_to_live(&self) -> Result<Ttl, Error>;

    /// Ends whoever holds the lock; whether anybody did.
    async fn force_unlock(&self) -> Result<bool, Error>;
}
