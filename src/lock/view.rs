//! Views of a hold: whether it is still valid, for tasks that do not hold a level of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::pending;

use super::several::ChildState;
use crate::clock::Clock;
use crate::engine::hold::Hold;
use crate::engine::hold::state::{Ended, Phase};
use crate::error::{Error, LostReason};
use crate::fencing::FencingToken;

/// A view of a hold, for subtasks that must know whether it is still valid. Cheap to clone. It does not keep the lock.
///
/// ```no_run
/// # async fn example(guard: watchlock::LockGuard) -> Result<(), watchlock::Error> {
/// let hold = guard.hold();
/// let upload = tokio::spawn(async move {
///     for part in 0..10 {
///         hold.check()?; // stop as soon as the lock is not ours any more
///         println!("part {part}");
///     }
///     Ok::<_, watchlock::Error>(())
/// });
/// # drop(upload);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HoldView {
    pub(super) of: HoldOf,
}

#[derive(Clone)]
pub(super) enum HoldOf {
    /// Of one lock; its client has this clock.
    Single(Clock, Arc<Hold>),
    Several(Arc<dyn HoldOfSeveral>),
}

impl std::fmt::Debug for HoldView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HoldView")
            .field("name", &self.name())
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl HoldView {
    /// As [`LockGuard::is_valid`](crate::LockGuard::is_valid); false once the hold has ended.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// As [`LockGuard::valid_for`](crate::LockGuard::valid_for); zero once the hold has ended.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        match self.state() {
            ChildState::Valid(left) => left,
            _ => Duration::ZERO,
        }
    }

    /// As [`LockGuard::check`](crate::LockGuard::check).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; [`Error::NotOwner`] once the hold has ended.
    pub fn check(&self) -> Result<(), Error> {
        if let HoldOf::Several(hold) = &self.of {
            return hold.check();
        }
        let refused = match self.state() {
            ChildState::Valid(_) => return Ok(()),
            ChildState::Lost(reason) => Error::lost(reason),
            ChildState::Over => Error::not_owner(),
        };
        Err(refused.about(self.name()))
    }

    /// As [`LockGuard::lost`](crate::LockGuard::lost); never resolves once the hold was given back, which
    /// [`ended`](Self::ended) reports.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        match self.ended().await {
            Ended::Lost(reason) => reason,
            _ => pending().await,
        }
    }

    /// Resolves when the hold is over, by a loss or in order. So a task that watches it ends with it. Each level of a
    /// [read lock](crate::ReadLock) is a hold of its own, and a [downgrade](crate::WriteGuard::downgrade) ends the write hold.
    ///
    /// ```no_run
    /// # async fn example(guard: watchlock::LockGuard) -> Result<(), watchlock::Error> {
    /// use watchlock::Ended;
    ///
    /// let hold = guard.hold();
    /// let watcher = tokio::spawn(async move {
    ///     if let Ended::Lost(reason) = hold.ended().await {
    ///         eprintln!("stop at once: {reason}");
    ///     }
    /// });
    /// guard.unlock().await?;
    /// watcher.await.expect("it ends with the hold");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ended(&self) -> Ended {
        match &self.of {
            HoldOf::Single(_, hold) => hold.over().await,
            HoldOf::Several(hold) => hold.ended().await,
        }
    }

    pub(super) fn token(&self) -> Option<FencingToken> {
        match &self.of {
            HoldOf::Single(_, hold) => hold.token(),
            HoldOf::Several(hold) => hold.token(),
        }
    }

    /// The hold of one lock that it is a view of.
    pub(super) fn single(&self) -> Option<&Arc<Hold>> {
        match &self.of {
            HoldOf::Single(_, hold) => Some(hold),
            HoldOf::Several(_) => None,
        }
    }

    /// Its state as a child of a hold of several locks.
    pub(super) fn state(&self) -> ChildState {
        let (clock, hold) = match &self.of {
            HoldOf::Single(clock, hold) => (clock, hold),
            HoldOf::Several(hold) => return hold.state(),
        };
        let now = clock.now();
        let left = now.until(hold.valid_until());
        if !left.is_zero() {
            return ChildState::Valid(left);
        }
        match hold.lost_reason(now) {
            Some(reason) => ChildState::Lost(reason),
            None if hold.phase() == Phase::Held => ChildState::Valid(left),
            None => ChildState::Over,
        }
    }

    pub(super) fn name(&self) -> &str {
        match &self.of {
            HoldOf::Single(_, hold) => hold.kind.names.name(),
            HoldOf::Several(hold) => hold.name(),
        }
    }
}

/// A hold of several locks as one, as a view sees it.
#[async_trait]
pub(super) trait HoldOfSeveral: Send + Sync {
    fn name(&self) -> &str;
    fn token(&self) -> Option<FencingToken>;
    fn state(&self) -> ChildState;
    fn check(&self) -> Result<(), Error>;
    async fn ended(&self) -> Ended;
}
