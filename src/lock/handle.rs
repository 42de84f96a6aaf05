//! A handle: a lock of some kind by name. The verbs are the same for every kind.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use super::acting::LockOfClient;
use super::guard::{IsGuard, LockGuard, LockKind};
use super::object::{LockInfo, Ttl, is_a_lock};
use crate::config::Config;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::OwnerState;
use crate::engine::keeper::Engine;
use crate::error::Error;
use crate::lease::Lease;

/// A lock of the kind `K` by name.
///
/// Each kind has an alias of it: [`ReentrantLock`](crate::ReentrantLock) and so on. Its methods return the guard of the kind.
///
/// The `get_…` methods of [`Client`](crate::Client) and [`Owner`](crate::Owner) make it without I/O. It is cheap to clone,
/// and made to be kept, shared and sent to tasks. It holds no lock.
///
/// **Whom it acts for.** A handle of an [`Owner`](crate::Owner) acts for that owner, wherever it is used, and enters again
/// what the owner holds. A handle of a client acts for the [scope](crate::Client::scope) that it is used in. Outside of
/// any scope it acts for nobody: each acquire is on its own, so two tasks that share the handle exclude each other, and
/// only [`LockGuard::reenter`] enters again.
///
/// ```no_run
/// # async fn example() -> Result<(), watchlock::Error> {
/// let client = watchlock::Client::connect("redis://127.0.0.1/").await?;
/// let lock = client.get_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … nobody else is here …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
pub struct Handle<K> {
    lock: LockOfClient,
    of: PhantomData<fn() -> K>,
}

/// Not derived: the kind itself need not be `Clone`.
impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        Self {
            lock: self.lock.clone(),
            of: PhantomData,
        }
    }
}

impl<K: LockKind> std::fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(K::HANDLE)
            .field("name", &self.name())
            .field("has_owner", &self.lock.has_owner())
            .finish_non_exhaustive()
    }
}

