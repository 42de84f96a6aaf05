//! A handle: a lock of some kind by name. The verbs are the same for every lock: a [`Handle`] has them once, over a
//! [`LockTarget`], which is one lock of a client ([`LockOfClient`]), several locks as one, or a lock of a quorum. What a handle
//! acts for, the owner of the innermost scope, is at the end.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::ready;
use tracing::field::Empty;
use uuid::Uuid;

use super::guard::{IsGuard, LockGuard, sealed};
use super::object::{Lock, LockInfo, Ttl, run_under};
use crate::backend::Failure;
use crate::config::Config;
use crate::engine::caller::acquire::{AcquireOutcome, HANDLE, acquire, request};
use crate::engine::caller::ask::{ask, tell_behind};
use crate::engine::caller::{enter, release};
use crate::engine::core::{Core, error_of};
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::{HeldLevel, OwnerState};
use crate::engine::hold::state::HoldState;
use crate::engine::keeper::Engine;
use crate::error::{Error, LostReason};
use crate::lease::Lease;
use crate::log::in_span;
use crate::script::{Call, Reply};

/// A lock by name, of the kind `K`: what `get_lock` and the like return.
///
/// Each kind has an alias of it: [`ReentrantLock`](crate::ReentrantLock) and so on. Its methods return the guard of the kind.
/// Code that takes any lock works with the trait [`Lock`](crate::Lock).
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
#[doc(alias = "mutex")]
pub struct Handle<K: LockKind> {
    target: K::Target,
}

/// A kind of lock: the type parameter of its [`Handle`]. Only this crate can implement it.
pub trait LockKind: sealed::Sealed + Send + Sync + 'static {
    /// The name of its handles in debug output.
    #[doc(hidden)]
    const HANDLE: &'static str;

    /// Whether its holds have fencing tokens.
    #[doc(hidden)]
    const FENCED: bool = false;

    /// What a handle leads to.
    #[doc(hidden)]
    type Target: LockTarget;

    /// What an acquire returns: a [`LockGuard`], or a guard around one.
    type Guard: IsGuard;
}

/// What a handle leads to: what the verbs of [`Handle`] are made of.
pub trait LockTarget: Clone + Send + Sync + 'static {
    fn name(&self) -> &str;
    fn has_owner(&self) -> bool;
    fn info(&self) -> LockInfo;

    /// Without `wait` it waits without a limit. Errors name the lock: done by the handle, that would cost each waiting
    /// caller 8 bytes.
    fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send;

    fn unlock(&self) -> impl Future<Output = Result<(), Error>> + Send;
    fn hold_count(&self) -> u32;
    fn is_locked(&self) -> impl Future<Output = Result<bool, Error>> + Send {
        async { Ok(self.remain_time_to_live().await? != Ttl::Free) }
    }
    fn remain_time_to_live(&self) -> impl Future<Output = Result<Ttl, Error>> + Send;
    fn force_unlock(&self) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// Not derived: the kind itself need not be `Clone`.
impl<K: LockKind> Clone for Handle<K> {
    fn clone(&self) -> Self {
        Self::to(self.target.clone())
    }
}

impl<K: LockKind> std::fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(K::HANDLE)
            .field("name", &self.name())
            .field("has_owner", &self.target.has_owner())
            .finish_non_exhaustive()
    }
}

impl<K: LockKind<Target = LockOfClient>> Handle<K> {
    /// The lock `name` of a client, as `kind` makes it.
    pub(crate) fn of_client(
        engine: &Arc<Engine>,
        name: &str,
        owner: Option<&Arc<OwnerState>>,
        kind: impl FnOnce(&Config, &str) -> Result<Kind, Error>,
    ) -> Self {
        Self::to(LockOfClient::new(engine, name, owner, kind))
    }
}

impl<K: LockKind> Handle<K> {
    pub(super) fn to(target: K::Target) -> Self {
        Self { target }
    }

    pub(super) fn target(&self) -> &K::Target {
        &self.target
    }

