//! One level of a hold, as a value.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::composite::Level;
use super::single::Single;
use super::view::HoldView;
use crate::backend::Timers;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::HeldLevel;
use crate::engine::keep_alive::Engine;
use crate::error::{Error, LostReason};
use crate::fencing::FencingToken;
use crate::lease::Lease;

/// One level of a hold. Dropping it gives the level back; the last one ends the hold.
///
/// Use [`unlock`](Self::unlock) where you can: it tells whether the lock was held to the end. A drop
/// leaves the release to the client's background thread.
///
/// The guard owns what it needs: it can be moved to another task or thread and outlives the handle. As
/// long as a guard with a watchdog lease lives, the lock is kept alive, also when its task is stuck; a
/// guard that is leaked keeps the lock as long as the process lives.
///
/// ```no_run
/// # async fn example(lock: watchlock::ReentrantLock) -> Result<(), watchlock::Error> {
/// let guard = lock.lock().await?;
/// tokio::select! {
///     reason = guard.lost() => eprintln!("stop at once: {reason}"),
///     () = work() => guard.unlock().await?,
/// }
/// # Ok(())
/// # }
/// # async fn work() {}
/// ```
#[clippy::has_significant_drop]
#[must_use = "dropping a guard gives its level back at once"]
pub struct LockGuard {
    of: Of,
}

/// What it is a level of.
enum Of {
    /// A hold of one lock.
    Single(Single),
    /// A hold of several locks as one.
    Several(Level),
}

impl std::fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl LockGuard {
    pub(super) fn new(engine: Arc<Engine>, entered: HeldLevel) -> Self {
        let single = Single::new(engine, entered);
        Self {
            of: Of::Single(single),
        }
    }

    /// The first level of a hold of several locks.
    pub(super) fn of_several(level: Level) -> Self {
        Self {
            of: Of::Several(level),
        }
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.of {
            Of::Single(single) => single.name(),
            Of::Several(level) => level.name(),
        }
    }

