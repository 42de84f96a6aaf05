//! The handle of a lock of a quorum.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::acquire::acquire;
use super::nodes::QuorumNodes;
use super::queue::AcquireRequest;
use crate::config::Config;
use crate::engine::gate::ticket::Patience;
use crate::engine::hold::kind::Kind;
use crate::error::{Cause, Error};
use crate::lease::Lease;
use crate::lock::guard::{IsGuard, LockGuard, LockKind};
use crate::lock::handle::{LockOfClient, owner_in_scope};
use crate::lock::kinds;
use crate::lock::object::{LockInfo, Ttl, is_a_lock};
use crate::lock::run::run_under;
use crate::lock::several::CompositeOwner;

/// A lock of the kind `K` of a [`Quorum`](crate::Quorum), by name: [`QuorumLock`] or [`FencedQuorumLock`].
///
/// Its methods are those of [`Handle`](crate::Handle). A handle of a [`QuorumOwner`](crate::QuorumOwner) acts for that
/// owner, any other for the [scope](crate::Quorum::scope) that it is used in. Cheap to clone; it holds nothing.
///
/// **Errors.** [`Error::NoQuorum`] when too few servers answered. The error of a single server is returned only when so
/// many refuse for good that no majority is left. A hold is [lost](LockGuard::lost) when more than a minority of the servers lost it.
///
/// ```no_run
/// # async fn example(quorum: watchlock::Quorum) -> Result<(), watchlock::Error> {
/// let lock = quorum.get_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … nobody else is here, as long as a majority of the servers lives …
/// guard.unlock().await
/// # }
/// ```
pub struct QuorumHandle<K> {
    nodes: Arc<QuorumNodes>,
    name: Arc<str>,
    kind: Result<Kind, Arc<Error>>,
    owner: Option<Arc<CompositeOwner>>,
    of: PhantomData<fn() -> K>,
}

/// A reentrant lock that is held when more than half of a quorum's servers granted it: what Redisson calls a
/// `RedissonRedLock`, over locks of one name. From [`Quorum::get_lock`](crate::Quorum::get_lock).
///
/// ```no_run
/// # async fn example(quorum: watchlock::Quorum) -> Result<(), watchlock::Error> {
/// let lock: watchlock::QuorumLock = quorum.get_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … nobody else is here …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "redlock")]
#[doc(alias = "mutex")]
#[doc(alias = "RedissonRedLock")]
pub type QuorumLock = QuorumHandle<kinds::Reentrant>;

/// A [`QuorumLock`] whose holds have a [fencing token](crate::FencingToken), which grows from holder to holder
/// whichever majority each had. From [`Quorum::get_fenced_lock`](crate::Quorum::get_fenced_lock).
///
/// ```no_run
/// # async fn example(quorum: watchlock::Quorum) -> Result<(), watchlock::Error> {
/// let lock: watchlock::FencedQuorumLock = quorum.get_fenced_lock("report:2026");
/// let guard = lock.lock().await?;
/// println!("every holder before had less than {}", guard.token());
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
pub type FencedQuorumLock = QuorumHandle<kinds::Fenced>;

/// Not derived: the kind itself need not be `Clone`.
impl<K> Clone for QuorumHandle<K> {
    fn clone(&self) -> Self {
        Self {
            nodes: Arc::clone(&self.nodes),
            name: Arc::clone(&self.name),
            kind: self.kind.clone(),
            owner: self.owner.clone(),
            of: PhantomData,
        }
    }
}

impl<K: LockKind> fmt::Debug for QuorumHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumLock")
            .field("name", &self.name())
            .field("has_owner", &self.owner.is_some())
            .finish_non_exhaustive()
    }
}

impl<K: LockKind> QuorumHandle<K> {
    pub(crate) fn new(
        nodes: &Arc<QuorumNodes>,
        name: &str,
        owner: Option<&Arc<CompositeOwner>>,
        kind: impl FnOnce(&Config, &str) -> Result<Kind, Error>,
    ) -> Self {
        Self {
            nodes: Arc::clone(nodes),
            name: name.into(),
            kind: kind(nodes.config(), name).map_err(Arc::new),
            owner: owner.cloned(),
            of: PhantomData,
        }
    }

    fn kind(&self) -> Result<&Kind, Error> {
        self.kind.as_ref().map_err(|error| Error::clone(error))
    }

    /// Its owner, or that of the scope that this is called in.
    fn acts_for(&self) -> Option<Arc<CompositeOwner>> {
        let ambient = || owner_in_scope(self.nodes.id());
        self.owner.clone().or_else(ambient)
    }

