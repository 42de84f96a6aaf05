//! Guards (one level of a hold), and the trait that every kind of guard implements.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use super::view::{HoldOf, HoldOfSeveral, HoldView};
use crate::backend::Timers;
use crate::engine::caller::acquire::request;
use crate::engine::caller::enter::{self, NewLevel};
use crate::engine::caller::release;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::HeldLevel;
use crate::engine::hold::state::{HoldState, Level, Phase};
use crate::engine::keeper::Engine;
use crate::error::{Error, LeaseError, LostReason};
use crate::fencing::FencingToken;
use crate::lease::Lease;

/// A lock that is held. Dropping the guard gives it back; of nested guards, the last one does.
///
/// Use [`unlock`](Self::unlock) where you can: it reports whether the lock was held to the end. A drop leaves the release
/// to the client's background thread.
///
/// A guard can be moved to another task or thread, and outlives its handle. While a guard with a watchdog lease exists,
/// the lock is kept alive, also when its task is stuck. A leaked guard keeps the lock as long as the process lives.
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
///
/// **In a struct** it is a field like any other: it has no lifetime, and keeps its client. `unlock` takes it by value, which
/// a method with `&mut self`, or a type with a `Drop`, cannot give away ("cannot move out of `self.guard`"):
///
/// ```compile_fail
/// struct Job {
///     guard: watchlock::LockGuard,
/// }
///
/// impl Job {
///     async fn stop(&mut self) -> Result<(), watchlock::Error> {
///         self.guard.unlock().await
///     }
/// }
/// ```
///
/// An `Option` can:
///
/// ```no_run
/// struct Job {
///     guard: Option<watchlock::LockGuard>,
/// }
///
/// impl Job {
///     async fn stop(&mut self) -> Result<(), watchlock::Error> {
///         match self.guard.take() {
///             Some(guard) => guard.unlock().await,
///             None => Ok(()),
///         }
///     }
/// }
/// ```
#[clippy::has_significant_drop]
#[must_use = "dropping a guard gives its level back at once"]
pub struct LockGuard {
    hold: HoldView,
    level: LevelOf,
}

enum LevelOf {
    Single(SingleLevel),
    Several(Box<dyn LevelOfSeveral>),
}

/// The same call of a level, whatever it is of.
macro_rules! each {
    ($of:expr, $level:ident => $call:expr) => {
        match $of {
            LevelOf::Single($level) => $call,
            LevelOf::Several($level) => $call,
        }
    };
}

/// A level of a hold of several locks as one, as a guard sees it.
#[async_trait]
pub(super) trait LevelOfSeveral: Send + Sync {
    fn hold_count(&self) -> u32;
    fn timers(&self) -> Option<Timers>;
    async fn verify(&self) -> Result<(), Error>;
    async fn extend(&self, lease: Duration) -> Result<(), Error>;
    async fn reenter(&self, lease: Lease) -> Result<Box<dyn LevelOfSeveral>, Error>;
    async fn unlock(self: Box<Self>) -> Result<(), Error>;
    fn may_detach(&self) -> Result<(), Error>;
    fn detach(&mut self) -> Result<(), Error>;
    fn leave_to_owner(self: Box<Self>);
    fn may_expire(&self) -> Result<(), Error>;
    fn let_expire(&mut self) -> Result<(), Error>;
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
    pub(super) fn new(engine: &Arc<Engine>, entered: NewLevel<'_>) -> Self {
        let level = SingleLevel {
            engine: Arc::clone(engine),
            entered: enter::taken(entered),
        };
        Self {
            hold: level.view(),
            level: LevelOf::Single(level),
        }
    }

    pub(super) fn of_several(
        hold: Arc<dyn HoldOfSeveral>,
        level: impl LevelOfSeveral + 'static,
    ) -> Self {
        Self {
            hold: HoldView {
                of: HoldOf::Several(hold),
            },
            level: LevelOf::Several(Box::new(level)),
        }
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold.name()
    }