    /// The number of levels of the hold. Local.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        match &self.of {
            Of::Single(single) => single.hold_count(),
            Of::Several(level) => level.hold_count(),
        }
    }

    /// The hold's [fencing token](FencingToken), if it has one: a hold has it when a
    /// [fenced](crate::FencedLock) handle started or entered it. A hold of a [`MultiLock`](crate::MultiLock) has none.
    /// Local.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        match &self.of {
            Of::Single(single) => single.fencing_token(),
            Of::Several(level) => level.hold().token(),
        }
    }

    /// Whether the client vouches for the hold right now: it is not lost and its validity has not
    /// ended. By the local clock, without I/O.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// How much longer the hold is valid if nothing renews it; zero when it is not. Of the hold, not of
    /// this level.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        match &self.of {
            Of::Single(single) => single.valid_for(),
            Of::Several(level) => level.hold().valid_for(),
        }
    }

    /// [`is_valid`](Self::is_valid) with the reason, for use with `?` before a step that must not be
    /// done without the lock. Local.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        match &self.of {
            Of::Single(single) => single.check(),
            Of::Several(level) => level.hold().check(),
        }
    }

    /// Resolves when the hold is lost, about 2 ms before its validity ends at the latest; also when Redis
    /// is out of reach or the runtime was blocked meanwhile. Pending for ever otherwise.
    ///
    /// With reason [`LostReason::Shutdown`] it may be an announcement: until the shutdown's time-out the
    /// hold is valid and can be unlocked.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        match &self.of {
            Of::Single(single) => single.lost().await,
            Of::Several(level) => level.hold().lost().await,
        }
    }

    /// Resolves when the hold is lost; the announcement of a shutdown is no loss.
    pub(super) async fn lost_for_good(&self) -> LostReason {
        match &self.of {
            Of::Single(single) => single.lost_for_good().await,
            Of::Several(level) => level.hold().lost_for_good().await,
        }
    }

    /// A view of the hold that spawned subtasks can keep. It does not keep the lock.
    #[must_use]
    pub fn hold(&self) -> HoldView {
        match &self.of {
            Of::Single(single) => single.hold().into(),
            Of::Several(level) => Arc::clone(level.hold()).into(),
        }
    }

    /// Asks Redis now whether the hold is there: for the step before what cannot be undone. One round trip.
    ///
    /// The question is a write that only a master accepts: it sets again what the client vouches for, and
    /// under the watchdog it renews the lease. [`check`](Self::check) asks nobody.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold is not there, or was lost before; [`Error::Unavailable`] or
    /// [`Error::Refused`] when Redis did not say within a command time-out; [`Error::Denied`],
    /// [`Error::Closed`]; [`Error::Config`] with [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a
    /// tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease was written again or not.
    pub async fn verify(&self) -> Result<(), Error> {
        match &self.of {
            Of::Single(single) => single.verify().await,
            Of::Several(level) => level.verify().await,
        }
    }

    /// Enters the lock once more: the hold ends when this level, too, is given back. `lease` is
    /// [`Lease::Watchdog`] or a fixed [`Duration`], whatever this level has.
    ///
    /// ```no_run
    /// # async fn example(guard: watchlock::LockGuard) -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    /// use watchlock::Lease;
    ///
    /// let watched = guard.reenter(Lease::Watchdog).await?;
    /// let short = guard.reenter(Duration::from_secs(10)).await?;
    /// assert_eq!(guard.hold_count(), 3);
    /// # drop((watched, short));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold is lost; [`Error::InvalidLease`]; [`Error::Unavailable`],
    /// [`Error::Refused`] when Redis was unreachable or refused for `unavailable_after`; [`Error::Denied`],
    /// [`Error::Closed`]; [`Error::Config`] with [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a
    /// tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a level that was not returned is given back.
    pub async fn reenter(&self, lease: impl Into<Lease>) -> Result<Self, Error> {
        let lease = lease.into();
        let of = match &self.of {
            Of::Single(single) => Of::Single(single.reenter(lease).await?),
            Of::Several(level) => Of::Several(level.reenter(lease).await?),
        };
        Ok(Self { of })
    }

    /// Gives the level back, and waits for Redis to say so. The last level ends the hold and wakes the
    /// next waiter.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost before: what it protected may have been touched by others.
    /// [`Error::Unavailable`] or [`Error::Refused`] after the command time-out: the level is given back
    /// all the same, and the release is repeated in the background until the lease has ended.
    /// [`Error::Denied`] when Redis denies the release: it is not repeated, and the lock stays until its lease
    /// ends. [`Error::Closed`] when the client was closed before.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the level is given back at the first poll, the rest is done in the background.
    pub fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send {
        match self.of {
            Of::Single(single) => single.unlock().left_future(),
            Of::Several(level) => level.unlock().right_future(),
        }
    }

    /// Turns a level of who has the lock alone into one of those who share it.
    pub(super) async fn downgraded(self) -> Result<Self, Error> {
        match self.of {
            Of::Single(single) => {
                let of = Of::Single(single.downgraded().await?);
                Ok(Self { of })
            }
            several @ Of::Several(_) => Ok(Self { of: several }),
        }
    }

    /// Raises the promise of a fixed lease: from now on Redis keeps the hold for at least `lease`, and it is
    /// valid for that less the drift (1 % of the lease and 2 ms). Never lowers it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLease`] for a level under the watchdog, or a lease out of bounds;
    /// [`Error::Lost`]; [`Error::NoQuorum`] when too few of a quorum's servers have this level, though the
    /// hold goes on with another; [`Error::Unavailable`], [`Error::Refused`], [`Error::Denied`],
    /// [`Error::Closed`] of the command; [`Error::Config`] with
    /// [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease was raised or not.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        match &self.of {
            Of::Single(single) => single.extend(lease).await,
            Of::Several(level) => level.extend(lease).await,
        }
    }

    /// Leaves the level to the owner: `unlock` of a handle gives it back, in another place than where it
    /// was taken, as Redisson's `unlock` does. When the owner ends, what is detached is given back.
    ///
    /// # Errors
    ///
    /// The guard comes back in a [`GuardError`]: [`Error::NotOwner`] when it was acquired without an owner,
    /// or its owner has ended; [`Error::Lost`] when the hold is lost; [`Error::Closed`]. With `?` the guard is
    /// dropped, and its level given back.
    pub fn detach(mut self) -> Result<(), GuardError> {
        let detached = match &mut self.of {
            Of::Single(single) => single.detach(),
            Of::Several(level) => level.detach(),
        };
        detached.map_err(|error| GuardError { guard: self, error })
    }

    /// Leaves the key to its lease on purpose, for jobs that must run once in an interval. From then on
    /// this client, too, finds the lock held by somebody else.
    ///
    /// # Errors
    ///
    /// The guard comes back in a [`GuardError`]: [`Error::InvalidLease`] when the level is under the watchdog
    /// or not the only one; [`Error::Lost`] when the hold is lost; [`Error::Closed`]. With `?` the guard is
    /// dropped, and its level given back.
    pub fn let_expire(mut self) -> Result<(), GuardError> {
        let let_go = match &mut self.of {
            Of::Single(single) => single.let_expire(),
            Of::Several(level) => level.let_expire(),
        };
        let_go.map_err(|error| GuardError { guard: self, error })
    }
}

