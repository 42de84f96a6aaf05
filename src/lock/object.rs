//! What every kind of lock can do, as an object-safe trait, and running code under a lock.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::guard::{HasLevel, LockGuard};
use crate::backend::Timers;
use crate::error::Error;
use crate::lease::Lease;
use crate::log::in_span;
use crate::names::Names;

/// What every kind of lock can do, for code that works with any of them.
///
/// Object-safe. [`Handle`](crate::Handle) describes the methods. Pointers to a lock implement it, too: `&L`, `Box<L>`,
/// `Arc<L>`.
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
///
/// It can be implemented around another lock, to count or to log. Methods that are added later have a default, so an
/// implementation still compiles. One that wraps a lock should then pass them on.
///
/// ```no_run
/// use std::time::Duration;
/// use watchlock::{Error, Lease, Lock, LockGuard, LockInfo, Ttl};
///
/// struct Printed<L>(L);
///
/// #[async_trait::async_trait]
/// impl<L: Lock> Lock for Printed<L> {
///     fn name(&self) -> &str {
///         self.0.name()
///     }
///     async fn try_lock(&self, wait: Duration, lease: Lease) -> Result<Option<LockGuard>, Error> {
///         println!("who wants {}?", self.name());
///         self.0.try_lock(wait, lease).await
///     }
///     async fn unlock(&self) -> Result<(), Error> {
///         self.0.unlock().await
///     }
///     fn hold_count(&self) -> u32 {
///         self.0.hold_count()
///     }
///     async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
///         self.0.remain_time_to_live().await
///     }
///     async fn force_unlock(&self) -> Result<bool, Error> {
///         self.0.force_unlock().await
///     }
///     fn info(&self) -> LockInfo {
///         self.0.info()
///     }
/// }
/// ```
#[async_trait]
pub trait Lock: Send + Sync {
    /// The lock's name, without the client's prefix.
    fn name(&self) -> &str;

    /// Waits for the lock. The watchdog keeps it.
    #[doc(alias = "acquire")]
    async fn lock(&self) -> Result<LockGuard, Error> {
        let got = self.try_lock(Duration::MAX, Lease::Watchdog).await;
        got?.ok_or(Error::Closed)
    }

    /// Waits for the lock, for a fixed lease.
    async fn lock_with_lease(&self, lease: Duration) -> Result<LockGuard, Error> {
        let got = self.try_lock(Duration::MAX, Lease::Fixed(lease)).await;
        got?.ok_or(Error::Closed)
    }

    /// Waits for the lock for at most `wait`. `None` when it stayed busy. Bind the guard with `let Some(guard) = … else`:
    /// behind `.is_some()` it is dropped, and the lock is free.
    #[doc(alias = "acquire")]
    #[doc(alias = "timeout")]
    async fn try_lock(&self, wait: Duration, lease: Lease) -> Result<Option<LockGuard>, Error>;

    /// Gives back the newest detached level.
    async fn unlock(&self) -> Result<(), Error>;

    /// Whether anybody holds the lock. Asks Redis.
    async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.remain_time_to_live().await? != Ttl::Free)
    }

    /// Whether the owner that the handle acts for holds the lock. Local.
    fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many levels the owner that the handle acts for holds. Local.
    fn hold_count(&self) -> u32;

    /// How much longer Redis keeps the lock. Asks Redis.
    async fn remain_time_to_live(&self) -> Result<Ttl, Error>;

    /// Releases the lock, whoever holds it. Returns whether anybody did.
    async fn force_unlock(&self) -> Result<bool, Error>;

    /// What a [`MultiLock`](crate::MultiLock) needs to know about it. A wrapper passes that of its lock on.
    fn info(&self) -> LockInfo {
        LockInfo::default()
    }
}

/// Passes on every method, also those with a default.
#[async_trait]
impl<P> Lock for P
where
    P: Deref<Target: Lock> + Send + Sync,
{
    fn name(&self) -> &str {
        self.deref().name()
    }

    async fn lock(&self) -> Result<LockGuard, Error> {
        self.deref().lock().await
    }

    async fn lock_with_lease(&self, lease: Duration) -> Result<LockGuard, Error> {
        self.deref().lock_with_lease(lease).await
    }

    async fn try_lock(&self, wait: Duration, lease: Lease) -> Result<Option<LockGuard>, Error> {
        self.deref().try_lock(wait, lease).await
    }

    async fn unlock(&self) -> Result<(), Error> {
        self.deref().unlock().await
    }

    async fn is_locked(&self) -> Result<bool, Error> {
        self.deref().is_locked().await
    }

    fn is_held(&self) -> bool {
        self.deref().is_held()
    }

    fn hold_count(&self) -> u32 {
        self.deref().hold_count()
    }

    async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        self.deref().remain_time_to_live().await
    }

    async fn force_unlock(&self) -> Result<bool, Error> {
        self.deref().force_unlock().await
    }

    fn info(&self) -> LockInfo {
        self.deref().info()
    }
}

