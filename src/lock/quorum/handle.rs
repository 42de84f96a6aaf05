//! The handle of a lock of a quorum, and the owner that it may act for.

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
use crate::lease::{Lease, LeaseMs};
use crate::lock::guard::{LockGuard, sealed};
use crate::lock::handle::{Handle, LockKind, LockOfClient, LockTarget, in_scope, owner_in_scope};
use crate::lock::inspect::{Holder, InspectTarget};
use crate::lock::kinds::{self, fenced, plain};
use crate::lock::object::{LockInfo, Ttl};
use crate::lock::owner::warn_of_detached;
use crate::lock::several::CompositeOwner;

/// A lock of the kind `K` of a [`Quorum`](crate::Quorum), by name: [`QuorumLock`] or [`FencedQuorumLock`].
///
/// A handle of a [`QuorumOwner`](crate::QuorumOwner) acts for that owner, any other for the [scope](crate::Quorum::scope)
/// that it is used in.
///
/// - **Busy** means that a majority of the servers answered and somebody else has the lock.
/// - **A fixed lease** is at most the quorum's [`max_lease`](crate::QuorumBuilder::max_lease).
/// - **`is_locked`** returns whether the lock is held on so many servers that no majority is free, and
///   **`remain_time_to_live`** how long it takes until one is, if nobody renews or releases.
/// - **`force_unlock`** releases the lock on all servers, also those of a minority.
/// - **Errors.** [`Error::NoQuorum`] instead of [`Error::Unavailable`] when too few servers answered. The error of a single
///   server is returned only when so many refuse for good that no majority is left. A hold is [lost](LockGuard::lost) when
///   more than a minority of the servers lost it.
///
/// ```no_run
/// # async fn example(quorum: watchlock::Quorum) -> Result<(), watchlock::Error> {
/// let lock = quorum.get_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … nobody else is here, as long as a majority of the servers lives …
/// guard.unlock().await
/// # }
/// ```
pub type QuorumHandle<K> = Handle<AtQuorum<K>>;

/// The kind of [`QuorumHandle<K>`].
#[derive(Debug)]
pub struct AtQuorum<K>(PhantomData<fn() -> K>);

impl<K: LockKind> sealed::Sealed for AtQuorum<K> {}

impl<K: LockKind> LockKind for AtQuorum<K> {
    const HANDLE: &'static str = "QuorumLock";
    type Target = LockOfQuorum;
    type Guard = K::Guard;
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

impl<K: LockKind> QuorumHandle<K> {
    /// The lock `name` of a quorum, as `kind` makes it.
    pub(crate) fn of_quorum(
        nodes: &Arc<QuorumNodes>,
        name: &str,
        owner: Option<&Arc<CompositeOwner>>,
        kind: impl FnOnce(&Config, &str) -> Result<Kind, Error>,
    ) -> Self {
        Self::to(LockOfQuorum {
            nodes: Arc::clone(nodes),
            name: name.into(),
            kind: kind(nodes.config(), name).map_err(Arc::new),
            fenced: K::FENCED,
            owner: owner.cloned(),
        })
    }
}

/// One lock of a quorum.
#[derive(Clone)]
pub struct LockOfQuorum {
    nodes: Arc<QuorumNodes>,
    name: Arc<str>,
    kind: Result<Kind, Arc<Error>>,
    /// Whether its holds have fencing tokens.
    fenced: bool,
    owner: Option<Arc<CompositeOwner>>,
}

impl LockOfQuorum {
    fn kind(&self) -> Result<&Kind, Error> {
        self.kind.as_ref().map_err(|error| Error::clone(error))
    }

    /// Its owner, or that of the scope that this is called in.
    fn acts_for(&self) -> Option<Arc<CompositeOwner>> {
        let ambient = || owner_in_scope(self.nodes.id);
        self.owner.clone().or_else(ambient)
    }

    /// Asks the lock on each node. The answers, if they are those of a majority.
    async fn ask_all<T, F: Future<Output = Result<T, Error>>>(
        &self,
        ask: impl Fn(LockOfClient) -> F,
    ) -> Result<Vec<T>, Error> {
        let kind = self.kind()?;
        self.nodes.check_open()?;
        let asked = self.nodes.all.iter().map(async |node| {
            node.check_fit()?;
            ask(LockOfClient::ownerless(&node.engine, kind)).await
        });
        usable(join_all(asked).await, self.nodes.needed)
    }
}

impl LockTarget for LockOfQuorum {
    fn name(&self) -> &str {
        &self.name
    }

    fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    fn info(&self) -> LockInfo {
        let Ok(kind) = &self.kind else {
            return LockInfo::default();
        };
        LockInfo {
            command_timeout: self.nodes.config().command_timeout,
            timers: Some(self.nodes.timers().clone()),
            ..LockInfo::of(self.nodes.id, &kind.names)
        }
    }

    async fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
    ) -> Result<Option<LockGuard>, Error> {
        let got = async {
            let config = self.nodes.config();
            let lease = lease.of_several()?;
            lease.resolve(LeaseMs::of(config.watchdog_lease), config.max_lease)?;
            let since = self.nodes.now();
            let request = AcquireRequest {
                name: Arc::clone(&self.name),
                kind: self.kind()?.clone(),
                fenced: self.fenced,
                lease,
                owner: self.acts_for(),
                patience: Patience::of(wait, since),
                since,
            };
            acquire(&self.nodes, request).await
        };
        got.await.map_err(|error| error.about(&self.name))
    }

    async fn unlock(&self) -> Result<(), Error> {
        let owner = self.acts_for();
        let level = owner.and_then(|owner| owner.take(&self.name));
        let level = level.ok_or_else(Error::not_owner)?;
        level.into_guard().unlock().await
    }

    fn hold_count(&self) -> u32 {
        let owner = self.acts_for();
        owner.map_or(0, |owner| owner.hold_count(&self.name))
    }

    async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
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

    async fn force_unlock(&self) -> Result<bool, Error> {
        let answered = self.ask_all(|lock| async move { lock.force_unlock().await });
        Ok(answered.await?.into_iter().any(|held| held))
    }
}

impl InspectTarget for LockOfQuorum {
    async fn holders(&self) -> Result<Vec<Holder>, Error> {
        let answered = self
            .ask_all(|lock| async move { lock.holders().await })
            .await?;
        let free = answered.iter().filter(|holders| holders.is_empty()).count();
        if free >= self.nodes.needed {
            return Ok(Vec::new());
        }
        Ok(answered.into_iter().flatten().collect())
    }

    async fn waiters(&self) -> Result<u64, Error> {
        let answered = self.ask_all(|lock| async move { lock.waiters().await });
        let mut waiters = answered.await?;
        // At least so many by the word of a majority.
        waiters.sort_unstable_by(|one, other| other.cmp(one));
        Ok(waiters[self.nodes.needed - 1])
    }
}

/// Who may enter a lock of a [`Quorum`](crate::Quorum) again: what an [`Owner`](crate::Owner) is to a client.
///
/// From [`Quorum::new_owner`](crate::Quorum::new_owner). Entering again with the same sort of lease asks no server, but to
/// lengthen a fixed one. When the owner is dropped, its [detached](crate::LockGuard::detach) levels are given back, with a
/// warning in the log.
///
/// ```no_run
/// # async fn example(quorum: watchlock::Quorum) -> Result<(), watchlock::Error> {
/// let owner = quorum.new_owner();
/// let lock = owner.get_lock("accounts");
/// let outer = lock.lock().await?;
/// let inner = lock.lock().await?; // enters again
/// assert_eq!(lock.hold_count(), 2);
/// inner.unlock().await?;
/// outer.unlock().await
/// # }
/// ```
pub struct QuorumOwner {
    nodes: Arc<QuorumNodes>,
    state: Arc<CompositeOwner>,
}

impl std::fmt::Debug for QuorumOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuorumOwner").finish_non_exhaustive()
    }
}

impl QuorumOwner {
    pub(crate) fn new(nodes: &Arc<QuorumNodes>) -> Self {
        Self {
            nodes: Arc::clone(nodes),
            state: Arc::default(),
        }
    }

    /// The lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    pub fn get_lock(&self, name: impl AsRef<str>) -> QuorumLock {
        QuorumLock::of_quorum(&self.nodes, name.as_ref(), Some(&self.state), plain::kind)
    }

    /// The fenced lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> FencedQuorumLock {
        FencedQuorumLock::of_quorum(&self.nodes, name.as_ref(), Some(&self.state), fenced::kind)
    }

    /// Runs `future` for this owner: every handle of the quorum that is used inside acts for it, unless that handle
    /// belongs to another owner.
    ///
    /// # Cancel safety
    ///
    /// As `future`.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        in_scope(self.nodes.id, Arc::clone(&self.state), future)
    }
}

impl Drop for QuorumOwner {
    fn drop(&mut self) {
        warn_of_detached(self.state.end().len());
    }
}

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