    /// The lock's name, without the clients' prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
    ) -> Result<Option<K::Guard>, Error> {
        let got = async {
            let config = self.nodes.config();
            lease.resolve(config.watchdog_lease, config.max_lease)?;
            let since = self.nodes.now();
            let request = AcquireRequest {
                name: Arc::clone(&self.name),
                kind: self.kind()?.clone(),
                fenced: K::FENCED,
                lease,
                owner: self.acts_for(),
                patience: match wait {
                    None => Patience::Forever,
                    Some(Duration::ZERO) => Patience::Once,
                    Some(wait) => Patience::Until(since + wait),
                },
                since,
            };
            acquire(&self.nodes, request).await
        };
        let got = got.await.map_err(|error| error.about(self.name()))?;
        got.map(K::Guard::of).transpose()
    }

    /// Waits for the lock without a limit. The watchdog keeps it while the guard lives.
    ///
    /// # Errors
    ///
    /// As [`Handle::lock`](crate::Handle::lock), with [`Error::NoQuorum`] instead of [`Error::Unavailable`]: when too
    /// few servers answered for `unavailable_after` (default 5 s).
    ///
    /// # Cancel safety
    ///
    /// As [`Handle::lock`](crate::Handle::lock).
    #[doc(alias = "acquire")]
    pub async fn lock(&self) -> Result<K::Guard, Error> {
        let got = self.acquire(None, Lease::Watchdog).await?;
        got.ok_or(Error::Closed)
    }

    /// Waits for the lock, and takes it for a fixed lease, up to the quorum's
    /// [`max_lease`](crate::QuorumBuilder::max_lease).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::InvalidLease`].
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn lock_with_lease(&self, lease: Duration) -> Result<K::Guard, Error> {
        let got = self.acquire(None, Lease::Fixed(lease)).await?;
        got.ok_or(Error::Closed)
    }

    /// Waits for the lock for at most `wait`. `None` when it was busy to the end: a majority of the servers answered, and
    /// somebody else has it. `Duration::ZERO` makes one try, `Duration::MAX` waits without a limit. Bind the guard with
    /// `let Some(guard) = … else`: behind `.is_some()` it is dropped, and the lock is free.
    ///
    /// # Errors
    ///
    /// As [`lock_with_lease`](Self::lock_with_lease); [`Error::NoQuorum`] when the last try found too few servers.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    #[doc(alias = "acquire")]
    #[doc(alias = "timeout")]
    pub async fn try_lock(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<K::Guard>, Error> {
        self.acquire(Some(wait), lease.into()).await
    }

    /// Runs `body` under the lock, and cancels it when the hold is lost: [`Handle::run`](crate::Handle::run).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::Lost`] as [`Handle::run`](crate::Handle::run).
    ///
    /// # Cancel safety
    ///
    /// As [`Handle::run`](crate::Handle::run).
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

    /// As [`Handle::unlock`](crate::Handle::unlock).
    ///
    /// # Errors
    ///
    /// As [`Handle::unlock`](crate::Handle::unlock).
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::unlock`].
    pub async fn unlock(&self) -> Result<(), Error> {
        let owner = self.acts_for();
        let given_back = match owner.and_then(|owner| owner.take(self.name())) {
            Some(level) => level.into_guard().unlock().await,
            None => Err(Error::not_owner()),
        };
        given_back.map_err(|error| error.about(self.name()))
    }

    /// Whether the lock is held on so many servers that no majority is free. Asks the servers.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`]; [`Error::NoQuorum`] when too few servers answered.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.remain_time_to_live().await? != Ttl::Free)
    }

    /// Whether the owner this handle acts for holds the lock, validly. Local; false without an owner.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many levels the owner this handle acts for holds. Local; 0 without an owner.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        let owner = self.acts_for();
        owner.map_or(0, |owner| owner.hold_count(self.name()))
    }

    /// How long it takes until a majority of the servers is free, if nobody renews or releases. Asks the servers.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        let answered = self.ask_all(|lock| async move { lock.remain_time_to_live().await });
        let mut ttls = answered.await?;
        // The soonest first.
        ttls.sort_by_key(|ttl| match ttl {
            Ttl::Free => (0, Duration::ZERO),
            Ttl::Left(left) => (1, *left),
            Ttl::NoExpiry => (2, Duration::ZERO),
        });
        Ok(ttls[self.nodes.needed - 1])
    }

    /// Releases the lock on all servers, whoever holds it, and wakes the next waiters. Returns whether anybody held it on
    /// any server.
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] when too few servers answered; those that did have released it. Else as
    /// [`Handle::force_unlock`](crate::Handle::force_unlock).
    ///
    /// # Cancel safety
    ///
    /// The commands may be executed or not.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let answered = self
            .ask_all(|lock| async move { lock.force_unlock().await })
            .await?;
        Ok(answered.into_iter().any(|held| held))
    }

    /// Asks the lock on each node. The answers, if they are those of a majority.
    async fn ask_all<T, F: Future<Output = Result<T, Error>>>(
        &self,
        ask: impl Fn(LockOfClient) -> F,
    ) -> Result<Vec<T>, Error> {
        let answered = async {
            let kind = self.kind()?;
            self.nodes.check_open()?;
            let asked = self.nodes.all().iter().map(async |node| {
                node.check_fit()?;
                ask(LockOfClient::ownerless(node.engine(), kind)).await
            });
            usable(join_all(asked).await, self.nodes.needed)
        };
        answered.await.map_err(|error| error.about(self.name()))
    }

    fn lock_info(&self) -> LockInfo {
        let Ok(kind) = &self.kind else {
            return LockInfo::default();
        };
        LockInfo {
            command_timeout: self.nodes.config().command_timeout,
            ..LockInfo::of(self.nodes.id(), kind.names())
        }
    }
}

is_a_lock!(QuorumHandle<K>, of K);

/// The answers that are not errors, if `needed` of them are there.
fn usable<T>(answers: Vec<Result<T, Error>>, needed: usize) -> Result<Vec<T>, Error> {
    let (mut usable, mut last) = (Vec::new(), None);
    for answer in answers {
        match answer {
            Ok(answer) => usable.push(answer),
            Err(error) if error.is_transient() => last = Some(error),
            Err(error) => {
                last.get_or_insert(error);
            }
        }
    }
    match last {
        _ if usable.len() >= needed => Ok(usable),
        Some(error) if !error.is_transient() => Err(error),
        last => {
            let cause: Cause = Arc::new(last.unwrap_or(Error::Closed));
            Err(Error::no_quorum(usable.len(), needed, cause))
        }
    }
}