    pub(super) fn about<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| error.about(self.name()))
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    #[doc(alias = "getName")]
    pub fn name(&self) -> &str {
        self.target.name()
    }

    /// Waits for the lock without a limit. The watchdog keeps it while the guard lives.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`]; [`Error::CrossSlot`] in a cluster; [`Error::WrongType`]; [`Error::Denied`];
    /// [`Error::Unsupported`]; [`Error::Closed`]; [`Error::Unavailable`] or [`Error::Refused`] when Redis
    /// was unreachable or refused for `unavailable_after` (5 s unless set); [`Error::Lost`] when the owner it acts for has lost this
    /// lock and still has guards of it; [`Error::Config`] with
    /// [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropped at any point, it leaves nothing behind once the background clean-up is
    /// done. The place in the queue is lost.
    #[doc(alias = "acquire")]
    #[doc(alias = "lockAsync")]
    #[doc(alias = "lockInterruptibly")]
    pub async fn lock(&self) -> Result<K::Guard, Error> {
        let got = self.target.acquire(None, Lease::Watchdog).await?;
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
    pub async fn lock_with_lease(&self, lease: Duration) -> Result<K::Guard, Error> {
        let got = self.target.acquire(None, Lease::Fixed(lease)).await?;
        K::Guard::of(got.ok_or(Error::Closed)?)
    }

    /// Waits for the lock for at most `wait`. `None` when it was busy to the end.
    ///
    /// `Duration::ZERO` makes one try, `Duration::MAX` waits without a limit. `lease` is
    /// [`Lease::Watchdog`], [`Lease::AtMost`] or a fixed [`Duration`]. Returns within the longer of `wait` and the
    /// command time-out.
    ///
    /// Bind the guard. `if lock.try_lock(wait, lease).await?.is_some() { … }` compiles, and drops the guard before the block
    /// begins: the lock is free in it.
    ///
    /// ```no_run
    /// # async fn example(lock: watchlock::ReentrantLock) -> Result<(), watchlock::Error> {
    /// # use std::time::Duration;
    /// use watchlock::Lease;
    ///
    /// let Some(guard) = lock.try_lock(Duration::from_secs(1), Lease::Watchdog).await? else {
    ///     return Ok(()); // busy
    /// };
    /// // … nobody else is here …
    /// guard.unlock().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock_with_lease`](Self::lock_with_lease). Transient errors are retried within `wait`; at its end the last one is returned,
    /// unless the last answer was busy.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    #[doc(alias = "acquire")]
    #[doc(alias = "timeout")]
    #[doc(alias = "tryLock")]
    #[doc(alias = "tryLockAsync")]
    pub async fn try_lock(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<K::Guard>, Error> {
        let got = self.target.acquire(Some(wait), lease.into()).await?;
        got.map(K::Guard::of).transpose()
    }

    /// Runs `body` under the lock, and cancels it when the hold is lost.
    ///
    /// The body is not polled any more once the hold's validity has ended, also when the runtime was blocked meanwhile. A
    /// release that merely fails (Redis is unreachable or refuses) is logged and not returned, as the work is done.
    ///
    /// The body is an async closure, which may use the guard across its awaits:
    ///
    /// ```no_run
    /// # async fn example(lock: watchlock::ReentrantLock) -> Result<(), watchlock::Error> {
    /// let name = lock.run(async |guard| guard.name().to_owned()).await?;
    /// # drop(name);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A closure that returns an async block cannot. "Type annotations needed", or "lifetime may not live long enough", means
    /// that `async` belongs in front of the `|`:
    ///
    /// ```compile_fail
    /// # async fn example(lock: watchlock::ReentrantLock) -> Result<(), watchlock::Error> {
    /// let name = lock.run(|guard| async move { guard.name().to_owned() }).await?;
    /// # drop(name);
    /// # Ok(())
    /// # }
    /// ```
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
        let Some(guard) = self.try_lock(wait, lease).await? else {
            return Ok(None);
        };
        run_under(guard, body).await.map(Some)
    }

    /// Gives back the newest level that was [detached](LockGuard::detach) to the owner this handle acts for.
    ///
    /// # Errors
    ///
    /// [`Error::NotOwner`] when there is none, and always without an owner; [`Error::InvalidName`]; else as
    /// [`LockGuard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::unlock`].
    #[doc(alias = "unlockAsync")]
    pub async fn unlock(&self) -> Result<(), Error> {
        self.about(self.target.unlock().await)
    }

    /// Whether anybody holds the lock. Asks Redis. A key of another kind counts as held; for a read or write lock it does
    /// not.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`]; [`Error::CrossSlot`] in a cluster; [`Error::Unavailable`], [`Error::Refused`],
    /// [`Error::Denied`], [`Error::Closed`] of the command; [`Error::Config`] with
    /// [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    #[doc(alias = "isLocked")]
    pub async fn is_locked(&self) -> Result<bool, Error> {
        self.about(self.target.is_locked().await)
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
        self.target.hold_count()
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
        self.about(self.target.remain_time_to_live().await)
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
        self.about(self.target.force_unlock().await)
    }
}

