//! Election: of all candidates, one runs its body at a time. It is the fenced lock of the name, with a loop around it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use parking_lot::Mutex;

use super::guard::HasLevel;
use super::inspect::Holder;
use super::kinds::fenced::{self, FencedGuard, FencedLock};
use super::object::{release_after_run, while_valid};
use super::owner::Owner;
use super::view::HoldView;
use crate::engine::keeper::Engine;
use crate::error::Error;

/// A candidate of an election, from [`Client::get_election`](crate::Client::get_election): of all candidates for a name,
/// in all processes, one leads at a time.
///
/// A term is a hold of the [fenced lock](FencedLock) of that name, so that lock, and the plain one, must not be used for
/// anything else. What is true of its holds is true of terms: the leader knows by its own clock when its term is over,
/// and between processes the [token](FencedGuard::token) fences what comes late. If a leader dies, the next one follows
/// within the client's watchdog lease.
///
/// Clones are the same candidate. It acts for nobody, whatever [scope](crate::Client::scope) it is used in.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let election = client.get_election("scheduler");
/// election.lead(async |term| {
///     loop {
///         plan(term.token().as_u64()).await; // dropped when the term is lost
///     }
/// }).await
/// # }
/// # async fn plan(fence: u64) {}
/// ```
#[derive(Clone)]
pub struct Election {
    engine: Arc<Engine>,
    lock: FencedLock,
    /// The newest term. Terms do not overlap, so it is the only one that may be valid.
    term: Arc<Mutex<Option<HoldView>>>,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.lock.name())
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}

impl Election {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> Self {
        Self {
            engine: Arc::clone(engine),
            lock: FencedLock::of_client(engine, name, None, fenced::kind),
            term: Arc::default(),
        }
    }

    /// Campaigns until it is elected, runs `body` as the leader, and resigns when the body ends: returns its value.
    ///
    /// If the term is lost before that, the body is dropped, [`is_leader`](Self::is_leader) is false, and after a pause it
    /// campaigns again. It also does so while Redis is unreachable or refuses. The pause is random, half to all of the
    /// client's [`Backoff::cap`](crate::Backoff::cap). Dropping the body does not stop what it spawned: give that the
    /// [view](crate::LockGuard::hold) of the term, or its token.
    ///
    /// A release that fails at the end of the body is logged and not returned.
    ///
    /// In a spawned task write `async move |term| …`, with clones of what the body uses. Otherwise it may borrow from the
    /// task, and the compiler says that "implementation of `Send` is not general enough".
    ///
    /// # Errors
    ///
    /// What waiting does not cure: as [`lock`](crate::Handle::lock), without those that are
    /// [transient](Error::is_transient). [`Error::Closed`] when the client is shut down.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body and resigns.
    pub async fn lead<T>(&self, mut body: impl AsyncFnMut(&FencedGuard) -> T) -> Result<T, Error> {
        loop {
            match self.serve(&mut body).await {
                Err(error) if error.is_lost() || error.is_transient() => self.pause().await,
                ended => return ended,
            }
        }
    }

    /// One term.
    async fn serve<T>(&self, body: &mut impl AsyncFnMut(&FencedGuard) -> T) -> Result<T, Error> {
        // With an owner of its own, so that no two terms are levels of one hold.
        let owner = Owner::new(Arc::clone(&self.engine));
        let term = owner.scope(self.lock.lock()).await?;
        self.begins(&term);
        let value = while_valid(term.level(), body(&term)).await?;
        // The loss of a hold that nothing runs under any more is no loss of the term.
        let _ = release_after_run(term.into()).await;
        Ok(value)
    }

    fn newest(&self) -> Option<HoldView> {
        self.term.lock().clone()
    }

    /// Notes the newest term. Another one may have begun since this one was granted. The token says so, unless Redis lost its
    /// count.
    fn begins(&self, term: &FencedGuard) {
        loop {
            let known = self.newest();
            // Not under the lock: the first to see a loss wakes the tasks that wait for it, and a waker may run any code.
            let is_older =
                |known: &HoldView| known.is_valid() && known.token() >= Some(term.token());
            if known.as_ref().is_some_and(is_older) {
                return;
            }
            let mut newest = self.term.lock();
            let token = |view: &Option<HoldView>| view.as_ref().map(HoldView::token);
            if token(&newest) == token(&known) {
                *newest = Some(term.hold());
                return;
            }
        }
    }

    async fn pause(&self) {
        let core = &self.engine.core;
        let cap = core.config.backoff.cap_delay();
        let span: Duration = cap.mul_f64(0.5 + fastrand::f64() / 2.0);
        let paused = Box::pin(core.backend.timers().sleep(span));
        select(paused, Box::pin(core.stopped_accepting())).await;
    }

    /// Whether this candidate leads now, by the validity of its term. Local, and false from the moment on that the term is
    /// lost.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.newest().is_some_and(|term| term.is_valid())
    }

    /// Who leads now, in whatever process; `None` between terms. Asks Redis. For people:
    /// [`is_leader`](Self::is_leader) is for code.
    ///
    /// # Errors
    ///
    /// As [`holders`](crate::Handle::holders).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn leader(&self) -> Result<Option<Holder>, Error> {
        let holders = self.lock.holders().await?;
        Ok(holders.into_iter().next())
    }
}
