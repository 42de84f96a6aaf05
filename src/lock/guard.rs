//! One level of a hold, as a value; and a view of the hold for those who only watch it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::engine::hold::Hold;
use crate::engine::state::{Level, Phase};
use crate::engine::ticket::Patience;
use crate::engine::{Engine, reentry, release};
use crate::error::{Error, LostReason};
use crate::lease::LeaseMs;
use crate::process::Process;

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
#[must_use = "dropping a guard gives its level back at once"]
pub struct LockGuard {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    level: Level,
    armed: bool,
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
    pub(super) fn new(engine: Arc<Engine>, hold: Arc<Hold>, level: Level) -> Self {
        Self {
            engine,
            hold,
            level,
            armed: true,
        }
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold.kind.names().name()
    }

    /// The number of levels of the hold. Local.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        if self.engine.core.is_forked() {
            return 0;
        }
        self.hold.count()
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
        valid_for(&self.hold, core.process, core.now())
    }

    /// [`is_valid`](Self::is_valid) with the reason, for use with `?` before a step that must not be
    /// done without the lock. Local.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; [`Error::Closed`] after a `fork`, in the child.
    pub fn check(&self) -> Result<(), Error> {
        let core = &self.engine.core;
        check(&self.hold, core.process, core.now())
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
        lost(&self.hold, self.engine.core.process).await
    }

    /// Resolves when the hold is lost; the announcement of a shutdown is no loss.
    pub(super) async fn lost_for_good(&self) -> LostReason {
        self.hold.lost_for_good().await
    }

    /// A view of the hold that spawned subtasks can keep. It does not keep the lock.
    #[must_use]
    pub fn hold(&self) -> HoldView {
        HoldView {
            clock: self.engine.core.config.clock.clone(),
            process: self.engine.core.process,
            hold: Arc::clone(&self.hold),
        }
    }

    /// Enters the lock once more, under the watchdog: the hold ends when this level, too, is given back.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold is lost; [`Error::Unavailable`], [`Error::Refused`] when Redis gave
    /// no clean answer for `unavailable_after`; [`Error::Denied`], [`Error::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a level that was not returned is given back.
    pub async fn reenter(&self) -> Result<Self, Error> {
        let core = &self.engine.core;
        let lease = core.config.watchdog_lease;
        let level = Level::Watchdog;
        match reentry::enter(core, &self.hold, level, lease, Patience::Forever).await? {
            reentry::Entry::In => Ok(Self::new(
                Arc::clone(&self.engine),
                Arc::clone(&self.hold),
                level,
            )),
            // This guard's own level is alive, so the hold cannot be over.
            reentry::Entry::Over => Err(Error::NotOwner),
        }
    }

    /// Gives the level back, and waits for Redis to say so. The last level ends the hold and wakes the
    /// next waiter.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost before: what it protected may have been touched by others.
    /// [`Error::Unavailable`] or [`Error::Refused`] after the command time-out: the level is given back
    /// all the same, and the release is repeated in the background until the lease has ended.
    /// [`Error::Denied`] when Redis denies the release: the lock stays until its lease ends.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the level is given back at the first poll, the rest is done in the background.
    pub async fn unlock(mut self) -> Result<(), Error> {
        self.armed = false;
        release::give_back(&self.engine.core, &self.hold, self.level).await
    }

    /// Raises the promise of a fixed lease: from now on the hold is valid for at least `lease`. Never
    /// lowers it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLease`] for a level under the watchdog, or a lease out of bounds;
    /// [`Error::Lost`]; and the errors of a command.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease was raised or not.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let core = &self.engine.core;
        core.check_open()?;
        if self.level != Level::Fixed {
            return Err(Error::InvalidLease);
        }
        let lease = LeaseMs::new(lease, &core.config.lease_bounds)?;
        self.check()?;
        let count = self.hold_count();
        reentry::write(core, &self.hold, count, lease, Patience::Once).await
    }

    /// Leaves the level to the owner: `unlock` of a handle gives it back, in another place than where it
    /// was taken, as Redisson's `unlock` does. When the owner ends, what is detached is given back.
    ///
    /// # Errors
    ///
    /// The guard comes back with [`Error::NotOwner`] when it was acquired without an owner, or its owner
    /// has ended; with [`Error::Lost`] when the hold is lost.
    pub fn detach(mut self) -> Result<(), (Self, Error)> {
        if let Err(lost) = self.check() {
            return Err((self, lost));
        }
        let owner = self.hold.owner.as_ref().and_then(std::sync::Weak::upgrade);
        if owner.is_some_and(|owner| owner.detach(&self.hold, self.level)) {
            self.armed = false;
            Ok(())
        } else {
            Err((self, Error::NotOwner))
        }
    }

    /// Leaves the key to its lease on purpose, for jobs that must run once in an interval. From then on it
    /// is a stranger's to this client, too.
    ///
    /// # Errors
    ///
    /// The guard comes back with [`Error::InvalidLease`] when the level is under the watchdog or not the
    /// only one; with [`Error::Lost`] when the hold is lost.
    pub fn let_expire(mut self) -> Result<(), (Self, Error)> {
        if let Err(lost) = self.check() {
            return Err((self, lost));
        }
        if !self.hold.with(|state| state.let_expire(self.level)) {
            return Err((self, Error::InvalidLease));
        }
        self.armed = false;
        release::let_go(&self.engine.core, &self.hold);
        Ok(())
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.armed {
            release::drop_level(&self.engine.core, &self.hold, self.level);
        }
    }
}

/// A view of a hold, for subtasks that must know whether it is still valid. Cheap to clone; it does not
/// keep the lock.
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
    clock: Clock,
    process: Process,
    hold: Arc<Hold>,
}

impl std::fmt::Debug for HoldView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HoldView")
            .field("name", &self.hold.kind.names().name())
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl HoldView {
    /// As [`LockGuard::is_valid`]; false once the hold has ended.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// As [`LockGuard::valid_for`]; zero once the hold has ended.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        valid_for(&self.hold, self.process, self.clock.now())
    }

    /// As [`LockGuard::check`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; [`Error::NotOwner`] once the hold has ended; [`Error::Closed`] after a `fork`, in
    /// the child.
    pub fn check(&self) -> Result<(), Error> {
        check(&self.hold, self.process, self.clock.now())
    }

    /// As [`LockGuard::lost`]; pending for ever once the hold has ended in order.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        lost(&self.hold, self.process).await
    }
}

/// How much longer the client vouches for `hold`; not at all in a child of its process.
fn valid_for(hold: &Hold, process: Process, now: Moment) -> Duration {
    if process.is_forked() {
        return Duration::ZERO;
    }
    now.until(hold.valid_until())
}

fn check(hold: &Hold, process: Process, now: Moment) -> Result<(), Error> {
    if process.is_forked() {
        return Err(Error::Closed);
    }
    if let Some(reason) = hold.lost_reason(now) {
        return Err(Error::Lost { reason });
    }
    match hold.with(|state| state.phase) {
        Phase::Held => Ok(()),
        _ => Err(Error::NotOwner),
    }
}

/// Resolves when `hold` is lost. The child of a `fork` has no keeper that would tell it.
async fn lost(hold: &Hold, process: Process) -> LostReason {
    let mut lost = pin!(hold.lost());
    poll_fn(|context| {
        if process.is_forked() {
            return Poll::Ready(LostReason::KeeperEnded);
        }
        lost.as_mut().poll(context)
    })
    .await
}
