//! The handle of several locks as one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::acquire::acquire;
use super::set::Set;
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::guard::{LockGuard, sealed};
use crate::lock::handle::{Handle, LockKind, LockTarget};
use crate::lock::object::{Lock, LockInfo, Ttl};

/// Several locks as one: it is held when all of them are.
///
/// They may be of any kind, client and server. Each is an ordinary lock, which others may take on its own, also Java
/// services. Its hold is valid while all of its locks are, and [lost](LockGuard::lost) with the first of them.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// use watchlock::MultiLock;
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
/// **Verbs.** Its name is the names of its locks in their order, separated by a comma and a space. The time-outs are those
/// of the client with the longest command time-out. A fixed lease begins at the start of the acquire, so without a guard
/// none of the locks is held for longer than that. `is_locked` returns whether anybody holds any of the locks, `hold_count`
/// the smallest of their counts, `remain_time_to_live` that of the lock with the longest time left. `unlock` and
/// `force_unlock` go on with the other locks when one fails, and return the first error. An acquire that is not polled for
/// longer than a command time-out gives back what it has.
///
/// **Errors** of one of its locks name that lock. The other locks are given back then. [`Error::Lost`] also when an acquire
/// repeatedly lost some locks before it had all.
///
/// **Guards.** [`reenter`](LockGuard::reenter) with the same sort of lease (watchdog or fixed) only counts in the guard.
/// With the other sort it enters each lock again. [`detach`](LockGuard::detach) leaves each lock to its owner, so each
/// must have one, and [`unlock`](Handle::unlock) gives back the newest detached level of each. Guards that share a level
/// after `reenter` can neither be detached nor left to expire
/// ([`LeaseError::OtherLevels`](crate::LeaseError::OtherLevels)).
///
/// It cannot see that two clients use the same server: if both have the same lock in one set, the second waits for the
/// first without end.
#[doc(alias = "RedissonMultiLock")]
#[doc(alias = "getMultiLock")]
pub type MultiLock = Handle<Several>;

/// The kind of [`MultiLock`].
#[derive(Debug)]
pub enum Several {}

impl sealed::Sealed for Several {}

impl LockKind for Several {
    const HANDLE: &'static str = "MultiLock";
    type Target = Arc<Set>;
    type Guard = LockGuard;
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
        Ok(Self::to(Arc::new(set)))
    }
}

impl Set {
    fn each(&self) -> impl Iterator<Item = &dyn Lock> {
        self.locks.iter().map(|lock| &**lock)
    }
}

impl LockTarget for Arc<Set> {
    fn name(&self) -> &str {
        &self.name
    }

    fn has_owner(&self) -> bool {
        false
    }

    fn info(&self) -> LockInfo {
        self.info.clone()
    }

    async fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
    ) -> Result<Option<LockGuard>, Error> {
        acquire(self, wait, lease).await
    }

    async fn unlock(&self) -> Result<(), Error> {
        let given_back = join_all(self.each().map(Lock::unlock)).await;
        given_back.into_iter().collect()
    }

    fn hold_count(&self) -> u32 {
        self.each().map(Lock::hold_count).min().unwrap_or_default()
    }

    async fn is_locked(&self) -> Result<bool, Error> {
        any(join_all(self.each().map(Lock::is_locked)).await)
    }

    async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        let mut longest = Ttl::Free;
        for ttl in join_all(self.each().map(Lock::remain_time_to_live)).await {
            longest = match (longest, ttl?) {
                (Ttl::NoExpiry, _) | (_, Ttl::NoExpiry) => Ttl::NoExpiry,
                (Ttl::Left(one), Ttl::Left(other)) => Ttl::Left(one.max(other)),
                (Ttl::Free, ttl) | (ttl, Ttl::Free) => ttl,
            };
        }
        Ok(longest)
    }

    async fn force_unlock(&self) -> Result<bool, Error> {
        any(join_all(self.each().map(Lock::force_unlock)).await)
    }
}

/// Whether any answer is yes, or the first error.
fn any(answers: Vec<Result<bool, Error>>) -> Result<bool, Error> {
    let mut answers = answers.into_iter();
    answers.try_fold(false, |any, answer| Ok(any | answer?))
}
