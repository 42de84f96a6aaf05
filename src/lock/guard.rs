//! One level of a hold, as a value.

use std::sync::Arc;
use std::time::Duration;

use super::view::{HoldView, check, lost, valid_for};
use crate::engine::attempt::level;
use crate::engine::owner::Entered;
use crate::engine::state::Level;
use crate::engine::ticket::Patience;
use crate::engine::{Engine, reentry, release, verify};
use crate::error::{Error, LeaseError, LostReason};
use crate::fencing::FencingToken;
use crate::lease::{Lease, LeaseMs};

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
    engine: Arc<Engine>,
    entered: Entered,
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
    pub(super) fn new(engine: Arc<Engine>, entered: Entered) -> Self {
        Self { engine, entered }
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.entered.hold.kind.names().name()
    }

    /// The number of levels of the hold. Local.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        if self.engine.core.is_forked() {
            return 0;
        }
        self.entered.hold.count()
    }

    /// The hold's [fencing token](FencingToken), if it has one: a hold has it when a
    /// [fenced](crate::FencedLock) handle started or entered it. Local.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.entered.hold.token()
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
        let core = &self.engine.core;
        valid_for(&self.entered.hold, core.process, core.now())
    }

    /// [`is_valid`](Self::is_valid) with the reason, for use with `?` before a step that must not be
    /// done without the lock. Local.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; [`Error::Closed`] after a `fork`, in the child.
    pub fn check(&self) -> Result<(), Error> {
        let core = &self.engine.core;
        check(&self.entered.hold, core.process, core.now())
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
        lost(&self.entered.hold, self.engine.core.process).await
    }

    /// Resolves when the hold is lost; the announcement of a shutdown is no loss.
    pub(super) async fn lost_for_good(&self) -> LostReason {
        self.entered.hold.lost_for_good().await
    }

    /// A view of the hold that spawned subtasks can keep. It does not keep the lock.
    #[must_use]
    pub fn hold(&self) -> HoldView {
        HoldView {
            clock: self.engine.core.config.clock.clone(),
            process: self.engine.core.process,
            hold: Arc::clone(&self.entered.hold),
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
        let core = &self.engine.core;
        core.check_open()?;
        self.check()?;
        let verified = verify::verify(core, &self.entered.hold).await;
        verified.map_err(|error| error.about(self.name()))
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
        let entered = self.enter(lease.into()).await;
        entered.map_err(|error| error.about(self.name()))
    }

    async fn enter(&self, lease: Lease) -> Result<Self, Error> {
        let core = &self.engine.core;
        let level = level(lease);
        let lease = lease.resolve(core.config.watchdog_lease, &core.config.lease_bounds)?;
        let entered = Entered {
            level,
            open: true,
            ..self.entered.clone()
        };
        let kind = &self.entered.hold.kind;
        let entered = reentry::enter(core, entered, kind, lease, Patience::Forever).await?;
        // This guard's own level is alive, so the hold cannot be over.
        let entered = entered.ok_or_else(Error::not_owner)?;
        Ok(Self::new(Arc::clone(&self.engine), entered))
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
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice"
    )]
    pub fn unlock(mut self) -> impl Future<Output = Result<(), Error>> + Send {
        async move {
            self.entered.open = false;
            let given_back = release::give_back(&self.engine.core, &self.entered).await;
            given_back.map_err(|error| error.about(self.name()))
        }
    }

    /// Raises the promise of a fixed lease: from now on Redis keeps the hold for at least `lease`, and it is
    /// valid for that less the drift (1 % of the lease and 2 ms). Never lowers it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLease`] for a level under the watchdog, or a lease out of bounds;
    /// [`Error::Lost`]; [`Error::Unavailable`], [`Error::Refused`], [`Error::Denied`], [`Error::Closed`] of the
    /// command; [`Error::Config`] with [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a tokio
    /// runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease was raised or not.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let raised = self.raise(lease).await;
        raised.map_err(|error| error.about(self.name()))
    }

    async fn raise(&self, lease: Duration) -> Result<(), Error> {
        let core = &self.engine.core;
        core.check_open()?;
        if self.entered.level != Level::Fixed {
            return Err(LeaseError::Watchdog.into());
        }
        let lease = LeaseMs::new(lease, &core.config.lease_bounds)?;
        self.check()?;
        let count = self.hold_count();
        let hold = &self.entered.hold;
        reentry::write(core, hold, &hold.kind, count, lease, Patience::Once).await
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
        if let Err(lost) = self.check() {
            return Err(self.back_with(lost));
        }
        let owner = self.entered.owner.clone();
        if owner.is_some_and(|owner| owner.detach(&self.entered.hold, self.entered.level)) {
            self.entered.open = false;
            Ok(())
        } else {
            Err(self.back_with(Error::not_owner()))
        }
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
        if let Err(lost) = self.check() {
            return Err(self.back_with(lost));
        }
        if self.entered.level == Level::Watchdog {
            return Err(self.back_with(LeaseError::Watchdog.into()));
        }
        if !self
            .entered
            .hold
            .with(|state| state.let_expire(self.entered.level))
        {
            // Lost in this very moment, or there are others.
            let refused = self.check().err();
            return Err(self.back_with(refused.unwrap_or(LeaseError::OtherLevels.into())));
        }
        self.entered.open = false;
        release::let_go(&self.engine.core, &self.entered);
        Ok(())
    }
}

impl LockGuard {
    fn back_with(self, error: Error) -> GuardError {
        let error = error.about(self.name());
        GuardError { guard: self, error }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.entered.open {
            release::drop_level(&self.engine.core, &self.entered);
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