#[async_trait]
impl<K: LockKind> Lock for Handle<K> {
    fn name(&self) -> &str {
        self.name()
    }

    async fn lock(&self) -> Result<LockGuard, Error> {
        Ok(self.lock().await?.into())
    }

    async fn lock_with_lease(&self, lease: Duration) -> Result<LockGuard, Error> {
        Ok(self.lock_with_lease(lease).await?.into())
    }

    async fn try_lock(&self, wait: Duration, lease: Lease) -> Result<Option<LockGuard>, Error> {
        let got = self.try_lock(wait, lease).await?;
        Ok(got.map(Into::into))
    }

    async fn unlock(&self) -> Result<(), Error> {
        self.unlock().await
    }

    async fn is_locked(&self) -> Result<bool, Error> {
        self.is_locked().await
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
        self.target.info()
    }
}

impl<K: LockKind> From<Handle<K>> for Arc<dyn Lock> {
    fn from(lock: Handle<K>) -> Self {
        Arc::new(lock)
    }
}

/// One lock of a client.
#[derive(Clone)]
pub struct LockOfClient {
    engine: Arc<Engine>,
    /// Or its name, and why it cannot be used.
    kind: Result<Kind, Arc<(Box<str>, Error)>>,
    owner: Option<Arc<OwnerState>>,
}

impl LockOfClient {
    /// The lock `name`, as `kind` makes it, for this owner.
    pub(super) fn new(
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
        Self {
            engine: Arc::clone(engine),
            kind: kind.map_err(|error| Arc::new((name.into(), error))),
            owner: owner.cloned(),
        }
    }

    /// The lock that this client has under that name, for an acquire of another kind of its family.
    pub(super) fn of_kind(&self, kind: Kind) -> Self {
        Self {
            kind: Ok(kind),
            ..self.clone()
        }
    }

    pub(super) fn ownerless(engine: &Arc<Engine>, kind: &Kind) -> Self {
        Self {
            engine: Arc::clone(engine),
            kind: Ok(kind.clone()),
            owner: None,
        }
    }

    pub(super) fn core(&self) -> &Core {
        &self.engine.core
    }

    /// Fails if the name or a setting cannot be used.
    pub(super) fn kind(&self) -> Result<&Kind, Error> {
        self.kind.as_ref().map_err(|unusable| unusable.1.clone())
    }

    /// The owner to act for: its own, or that of the scope that this is called in. Permits have none: each acquire takes
    /// more of them.
    fn acts_for(&self) -> Option<Arc<OwnerState>> {
        if matches!(&self.kind, Ok(kind) if kind.commands.leaves_the_seat()) {
            return None;
        }
        let ambient = || owner_in_scope(self.engine.core.client_id);
        self.owner.clone().or_else(ambient)
    }

    fn take_detached(&self) -> Result<HeldLevel, Error> {
        let kind = self.kind()?;
        let owner = self.acts_for().ok_or_else(Error::not_owner)?;
        let level = owner.take_detached(&kind.names, kind.commands.is_shared());
        level.ok_or_else(Error::not_owner)
    }
}

impl LockTarget for LockOfClient {
    fn name(&self) -> &str {
        match &self.kind {
            Ok(kind) => kind.names.name(),
            Err(unusable) => &unusable.0,
        }
    }

    fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    fn info(&self) -> LockInfo {
        let core = &self.engine.core;
        let Ok(kind) = &self.kind else {
            return LockInfo::default();
        };
        LockInfo {
            has_queue: kind.has_queue(),
            command_timeout: core.config.command_timeout,
            timers: Some(core.backend.timers().clone()),
            ..LockInfo::of(core.client_id, &kind.names)
        }
    }

    fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send {
        let core = &self.engine.core;
        let request = self
            .kind()
            .and_then(|kind| request(core, kind.clone(), self.acts_for(), lease, wait));
        let request = match request {
            Ok(request) => request,
            Err(error) => return ready(Err(error.about(self.name()))).right_future(),
        };
        let kind = request.kind.commands.rules().name;
        let (outcome, waited_ms) = (Empty, Empty);
        let name = self.name();
        let span = tracing::debug_span!(target: HANDLE, "acquire", name, kind, outcome, waited_ms);
        let acquiring = acquire(core, request).map(|got| match got {
            Ok(AcquireOutcome::In(entered)) => Ok(Some(LockGuard::new(&self.engine, entered))),
            Ok(AcquireOutcome::Busy(_)) => Ok(None),
            Err(error) => Err(error.about(self.name())),
        });
        // Most programs have no such span, and their acquires need no box for it.
        let acquiring = if span.is_disabled() {
            acquiring.left_future()
        } else {
            in_span(span, acquiring).right_future()
        };
        acquiring.left_future()
    }

    async fn unlock(&self) -> Result<(), Error> {
        let entered = self.take_detached()?;
        release::give_back(&self.engine.core, &entered).await
    }

    fn hold_count(&self) -> u32 {
        let (Ok(kind), Some(owner)) = (self.kind(), self.acts_for()) else {
            return 0;
        };
        let core = &self.engine.core;
        let found = owner.find(&kind.names, kind.commands.is_shared(), core.now());
        let live = found.ok().flatten();
        live.map_or(0, |hold| enter::levels(core, &hold))
    }

    async fn is_locked(&self) -> Result<bool, Error> {
        let kind = self.kind()?;
        match ask(&self.engine.core, kind.commands.look(&kind.names)).await? {
            Reply::Busy(_) => Ok(true),
            Reply::Done(_) => Ok(false),
            _ => Err(Failure::strange_reply().into()),
        }
    }

    async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        let call = Call::plain("PTTL").lock(&self.kind()?.names);
        match ask(&self.engine.core, call).await? {
            Reply::Done(_) => Ok(Ttl::Free),
            Reply::Busy(None) => Ok(Ttl::NoExpiry),
            Reply::Busy(Some(left)) => Ok(Ttl::Left(left)),
            _ => Err(Failure::strange_reply().into()),
        }
    }

    async fn force_unlock(&self) -> Result<bool, Error> {
        let core = &self.engine.core;
        let kind = self.kind()?;
        let names = &kind.names;
        // A repeat could not report what the first command did, so it is sent once.
        let (look, force) = (
            kind.commands.look(names),
            kind.commands.force(names, &core.client),
        );
        let reply = tell_behind(core, look, force).await?;
        match reply {
            Reply::Gone => Ok(false),
            // The number of a hold of this client that it ended; no hold has the number 0.
            Reply::Done(own) | Reply::Unheard(own) => {
                if matches!(reply, Reply::Unheard(_)) {
                    core.warn_wake_up_denied(names);
                }
                let id = core.hold_id(own);
                let hit = core.gates.with(names, |gate| gate.hold(&id).cloned());
                // An acquire that still waits for its answer is repeated instead.
                if let Some(hold) = hit.filter(|hold| !hold.with(HoldState::undo)) {
                    core.lose(&hold, LostReason::Forced);
                }
                Ok(true)
            }
            refusal => Err(error_of(refusal)),
        }
    }
}

tokio::task_local! {
    /// The ambient owner, per client or quorum; the innermost scope counts.
    ///
    /// `spawn` does not inherit it, as Java's threads do not inherit locks. Futures that are joined inside one scope share its
    /// owner.
    static SCOPE: Arc<Scope>;
}

struct Scope {
    /// The id of the client or quorum.
    of: Uuid,
    /// Clients and quorums have different types of owner.
    owner: Arc<dyn Any + Send + Sync>,
    around: Option<Arc<Scope>>,
}

/// The owner of the innermost scope of this client or quorum around the call.
pub(super) fn owner_in_scope<O: Any + Send + Sync>(of: Uuid) -> Option<Arc<O>> {
    let innermost = SCOPE.try_with(Arc::clone).ok()?;
    let mut scope = &innermost;
    loop {
        if scope.of == of {
            return Arc::clone(&scope.owner).downcast().ok();
        }
        scope = scope.around.as_ref()?;
    }
}

/// Runs `future` in a scope of this client or quorum for `owner`.
pub(super) async fn in_scope<F: Future>(
    of: Uuid,
    owner: Arc<impl Any + Send + Sync>,
    future: F,
) -> F::Output {
    let around = SCOPE.try_with(Arc::clone).ok();
    let scope = Scope { of, owner, around };
    SCOPE.scope(Arc::new(scope), future).await
}