    /// The number of levels of the hold. Local.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        each!(&self.level, level => level.hold_count())
    }

    /// The hold's [fencing token](FencingToken). A hold has one if a [fenced](crate::FencedLock) handle started or entered
    /// it; that of a [`MultiLock`](crate::MultiLock) has none. Local.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.hold.token()
    }

    /// The hold's id in Redis, as [`Holder::hold_id`](crate::Holder) shows it. `None` for a [`MultiLock`](crate::MultiLock)
    /// and a [`Quorum`](crate::Quorum), whose holds have one for each lock. Local.
    #[must_use]
    pub fn hold_id(&self) -> Option<&str> {
        match &self.level {
            LevelOf::Single(single) => Some(&single.entered.hold.in_redis().id),
            LevelOf::Several(_) => None,
        }
    }

    /// Whether the hold is valid now: it is not lost, and its validity has not ended by the local clock. No I/O.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }

    /// How much longer the hold is valid if nothing renews it; zero when it is not valid. This is about the hold, not
    /// about this level. Local.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.hold.valid_for()
    }

    /// As [`is_valid`](Self::is_valid), with the reason. Use it with `?` before a step that needs the lock. Local.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        self.hold.check()
    }

    /// Resolves when the hold is lost, at the latest about 2 ms before its validity ends, also while Redis is unreachable.
    /// Never resolves otherwise.
    ///
    /// A [`shutdown`](crate::Client::shutdown) of the client is no loss before its time-out:
    /// [`shutting_down`](crate::Client::shutting_down) announces it. [`HoldView::ended`] also resolves when the hold is given
    /// back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        self.is_used();
        self.hold.lost().await
    }

    /// A view of the hold for spawned subtasks. It does not keep the lock.
    #[must_use]
    pub fn hold(&self) -> HoldView {
        self.hold.clone()
    }

    /// Asks Redis whether the hold is there. Use it before a step that cannot be undone. One round trip.
    ///
    /// It is a write, which only a master accepts: it sets the lease to what the client counts on, and renews it under the
    /// watchdog. [`check`](Self::check) is local.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold is not there, or was lost before; [`Error::Unavailable`] or
    /// [`Error::Refused`] when Redis did not answer that within a command time-out; [`Error::Denied`],
    /// [`Error::Closed`]; [`Error::Config`] with [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a
    /// tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease may have been written or not.
    pub async fn verify(&self) -> Result<(), Error> {
        self.is_used();
        each!(&self.level, level => level.verify().await).map_err(|error| error.about(self.name()))
    }

    /// Enters the lock again. The hold ends when the new level is given back, too. `lease` is [`Lease::Watchdog`],
    /// [`Lease::AtMost`] or a fixed [`Duration`], whatever the lease of this level is.
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
        self.is_used();
        let lease = lease.into();
        let entered = match &self.level {
            LevelOf::Single(single) => single.enter_as(&single.entered.hold.kind, lease).await,
            LevelOf::Several(level) => level.reenter(lease).await.map(|level| Self {
                hold: self.hold(),
                level: LevelOf::Several(level),
            }),
        };
        entered.map_err(|error| error.about(self.name()))
    }

    /// Gives the level back and waits for the answer of Redis, for a
    /// [`command_timeout`](crate::ClientBuilder::command_timeout) at most, also outside of a runtime. The last level ends the
    /// hold and wakes the next waiter.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost before: others may have changed what it protects.
    /// [`Error::Unavailable`] or [`Error::Refused`] after the command time-out: the level counts as given back, and the
    /// background repeats the release until the lease ends. [`Error::Denied`] when Redis denies the release: it is not
    /// repeated, and the lock stays until its lease ends. [`Error::Closed`] when the client was closed before.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the first poll gives the level back, and the background finishes the rest.
    pub fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send {
        match self.level {
            LevelOf::Single(single) => single.unlock().left_future(),
            LevelOf::Several(level) => level.unlock().right_future(),
        }
    }

    /// Turns a level of a write hold into one of a read hold.
    pub(super) async fn downgraded(self) -> Result<Self, Error> {
        match self.level {
            LevelOf::Single(single) => single.downgraded().await,
            LevelOf::Several(_) => Ok(self),
        }
    }

    /// Extends a fixed lease: from now on Redis keeps the hold for at least `lease`, and it is valid for that less the
    /// drift (1 % of the lease and 2 ms). Never shortens it.
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
    /// Cancel safe: the lease may have been extended or not.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.is_used();
        each!(&self.level, level => level.extend(lease).await)
            .map_err(|error| error.about(self.name()))
    }

    /// Leaves the level to its owner. `unlock` of a handle that acts for the owner gives it back, anywhere, as Redisson's
    /// `unlock` does. When the owner ends, its detached levels are given back.
    ///
    /// # Errors
    ///
    /// A [`GuardError`] returns the guard: [`Error::NotOwner`] when it was acquired without an owner, or its owner has
    /// ended; [`Error::Lost`] when the hold is lost; [`Error::Closed`]. `?` drops the guard, which gives its level back.
    pub fn detach(mut self) -> Result<(), GuardError> {
        let detached = each!(&mut self.level, level => level.detach());
        detached.map_err(|error| GuardError::new(self, error))
    }

    /// Leaves the lock to its lease on purpose, for jobs that must run once in an interval. From then on the lock is held by
    /// somebody else, also for this client.
    ///
    /// # Errors
    ///
    /// A [`GuardError`] returns the guard: [`Error::InvalidLease`] when the level is under the watchdog or not the only
    /// one; [`Error::Lost`] when the hold is lost; [`Error::Closed`]. `?` drops the guard, which gives its level back.
    pub fn let_expire(mut self) -> Result<(), GuardError> {
        let let_go = each!(&mut self.level, level => level.let_expire());
        let_go.map_err(|error| GuardError::new(self, error))
    }
}