/// How much longer Redis keeps a lock.
///
/// ```no_run
/// # async fn example(lock: watchlock::ReentrantLock) -> Result<(), watchlock::Error> {
/// use watchlock::Ttl;
///
/// match lock.remain_time_to_live().await? {
///     Ttl::Free => println!("free"),
///     Ttl::Left(left) => println!("held, for {left:?} at least unless it is given back"),
///     _ => println!("held for ever: somebody must look at it"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ttl {
    /// Nobody holds the lock.
    Free,
    /// The key has no expiry. This crate never leaves a lock like that: somebody wrote it by hand, removed its expiry, or
    /// locked with Redisson for a lease that is too long for Redis.
    NoExpiry,
    /// Held. Redis keeps it for this long, unless it is renewed or given back.
    Left(Duration),
}

/// What a [`MultiLock`](crate::MultiLock) needs to know about a lock: which lock it is, and whether Redis keeps a queue for
/// it.
///
/// Only the locks of this crate fill it. A [`Lock`](crate::Lock) that wraps another returns the info of the wrapped one. With
/// the default a multi-lock cannot see that it has the same lock twice, and an acquire of it waits for itself.
///
/// ```no_run
/// # fn example(lock: &dyn watchlock::Lock) {
/// if lock.info().has_queue() {
///     println!("first come, first served");
/// }
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct LockInfo {
    /// The locks that it takes, each with the id of its client. Locks with the same client and key exclude each other,
    /// whatever their kinds.
    pub(super) locks: Vec<(Uuid, Arc<Names>)>,
    pub(super) has_queue: bool,
    /// The longest command time-out of its clients.
    pub(super) command_timeout: Duration,
    /// Those of one of its clients.
    pub(super) timers: Option<Timers>,
}

impl LockInfo {
    /// For the lock `names` of `client`.
    pub(super) fn of(client: Uuid, names: &Arc<Names>) -> Self {
        Self {
            locks: vec![(client, Arc::clone(names))],
            ..Self::default()
        }
    }

    /// Whether Redis keeps a queue of the lock's waiters.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        self.has_queue
    }
}

/// `run` and `try_run` for every [`Lock`], `dyn Lock` too.
///
/// A [`Handle`](crate::Handle) has both without this trait, and hands its own kind of guard to the body.
///
/// ```no_run
/// use watchlock::{Error, Lock, LockExt};
///
/// async fn nightly(lock: &dyn Lock) -> Result<u32, Error> {
///     lock.run(async |guard| {
///         println!("nobody else is at {}", guard.name());
///         42
///     })
///     .await
/// }
/// ```
pub trait LockExt: Lock {
    /// Runs `body` under the lock, and cancels it when the hold is lost: [`Handle::run`](crate::Handle::run).
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), and [`Error::Lost`] as [`Handle::run`](crate::Handle::run).
    ///
    /// # Cancel safety
    ///
    /// As [`Handle::run`](crate::Handle::run).
    fn run<T>(
        &self,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> impl Future<Output = Result<T, Error>>;

    /// As [`run`](Self::run), with [`try_lock`](Lock::try_lock). `None` when the lock stayed busy.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Lock::try_lock), and [`Error::Lost`] as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    fn try_run<T>(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> impl Future<Output = Result<Option<T>, Error>>;
}

impl<L: Lock + ?Sized> LockExt for L {
    async fn run<T>(&self, body: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, Error> {
        run_under(self.lock().await?, body).await
    }

    async fn try_run<T>(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<Option<T>, Error> {
        let Some(guard) = self.try_lock(wait, lease.into()).await? else {
            return Ok(None);
        };
        run_under(guard, body).await.map(Some)
    }
}

/// Runs `body` while `guard` is valid, and gives the guard back: what `run` and `try_run` do once they have the guard.
///
/// 1. The body is polled only while the hold is valid by the clock.
/// 2. The hold counts as lost before the body ended if the clock or Redis shows that at the release.
pub(super) async fn run_under<G: HasLevel, T>(
    guard: G,
    body: impl AsyncFnOnce(&G) -> T,
) -> Result<T, Error> {
    let value = while_valid(guard.level(), body(&guard)).await?;
    release_after_run(guard.into_level()).await?;
    Ok(value)
}

/// Gives the guard back. Fails only if the hold was lost before.
pub(crate) async fn release_after_run(guard: LockGuard) -> Result<(), Error> {
    let name = guard.name().to_owned();
    match guard.unlock().await {
        Err(error) if !error.is_lost() => {
            tracing::warn!(name, %error, "the release after a run failed");
            Ok(())
        }
        ended => ended,
    }
}

/// Polls `body`, which is about the hold of `guard`, while the hold is valid.
pub(super) async fn while_valid<T>(
    guard: &LockGuard,
    body: impl Future<Output = T>,
) -> Result<T, Error> {
    let span = tracing::debug_span!("run", name = guard.name());
    let mut body = pin!(in_span(span, body));
    let hold = guard.hold();
    let mut lost = pin!(hold.lost());
    poll_fn(|context| {
        // The clock first: after the runtime was blocked, the loss may not have been reported yet.
        guard.check()?;
        if let Poll::Ready(reason) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(Error::lost(reason)));
        }
        body.as_mut().poll(context).map(Ok)
    })
    .await
}
