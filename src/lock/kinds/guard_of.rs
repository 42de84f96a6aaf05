//! The guard of a kind whose guard promises more than a level.

use std::ops::Deref;

use crate::error::Error;
use crate::lease::Lease;
use crate::lock::guard::{GuardError, HasLevel, IsGuard, LockGuard, sealed};

/// One level of a hold of the kind `K`: [`FencedGuard`](crate::FencedGuard) or [`WriteGuard`](crate::WriteGuard). Dropping
/// it gives the level back.
///
/// It derefs and converts to a [`LockGuard`].
#[derive(Debug)]
#[clippy::has_significant_drop]
#[must_use = "dropping a guard gives its level back at once"]
pub struct GuardOf<K> {
    pub(super) level: LockGuard,
    pub(super) kind: K,
}

impl<K> GuardOf<K> {
    /// The guard as a [`LockGuard`] of the same hold.
    pub fn into_guard(self) -> LockGuard {
        self.level
    }

    /// As [`LockGuard::reenter`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::reenter`].
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::reenter`].
    pub async fn reenter(&self, lease: impl Into<Lease>) -> Result<Self, Error>
    where
        Self: IsGuard,
    {
        Self::of(self.level.reenter(lease).await?)
    }

    /// As [`LockGuard::unlock`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::unlock`].
    pub fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.level.unlock()
    }

    /// As [`LockGuard::detach`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::detach`]; the guard comes back as a [`LockGuard`].
    pub fn detach(self) -> Result<(), GuardError> {
        self.level.detach()
    }

    /// As [`LockGuard::let_expire`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::let_expire`]; the guard comes back as a [`LockGuard`].
    pub fn let_expire(self) -> Result<(), GuardError> {
        self.level.let_expire()
    }
}

impl<K> Deref for GuardOf<K> {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.level
    }
}

impl<K> From<GuardOf<K>> for LockGuard {
    fn from(guard: GuardOf<K>) -> Self {
        guard.level
    }
}

impl<K> sealed::Sealed for GuardOf<K> {}

impl<K: Send + Sync + 'static> HasLevel for GuardOf<K> {
    fn level(&self) -> &LockGuard {
        &self.level
    }

    fn into_level(self) -> LockGuard {
        self.level
    }
}