/// For other kinds of guards, and for holds of several locks.
impl LockGuard {
    /// The end of its lease may be taken off from now on.
    pub(super) fn may_never_end(&self) {
        if let LevelOf::Single(single) = &self.level {
            single.entered.hold.with(HoldState::may_never_end);
        }
    }

    /// Calls `act` if the hold is valid, and cannot be lost meanwhile. Returns whether it did.
    pub(super) fn while_held(&self, act: impl FnOnce()) -> bool {
        let LevelOf::Single(single) = &self.level else {
            return false;
        };
        let now = single.engine.core.now();
        single.entered.hold.with(|state| {
            state.expire(now);
            let is_held = state.phase() == Phase::Held;
            if is_held {
                act();
            }
            is_held
        })
    }

    /// Awaits an answer about the hold, but no longer than the hold lasts: the answer to a lost hold is that it is lost.
    pub(super) async fn answered<T>(
        &self,
        asked: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match &self.level {
            LevelOf::Single(single) => {
                enter::while_held(&single.engine.core, &single.entered.hold, asked).await
            }
            LevelOf::Several(_) => asked.await,
        }
    }

    /// It is in the hands of the current task.
    fn is_used(&self) {
        if let LevelOf::Single(single) = &self.level {
            single.entered.hold.is_used();
        }
    }

    /// Timers that work on every runtime.
    pub(crate) fn timers(&self) -> Option<Timers> {
        match &self.level {
            LevelOf::Single(single) => Some(single.engine.core.backend.timers().clone()),
            LevelOf::Several(level) => level.timers(),
        }
    }

    /// Enters a hold of one lock again, as a lock of another kind of the same family.
    pub(super) async fn enter_as(&self, kind: &Kind, lease: Lease) -> Result<Self, Error> {
        match &self.level {
            LevelOf::Single(single) => single.enter_as(kind, lease).await,
            LevelOf::Several(_) => Err(Error::not_owner()),
        }
    }

    /// How long the server had been up when it granted the hold; None for several locks, and where servers are not asked.
    pub(super) fn server_age(&self) -> Option<Duration> {
        match &self.level {
            LevelOf::Single(single) => single.entered.hold.server_age(),
            LevelOf::Several(_) => None,
        }
    }

    pub(super) fn may_detach(&self) -> Result<(), Error> {
        each!(&self.level, level => level.may_detach()).map_err(|error| error.about(self.name()))
    }

    /// Leaves the level to its owner after [`may_detach`](Self::may_detach) allowed it. If the owner has ended meanwhile,
    /// the level is given back.
    pub(super) fn leave_to_owner(self) {
        each!(self.level, level => level.leave_to_owner());
    }

    pub(super) fn may_expire(&self) -> Result<(), Error> {
        each!(&self.level, level => level.may_expire()).map_err(|error| error.about(self.name()))
    }
}

/// One level of a hold of one lock. Dropping it gives the level back.
struct SingleLevel {
    engine: Arc<Engine>,
    entered: HeldLevel,
}

impl SingleLevel {
    fn hold_count(&self) -> u32 {
        enter::levels(&self.engine.core, &self.entered.hold)
    }

    fn check(&self) -> Result<(), Error> {
        self.view().check()
    }

    fn view(&self) -> HoldView {
        let clock = self.engine.core.config.clock.clone();
        HoldView {
            of: HoldOf::Single(clock, Arc::clone(&self.entered.hold)),
        }
    }

    fn about(&self, error: Error) -> Error {
        error.about(self.entered.hold.kind.names.name())
    }

    async fn verify(&self) -> Result<(), Error> {
        let core = &self.engine.core;
        core.check_open()?;
        self.check()?;
        enter::verify(core, &self.entered.hold).await
    }