impl<K: LockKind> Handle<K> {
    /// The lock `name`, as `kind` makes it.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        name: &str,
        owner: Option<&Arc<OwnerState>>,
        kind: impl FnOnce(&Config, &str) -> Result<Kind, Error>,
    ) -> Self {
        Self {
            lock: LockOfClient::new(engine, name, owner, kind),
            of: PhantomData,
        }
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    #[doc(alias = "getName")]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Waits for the lock without a limit. The watchdog keeps it while the guard lives.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`]; [`Error::WrongType`]; [`Error::Denied`]; [`Error::Closed`];
    /// [`Error::Unavailable`] or [`Error::Refused`] when Redis was unreachable or refused for
    /// `unavailable_after` (5 s unless set); [`Error::Lost`] when the owner it acts for has lost this
    /// lock and still has guards of it; [`Error::Config`] with
    /// [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropped at any point, it leaves nothing behind once the background clean-up is
    /// done. The place in the queue is lost.
    #[doc(alias = "lockAsync")]
    #[doc(alias = "lockInterruptibly")]
    pub async fn lock(&self) -> Result<K::Guard, Error> {
        let got = self.lock.acquire(None, Lease::Watchdog).await?;
        K::Guard::of(got.ok_or(Error::Closed)?)
    }

    /// Waits for the lock and takes it for a fixed lease. When `lease` is over, the hold is lost, unless it was extended or
    /// given back before.
    ///
    /// `lease` has whole milliseconds (the rest is cut off), 10 ms to 365 days. The guard is valid
    /// for the lease less the drift: [`Lease::Fixed`].
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::InvalidLease`].
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn lock_for(&self, lease: Duration) -> Result<K::Guard, Error> {
        let got = self.lock.acquire(None, Lease::Fixed(lease)).await?;
        K::Guard::of(got.ok_or(Error::Closed)?)
    }

    /// Waits for the lock for at most `wait`. `None` when it was busy to the end.
    ///
    /// `Duration::ZERO` makes one try, `Duration::MAX` waits without a limit. `lease` is
    /// [`Lease::Watchdog`] or a fixed [`Duration`]. Returns within the longer of `wait` and the
    /// command time-out.
    ///
    /// # Errors
    ///
    /// As [`lock_for`](Self::lock_for). Transient errors are retried within `wait`; at its end the last one is returned,
    /// unless the last answer was busy.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    #[doc(alias = "tryLock")]
    #[doc(alias = "tryLockAsync")]
    pub async fn try_lock(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<K::Guard>, Error> {
        let got = self.lock.acquire(Some(wait), lease.into()).await?;
        got.map(K::Guard::of).transpose()
    }

    /// Runs `body` under the lock, and cancels it when the hold is lost.
    ///
    /// The body is not polled any more once the hold's validity has ended, also when the runtime was blocked meanwhile. A
    /// release that merely fails (Redis is unreachable or refuses) is logged and not returned, as the work is done.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::Lost`] when the hold was lost before the body ended, also when only the
    /// release finds that out.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body and gives the lock back.
    pub async fn run<T>(&self, body: impl AsyncFnOnce(&K::Guard) -> T) -> Result<T, Error> {
        let guard = self.lock().await?;
        run_under(guard, body).await
    }

    /// As [`run`](Self::run), with [`try_lock`](Self::try_lock). `None` when the lock stayed busy.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), and [`Error::Lost`] as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn try_run<T>(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
        body: impl AsyncFnOnce(&K::Guard) -> T,
    ) -> Result<Option<T>, Error> {
        match self.try_lock(wait, lease).await? {
            Some(guard) => run_under(guard, body).await.map(Some),
            None => Ok(None),
        }
    }

    /// Gives back the newest level that was [detached](LockGuard::detach) to the owner this handle acts for.
    ///
    /// # Errors
    ///
    /// [`Error::NotOwner`] when there is none, and always without an owner; else as
    /// [`LockGuard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::unlock`].
    #[doc(alias = "unlockAsync")]
    pub async fn unlock(&self) -> Result<(), Error> {
        self.lock.unlock().await
    }

    /// Whether anybody holds the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`]; [`Error::Unavailable`], [`Error::Refused`], [`Error::Denied`],
    /// [`Error::Closed`] of the command; [`Error::Config`] with
    /// [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    #[doc(alias = "isLocked")]
    pub async fn is_locked(&self) -> Result<bool, Error> {
        self.lock.is_locked().await
    }

    /// Whether the owner this handle acts for holds the lock, validly. Local; false without an owner.
    #[must_use]
    #[doc(alias = "isHeldByCurrentThread")]
    #[doc(alias = "isHeldByThread")]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many levels the owner this handle acts for holds. Local; 0 without an owner.
    #[must_use]
    #[doc(alias = "getHoldCount")]
    pub fn hold_count(&self) -> u32 {
        self.lock.hold_count()
    }

    /// How much longer Redis keeps the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    #[doc(alias = "remainTimeToLive")]
    pub async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        self.lock.remain_time_to_live().await
    }

    /// Releases the lock, whoever holds it, and wakes the next waiter. Returns whether anybody held it.
    ///
    /// For operators: the holder goes on until it notices the loss. A hold of this client is lost at once, with reason
    /// [`Forced`](crate::LostReason::Forced). Other clients notice at their next renewal, or at the end of a fixed lease.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] when the key is not a lock of this kind, and is left unchanged. Else as
    /// [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// The command may have been executed or not.
    #[doc(alias = "forceUnlock")]
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.lock.force_unlock().await
    }

    fn lock_info(&self) -> LockInfo {
        self.lock.info()
    }
}

is_a_lock!(Handle<K>, of K);

/// Runs `body` while `guard` is valid, and gives the guard back: what `run` and `try_run` do once they have the guard.
///
/// 1. The body is polled only while the hold is valid by the clock.
/// 2. The hold counts as lost before the body ended if the clock or Redis shows that at the release.
pub(super) async fn run_under<G: IsGuard, T>(
    guard: G,
    body: impl AsyncFnOnce(&G) -> T,
) -> Result<T, Error> {
    let value = while_valid(&guard, body).await?;
    let guard: LockGuard = guard.into();
    let name = guard.name().to_owned();
    match guard.unlock().await {
        Err(lost) if lost.is_lost() => Err(lost),
        Err(error) => {
            tracing::warn!(name, %error, "the release after a run failed");
            Ok(value)
        }
        Ok(()) => Ok(value),
    }
}

async fn while_valid<G: IsGuard, T>(
    guard: &G,
    body: impl AsyncFnOnce(&G) -> T,
) -> Result<T, Error> {
    let level = guard.level();
    let span = tracing::debug_span!("run", name = level.name());
    let mut body = pin!(body(guard).instrument(span));
    let hold = level.hold();
    // An announcement of a shutdown does not cancel the body.
    let mut lost = pin!(hold.wait_for_loss(false));
    poll_fn(|context| {
        // The clock first: after the runtime was blocked, the loss may not have been reported yet.
        level.check()?;
        if let Poll::Ready(reason) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(Error::lost(reason)));
        }
        body.as_mut().poll(context).map(Ok)
    })
    .await
}
