//! The handle of several locks as one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::acquire::acquire;
use super::set::Set;
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::guard::LockGuard;
use crate::lock::object::{Lock, LockInfo, Ttl, is_a_lock};

/// Several locks as one: it is held when all of them are.
///
/// They may be of any kind, client and server. Each is an ordinary lock, which others may take on its own, also Java
/// services. A [`MultiLock`] is a [`Lock`] and returns a [`LockGuard`]. Its hold is valid while all of its locks are, and
/// [lost](LockGuard::lost) with the first of them.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// use watchlock::{LockExt, MultiLock};
///
/// let both = MultiLock::new([client.get_lock("account:1"), client.get_lock("account:2")])?;
/// both.run(async |guard| {
///     println!("nobody else is at {}", guard.name());
/// }).await
/// # }
/// ```
///
/// Of several kinds:
///
/// ```no_run
/// # fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// use watchlock::MultiLock;
///
/// let both = MultiLock::builder()
///     .with(client.get_lock("stock"))
///     .with(client.get_fenced_lock("ledger"))
///     .build()?;
/// # drop(both);
/// # Ok(())
/// # }
/// ```
///
/// **No deadlock, in any order.** It never waits while it holds: it waits for one lock, then tries the others at once. If
/// one is busy, it gives all back and waits for that one. So sets may overlap, be given in any order, and compete with a
/// `RedissonMultiLock` on the same locks. It has no place in a queue for the locks that it does not wait for: where others
/// always wait for each of its locks alone, it may wait for long.
///
/// **Whom it acts for** depends on each of its locks: those of one [`Owner`](crate::Owner), or used in a scope, enter again
/// what that owner holds.
///
/// **Errors** of one of its locks name that lock. The other locks are given back then.
///
/// **Guards.** [`reenter`](LockGuard::reenter) with the same sort of lease (watchdog or fixed) only counts in the guard.
/// With the other sort it enters each lock again. [`detach`](LockGuard::detach) leaves each lock to its owner, so each
/// must have one, and [`unlock`](Self::unlock) gives back the newest detached level of each. Guards that share a level
/// after `reenter` can neither be detached nor left to expire
/// ([`LeaseError::OtherLevels`](crate::LeaseError::OtherLevels)).
///
/// Cheap to clone. It holds no lock. It cannot see that two clients use the same server: if both have the same lock in one
/// set, the second waits for the first without end.
#[doc(alias = "RedissonMultiLock")]
#[doc(alias = "getMultiLock")]
#[derive(Clone)]
pub struct MultiLock {
    set: Arc<Set>,
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// The locks of a [`MultiLock`], collected one by one: they may be of different kinds.
///
/// ```no_run
/// # fn example(client: watchlock::Client, shards: u32) -> Result<(), watchlock::Error> {
/// let mut builder = watchlock::MultiLock::builder().with(client.get_read_write_lock("schema").read_lock());
/// for shard in 0..shards {
///     builder = builder.with(client.get_lock(format!("shard:{shard}")));
/// }
/// let all = builder.build()?;
/// # drop(all);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct MultiLockBuilder {
    locks: Vec<Arc<dyn Lock>>,
}

impl fmt::Debug for MultiLockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.locks.iter().map(Lock::name);
        f.debug_list().entries(names).finish()
    }
}

impl MultiLockBuilder {
    /// Adds a lock of any kind.
    pub fn with(mut self, lock: impl Lock + 'static) -> Self {
        self.locks.push(Arc::new(lock));
        self
    }

    /// The locks as one. No I/O.
    ///
    /// # Errors
    ///
    /// As [`MultiLock::new`].
    pub fn build(self) -> Result<MultiLock, Error> {
        MultiLock::new(self.locks)
    }
}

impl MultiLock {
    /// For locks of several kinds.
    pub fn builder() -> MultiLockBuilder {
        MultiLockBuilder::default()
    }

    /// These locks as one: 2 to 64, each once. No I/O.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSet`] when there are too few or too many, when a client's name occurs twice (also as two kinds of
    /// lock), or when more than one has a [queue](LockInfo::has_queue) in Redis.
    pub fn new<L: Into<Arc<dyn Lock>>>(locks: impl IntoIterator<Item = L>) -> Result<Self, Error> {
        let set = Set::of(locks.into_iter().map(Into::into).collect())?;
        Ok(Self { set: Arc::new(set) })
    }

