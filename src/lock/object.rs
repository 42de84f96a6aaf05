//! The object-safe face of every kind of lock.

use std::ops::Deref;
use std::time::Duration;

use async_trait::async_trait;

use super::{LockGuard, LockInfo, Ttl};
use crate::error::Error;
use crate::lease::Lease;

/// What every kind of lock can do, for code that does not care which it gets.
///
/// Object-safe; each method is that of the same name of [`Handle`](crate::Handle), where it is
/// described. What points to a lock is one: `&L`, `Box<L>`, `Arc<L>`.
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
/// It can be implemented around another lock, to count or to log. It will grow: methods that are added later
/// come with a default, so an implementation goes on to compile; one that wraps a lock should then pass them
/// on.
///
/// ```no_run
/// use std::time::Duration;
/// use watchlock::{Error, Lease, Lock, LockGuard, LockInfo, Ttl};
///
/// struct Told<L>(L);
///
/// #[async_trait::async_trait]
/// impl<L: Lock> Lock for Told<L> {
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

    /// Waits for the lock; the watchdog keeps it.
    async fn lock(&self) -> Result<LockGuard, Error> {
        let got = self.try_lock(Duration::MAX, Lease::Watchdog).await;
        got?.ok_or(Error::Closed)
    }

    /// Waits for the lock, for a fixed lease.
    async fn lock_for(&self, lease: Duration) -> Result<LockGuard, Error> {
        let got = self.try_lock(Duration::MAX, Lease::Fixed(lease)).await;
        got?.ok_or(Error::Closed)
    }

    /// Waits for the lock for at most `wait`; `None` when it stayed busy.
    async fn try_lock(&self, wait: Duration, lease: Lease) -> Result<Option<LockGuard>, Error>;

    /// Gives back the newest detached level.
    async fn unlock(&self) -> Result<(), Error>;

    /// Whether anybody holds the lock; asks Redis.
    async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.remain_time_to_live().await? != Ttl::Free)
    }

    /// Whether the owner that the handle acts for holds the lock; local.
    fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many levels the owner that the handle acts for holds; local.
    fn hold_count(&self) -> u32;

    /// How much longer Redis keeps the lock; asks Redis.
    async fn remain_time_to_live(&self) -> Result<Ttl, Error>;

    /// Releases the lock, whoever holds it. Returns whether anybody did.
    async fn force_unlock(&self) -> Result<bool, Error>;

    /// What a [`MultiLock`](crate::MultiLock) must know of it. One that wraps a lock passes it on.
    fn info(&self) -> LockInfo {
        LockInfo::default()
    }
}

/// Makes a type a [`Lock`], and one of many, by its own verbs of the same names, whose guards are of any kind.
macro_rules! is_a_lock {
    ($lock:ty $(, of $kind:ident)?) => {
        #[async_trait::async_trait]
        impl$(<$kind: $crate::lock::kind::LockKind>)? $crate::lock::Lock for $lock {
            fn name(&self) -> &str {
                self.name()
            }

            async fn lock(&self) -> Result<LockGuard, Error> {
                Ok(IsGuard::into_level(self.lock().await?))
            }

            async fn lock_for(&self, lease: Duration) -> Result<LockGuard, Error> {
                Ok(IsGuard::into_level(self.lock_for(lease).await?))
            }

            async fn try_lock(
                &self,
                wait: Duration,
                lease: Lease,
            ) -> Result<Option<LockGuard>, Error> {
                let got = self.try_lock(wait, lease).await?;
                Ok(got.map(IsGuard::into_level))
            }

            async fn unlock(&self) -> Result<(), Error> {
                self.unlock().await
            }

            async fn is_locked(&self) -> Result<bool, Error> {
                self.is_locked().await
            }

            fn is_held(&self) -> bool {
                self.is_held()
            }

            fn hold_count(&self) -> u32 {
                self.hold_count()
            }

            async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
                self.remain_time_to_live().await
            }

            async fn force_unlock(&self) -> Result<bool, Error> {
                self.force_unlock().await
            }

            fn info(&self) -> LockInfo {
                self.about()
            }
        }

        /// As one of many.
        impl$(<$kind: $crate::lock::kind::LockKind>)? From<$lock>
            for std::sync::Arc<dyn $crate::lock::Lock>
        {
            fn from(lock: $lock) -> Self {
                std::sync::Arc::new(lock)
            }
        }
    };
}

pub(super) use is_a_lock;

/// Every method is passed on, those with a default, too.
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

    async fn lock_for(&self, lease: Duration) -> Result<LockGuard, Error> {
        self.deref().lock_for(lease).await
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
