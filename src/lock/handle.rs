//! A handle: a lock of some kind by name, and whom it acts for.
//!
//! The verbs are the same for every kind; what they come down to is in [`acting`](super::acting).

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::acting::Acting;
use super::kind::{IsGuard, LockKind};
use super::object::is_a_lock;
use super::run::run_under;
use super::{LockGuard, LockInfo, Ttl, scope};
use crate::config::Config;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::OwnerState;
use crate::engine::keep_alive::Engine;
use crate::error::Error;
use crate::lease::Lease;

/// A lock of the kind `K` by name.
///
/// Every kind has a name of its own for it: [`ReentrantLock`](crate::ReentrantLock) and so on; what the verbs
/// give is the kind's guard.
///
/// Made without I/O by the `get_…` methods of [`Client`](crate::Client) and [`Owner`](crate::Owner); cheap to
/// clone, made to be kept, shared and sent to tasks. It holds nothing.
///
/// **Whom it acts for.** One of an [`Owner`](crate::Owner) acts for that owner, wherever it is used, and
/// enters again what the owner holds. One of a client acts for the
/// [scope](crate::Client::scope) that it is used in; outside of any it acts for nobody: each acquire stands
/// for itself, so two tasks that share the handle exclude each other, and only
/// [`LockGuard::reenter`] enters again.
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
    handled: Handled,
    of: PhantomData<fn() -> K>,
}

/// A handle without its type.
#[derive(Clone)]
pub(super) struct Handled {
    pub(super) engine: Arc<Engine>,
    kind: Result<Kind, Arc<BadName>>,
    owner: Option<Arc<OwnerState>>,
}

impl Handled {
    /// A lock of `engine` that acts for nobody.
    pub(super) fn ownerless(engine: &Arc<Engine>, kind: &Kind) -> Self {
        Self {
            engine: Arc::clone(engine),
            kind: Ok(kind.clone()),
            owner: None,
        }
    }

    /// Its kind and name, if it has a name that can be used.
    pub(super) fn kind(&self) -> Result<&Kind, Error> {
        self.kind.as_ref().map_err(|bad| bad.error.clone())
    }

    pub(super) fn name(&self) -> &str {
        match &self.kind {
            Ok(kind) => kind.names().name(),
            Err(bad) => &bad.name,
        }
    }

    fn info(&self) -> LockInfo {
        let core = &self.engine.core;
        let Ok(kind) = &self.kind else {
            return LockInfo::default();
        };
        LockInfo {
            has_queue: kind.has_queue(),
            command_timeout: core.config.command_timeout,
            ..LockInfo::of(core.client_id, kind.names())
        }
    }
}

/// What a handle says that cannot be used.
struct BadName {
    name: Box<str>,
    error: Error,
}

/// Not derived: the kind itself need not be `Clone`.
impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        Self {
            handled: self.handled.clone(),
            of: PhantomData,
        }
    }
}

impl<K: LockKind> std::fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(K::HANDLE)
            .field("name", &self.name())
            .field("has_owner", &self.handled.owner.is_some())
            .finish_non_exhaustive()
    }
}

impl<K: LockKind> Handle<K> {
    /// The lock `name`, made as `kind` says.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        name: &str,
        owner: Option<&Arc<OwnerState>>,
        kind: impl FnOnce(&Config, &str) -> Result<Kind, Error>,
    ) -> Self {
        let core = &engine.core;
        let kind = kind(&core.config, name).map(|kind| Kind {
            names: core.gates.known(kind.names),
            ..kind
        });
        let handled = Handled {
            engine: Arc::clone(engine),
            kind: kind.map_err(|error| {
                let name = name.into();
                Arc::new(BadName { name, error })
            }),
            owner: owner.cloned(),
        };
        Self {
            handled,
            of: PhantomData,
        }
    }

    /// Acts for its owner, or for the scope that this is called in, or for nobody.
    fn acting(&self) -> Acting<'_> {
        let handled = &self.handled;
        let ambient = || scope::current(handled.engine.core.client_id);
        Acting {
            handle: handled,
            owner: handled.owner.clone().or_else(ambient),
        }
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    #[doc(alias = "getName")]
    pub fn name(&self) -> &str {
        self.handled.name()
    }

    /// Waits for the lock, for as long as it takes. The watchdog keeps it for as long as the guard
    /// lives.
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
        K::Guard::of(self.acting().acquire_forever(Lease::Watchdog).await?)
    }

    /// Waits for the lock, and takes it for a fixed lease: when `lease` is over the hold is lost,
    /// unless it was extended or given back before.
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
        K::Guard::of(self.acting().acquire_forever(Lease::Fixed(lease)).await?)
    }

    /// Waits for the lock for at most `wait`; `None` when it was busy to the end.
    ///
    /// `Duration::ZERO` makes one try; `Duration::MAX` waits for ever. `lease` is
    /// [`Lease::Watchdog`] or a fixed [`Duration`]. Returns within the longer of `wait` and the
    /// command time-out.
    ///
    /// # Errors
    ///
    /// As [`lock_for`](Self::lock_for), but what may pass is retried within `wait`, and the last
    /// error is returned at its end unless the last answer was busy.
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
        let got = self.acting().acquire(Some(wait), lease.into()).await?;
        got.map(K::Guard::of).transpose()
    }

    /// Runs `body` under the lock, and cancels it when the hold is lost.
    ///
    /// The body is not polled any more once the hold's validity has ended, also when the runtime was
    /// blocked meanwhile. A release that merely fails (Redis unreachable, refused) is logged, not
    /// returned: the work is done.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::Lost`] when the hold was lost before the body ended, or
    /// the release finds that it was.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body and gives the lock back.
    pub async fn run<T>(&self, body: impl AsyncFnOnce(&K::Guard) -> T) -> Result<T, Error> {
        let guard = self.lock().await?;
        run_under(guard, body).await
    }

    /// As [`run`](Self::run) behind a [`try_lock`](Self::try_lock); `None` when the lock stayed busy.
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

    /// Gives back the newest level that was [detached](LockGuard::detach) by the owner this handle
    /// acts for.
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
        self.acting().unlock().await
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
        self.acting().locked().await
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
        self.acting().hold_count()
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
        self.acting().remain_time_to_live().await
    }

    /// Releases the lock, whoever holds it, and wakes the next waiter. Returns whether anybody held it.
    ///
    /// For operators: the holder's work goes on until it looks. A hold of this client is lost at
    /// once, with reason [`Forced`](crate::LostReason::Forced); others learn of it at their next
    /// renewal, or at the end of a fixed lease.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] when the key is no lock of this kind: it is left alone. Else as
    /// [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// The command may be executed or not.
    #[doc(alias = "forceUnlock")]
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.acting().force_unlock().await
    }
}

/// What the rest of this layer asks of a handle.
impl<K: LockKind> Handle<K> {
    fn about(&self) -> LockInfo {
        self.handled.info()
    }
}

is_a_lock!(Handle<K>, of K);