    /// The names of its locks in their order, separated by a comma and a space.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.set.name
    }

    /// Waits for all locks without a limit. The watchdog keeps them while the guard lives.
    ///
    /// # Errors
    ///
    /// As [`Handle::lock`](crate::Handle::lock) of any of them, and [`Error::Lost`] when it repeatedly lost some locks
    /// before it had all.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropped at any point, it leaves nothing behind once the background clean-up is done. If it is not
    /// polled for longer than a command time-out, it gives back what it has.
    #[doc(alias = "acquire")]
    pub async fn lock(&self) -> Result<LockGuard, Error> {
        let got = acquire(&self.set, None, Lease::Watchdog).await?;
        got.ok_or(Error::Closed)
    }

    /// Waits for all locks and takes each for a fixed lease from the start: without a guard none is held for longer than
    /// that. The hold is valid as long as the lock with the shortest time left.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::InvalidLease`].
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn lock_with_lease(&self, lease: Duration) -> Result<LockGuard, Error> {
        let got = acquire(&self.set, None, Lease::Fixed(lease)).await?;
        got.ok_or(Error::Closed)
    }

    /// Waits for all locks for at most `wait`. `None` when one of them was busy to the end.
    ///
    /// As [`Handle::try_lock`](crate::Handle::try_lock), with the longest command time-out of its locks. Bind the guard with
    /// `let Some(guard) = … else`: behind `.is_some()` it is dropped, and the locks are free.
    ///
    /// # Errors
    ///
    /// As [`Handle::try_lock`](crate::Handle::try_lock) of any of them.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    #[doc(alias = "acquire")]
    #[doc(alias = "timeout")]
    pub async fn try_lock(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<LockGuard>, Error> {
        acquire(&self.set, Some(wait), lease.into()).await
    }

    /// Gives back the newest [detached](LockGuard::detach) level of each lock, also when others fail.
    ///
    /// # Errors
    ///
    /// The error of the first lock that fails, as [`Handle::unlock`](crate::Handle::unlock).
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::unlock`].
    pub async fn unlock(&self) -> Result<(), Error> {
        let given_back = join_all(self.locks().map(Lock::unlock)).await;
        given_back.into_iter().collect()
    }

    /// Whether anybody holds any of the locks. Asks Redis.
    ///
    /// # Errors
    ///
    /// As [`Handle::is_locked`](crate::Handle::is_locked) of any of them.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        any(join_all(self.locks().map(Lock::is_locked)).await)
    }

    /// Whether the owners that its locks act for hold all of them, validly. Local.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// The smallest number of levels that the owners of its locks hold. Local. Levels of [`LockGuard::reenter`] count in
    /// the guard, not here.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.locks().map(Lock::hold_count).min().unwrap_or_default()
    }

    /// How much longer Redis keeps the lock with the longest time left. Asks Redis.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        let mut longest = Ttl::Free;
        for ttl in join_all(self.locks().map(Lock::remain_time_to_live)).await {
            longest = match (longest, ttl?) {
                (Ttl::NoExpiry, _) | (_, Ttl::NoExpiry) => Ttl::NoExpiry,
                (Ttl::Left(one), Ttl::Left(other)) => Ttl::Left(one.max(other)),
                (Ttl::Free, ttl) | (ttl, Ttl::Free) => ttl,
            };
        }
        Ok(longest)
    }

    /// Releases each of the locks, whoever holds it, and wakes the next waiters. Returns whether anybody held any.
    ///
    /// # Errors
    ///
    /// As [`Handle::force_unlock`](crate::Handle::force_unlock) of any of them. The others are released all the same.
    ///
    /// # Cancel safety
    ///
    /// The commands may be executed or not.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        any(join_all(self.locks().map(Lock::force_unlock)).await)
    }

    fn lock_info(&self) -> LockInfo {
        self.set.info.clone()
    }

    fn locks(&self) -> impl Iterator<Item = &dyn Lock> {
        self.set.locks.iter().map(|lock| &**lock)
    }
}

/// Whether any answer is yes, or the first error.
fn any(answers: Vec<Result<bool, Error>>) -> Result<bool, Error> {
    let mut answers = answers.into_iter();
    answers.try_fold(false, |any, answer| Ok(any | answer?))
}

is_a_lock!(MultiLock);