/// What the rest of this layer asks of a guard.
impl LockGuard {
    /// What counts time wherever the guard's futures are polled.
    pub(super) fn timers(&self) -> Option<Timers> {
        match &self.of {
            Of::Single(single) => Some(single.core().backend.timers().clone()),
            Of::Several(level) => level.timers(),
        }
    }

    /// Enters it once more as a lock of this kind, which is of its family; of one lock.
    pub(super) async fn enter_as(&self, kind: &Kind, lease: Lease) -> Result<Self, Error> {
        match &self.of {
            Of::Single(single) => Ok(Self {
                of: Of::Single(single.enter_as(kind, lease).await?),
            }),
            Of::Several(_) => Err(Error::not_owner()),
        }
    }

    /// The field of the hold in Redis, of one lock.
    pub(super) fn hold_id(&self) -> Option<&str> {
        match &self.of {
            Of::Single(single) => Some(single.hold_id()),
            Of::Several(_) => None,
        }
    }

    /// How long the server that granted the hold had been up then; of one lock, and where servers are asked.
    pub(super) fn server_age(&self) -> Option<Duration> {
        match &self.of {
            Of::Single(single) => single.server_age(),
            Of::Several(_) => None,
        }
    }

    /// Whether the level could be detached now.
    pub(super) fn may_detach(&self) -> Result<(), Error> {
        match &self.of {
            Of::Single(single) => single.may_detach(),
            Of::Several(level) => level.may_detach(),
        }
    }

    /// Leaves the level to its owner, which it said it could be; what that does not take any more is given back.
    pub(super) fn leave_to_owner(self) {
        match self.of {
            Of::Single(single) => single.leave_to_owner(),
            Of::Several(level) => level.leave_to_owner(),
        }
    }

    /// Whether the hold could be left to its lease now.
    pub(super) fn may_expire(&self) -> Result<(), Error> {
        match &self.of {
            Of::Single(single) => single.may_expire(),
            Of::Several(level) => level.may_expire(),
        }
    }
}

/// What [`LockGuard::detach`] or [`LockGuard::let_expire`] was refused with, and the guard, which is as it was.
///
/// It converts into [`Error`], so `?` works; the guard is dropped then, and its level given back.
///
/// ```no_run
/// # async fn example(guard: watchlock::LockGuard) -> Result<(), watchlock::Error> {
/// if let Err(refused) = guard.let_expire() {
///     eprintln!("{refused}");
///     refused.into_guard().unlock().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it holds the guard; dropping it gives the level back"]
pub struct GuardError {
    guard: LockGuard,
    error: Error,
}

impl GuardError {
    /// Why it was refused.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The guard that was refused.
    pub fn into_guard(self) -> LockGuard {
        self.guard
    }

    /// Both.
    pub fn into_parts(self) -> (LockGuard, Error) {
        (self.guard, self.error)
    }
}

impl std::fmt::Display for GuardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for GuardError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl From<GuardError> for Error {
    fn from(refused: GuardError) -> Self {
        refused.error
    }
}