    /// Enters the hold as a lock of this kind, which is of the same family.
    async fn enter_as(&self, kind: &Kind, lease: Lease) -> Result<LockGuard, Error> {
        let core = &self.engine.core;
        let HeldLevel { hold, owner, .. } = &self.entered;
        let request = request(core, kind.clone(), owner.clone(), lease, None)?;
        let entered = enter::enter(core, hold, &request).await?;
        // None would mean that the hold is over, and this level keeps it.
        let entered = entered.ok_or_else(Error::not_owner)?;
        Ok(LockGuard::new(&self.engine, entered))
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice"
    )]
    fn unlock(mut self) -> impl Future<Output = Result<(), Error>> + Send {
        async move {
            self.entered.open = false;
            let given_back = release::give_back(&self.engine.core, &self.entered).await;
            given_back.map_err(|error| self.about(error))
        }
    }

    async fn downgraded(mut self) -> Result<LockGuard, Error> {
        self.entered.open = false;
        let turned = enter::downgrade(&self.engine.core, &self.entered).await;
        let entered = turned.map_err(|error| self.about(error))?;
        Ok(LockGuard::new(&self.engine, entered))
    }

    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let core = &self.engine.core;
        core.check_open()?;
        if self.entered.level != Level::Fixed {
            return Err(LeaseError::Watchdog.into());
        }
        let (kind, once) = (self.entered.hold.kind.clone(), Some(Duration::ZERO));
        let request = request(core, kind, None, Lease::Fixed(lease), once)?;
        self.check()?;
        let hold = &self.entered.hold;
        enter::write(core, hold, &request, hold.count()).await
    }

    fn may_detach(&self) -> Result<(), Error> {
        self.check()?;
        match &self.entered.owner {
            Some(owner) if !owner.has_ended() => Ok(()),
            _ => Err(Error::not_owner()),
        }
    }

    /// Leaves the level to its owner. Unchanged on an error.
    fn detach(&mut self) -> Result<(), Error> {
        self.may_detach()?;
        if self.is_taken_by_owner() {
            return Ok(());
        }
        Err(Error::not_owner())
    }

    /// Leaves the level to its owner after `may_detach` allowed it, also if the hold was lost meanwhile. If the owner has
    /// ended meanwhile, the level is given back.
    fn leave_to_owner(mut self) {
        self.is_taken_by_owner();
    }

    fn is_taken_by_owner(&mut self) -> bool {
        let HeldLevel {
            hold, level, owner, ..
        } = &self.entered;
        let taken = owner
            .as_ref()
            .is_some_and(|owner| owner.detach(hold, *level));
        self.entered.open &= !taken;
        taken
    }

    fn may_expire(&self) -> Result<(), Error> {
        self.check()?;
        if self.entered.level != Level::Fixed {
            return Err(LeaseError::Watchdog.into());
        }
        if self.hold_count() > 1 {
            return Err(LeaseError::OtherLevels.into());
        }
        Ok(())
    }

    /// Leaves the hold to its lease. Unchanged on an error.
    fn let_expire(&mut self) -> Result<(), Error> {
        self.may_expire()?;
        if !release::let_expire(&self.engine.core, &self.entered) {
            // It was lost or entered again meanwhile.
            self.check()?;
            return Err(LeaseError::OtherLevels.into());
        }
        self.entered.open = false;
        Ok(())
    }
}

impl Drop for SingleLevel {
    fn drop(&mut self) {
        if self.entered.open {
            release::drop_level(&self.engine.core, &self.entered);
        }
    }
}

/// A refused [`LockGuard::detach`] or [`LockGuard::let_expire`]: the error, and the unchanged guard.
///
/// It converts into [`Error`], so `?` works. That drops the guard, which gives its level back.
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
    fn new(guard: LockGuard, error: Error) -> Self {
        let error = error.about(guard.name());
        Self { guard, error }
    }

    /// The reason.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The guard.
    pub fn into_guard(self) -> LockGuard {
        self.guard
    }

    /// Guard and reason.
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

/// A guard or permits: a level of a hold, with what the kind of lock adds to it.
#[doc(hidden)]
pub trait HasLevel: Send + Sync + 'static {
    fn level(&self) -> &LockGuard;
    fn into_level(self) -> LockGuard;
}

/// The guard of some kind of lock.
#[doc(hidden)]
pub trait IsGuard: sealed::Sealed + HasLevel + Into<LockGuard> {
    /// Fails when the level lacks what this guard promises.
    fn of(level: LockGuard) -> Result<Self, Error>;
}

pub(super) mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for LockGuard {}

impl IsGuard for LockGuard {
    fn of(level: LockGuard) -> Result<Self, Error> {
        Ok(level)
    }
}

impl HasLevel for LockGuard {
    fn level(&self) -> &LockGuard {
        self
    }

    fn into_level(self) -> LockGuard {
        self
    }
}
