//! The client: one identity towards one Redis deployment.

mod builder;
mod greet;
mod quorum;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

pub use self::builder::ClientBuilder;
pub use self::quorum::{Quorum, QuorumBuilder};
use crate::backoff::Backoff;
use crate::engine::hold::Hold;
use crate::engine::hold::state::Phase;
use crate::engine::keeper::Engine;
use crate::error::LostReason;
use crate::lock::kinds::{fair, fenced, plain, simple, spin};
use crate::lock::{
    CountDownLatch, Election, FairLock, FencedLock, Owner, PermitExpirableSemaphore, ReadWriteLock,
    ReentrantLock, Semaphore, SimpleLock, SpinLock,
};
use crate::log::log;
use crate::report::Stats;

/// A client of one Redis deployment: it makes locks and keeps them alive. Cheap to clone; a process usually has one.
///
/// It has a background thread with its own connection, one connection for each tokio runtime that uses it,
/// and one for subscriptions while a caller waits. All of them end with the last client, handle and guard.
///
/// A `#[tokio::main]` may end before that thread releases the lock of a dropped guard; the key then lives until its lease
/// ends. Finish with [`LockGuard::unlock`](crate::LockGuard::unlock) or
/// [`shutdown`](Self::shutdown).
///
/// Make the client after the fork; a client does not survive a fork.
///
/// ```no_run
/// use std::time::Duration;
/// use watchlock::Client;
///
/// #[tokio::main]
/// async fn main() -> Result<(), watchlock::Error> {
///     let client = Client::connect("redis://127.0.0.1/").await?;
///     client.get_lock("report:2026").run(async |_guard| {
///         // … nobody else is here …
///     }).await?;
///     client.shutdown(Duration::from_secs(5)).await;
///     Ok(())
/// }
/// ```
#[doc(alias = "Redisson")]
#[doc(alias = "RedissonClient")]
#[derive(Clone)]
pub struct Client {
    engine: Arc<Engine>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl Client {
    fn of(engine: Engine) -> Self {
        Self {
            engine: Arc::new(engine),
        }
    }

    /// The client's random id, the first half of every owner field that it writes.
    #[must_use]
    #[doc(alias = "getId")]
    pub fn id(&self) -> Uuid {
        self.engine.core.client_id
    }

    /// The reentrant lock `name`. No I/O; a bad name is an error of the first use.
    ///
    /// To elect a leader, see [`get_election`](Self::get_election).
    #[must_use]
    #[doc(alias = "getLock")]
    #[doc(alias = "mutex")]
    pub fn get_lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock::of_client(&self.engine, name.as_ref(), None, plain::kind)
    }

    /// The fenced lock `name`: the reentrant lock of that name, with a fencing token to each hold. No I/O; a bad
    /// name is an error of the first use.
    #[must_use]
    #[doc(alias = "getFencedLock")]
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock::of_client(&self.engine, name.as_ref(), None, fenced::kind)
    }

    /// The fair lock `name`: granted in the order of arrival. No I/O; a bad name is an error of the first use.
    #[must_use]
    #[doc(alias = "getFairLock")]
    pub fn get_fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        FairLock::of_client(&self.engine, name.as_ref(), None, fair::kind)
    }

    /// The spin lock `name`, whose waiters poll every 1 ms, 2 ms, … up to 128 ms. No I/O; a bad name is an error of
    /// the first use.
    #[must_use]
    #[doc(alias = "getSpinLock")]
    pub fn get_spin_lock(&self, name: impl AsRef<str>) -> SpinLock {
        self.get_spin_lock_with(name, spin::backoff())
    }

    /// The spin lock `name`, whose waiters poll by `backoff`. No I/O; a bad name, or a backoff out of its ranges, is
    /// an error of the first use.
    #[must_use]
    #[doc(alias = "getSpinLock")]
    pub fn get_spin_lock_with(&self, name: impl AsRef<str>, backoff: Backoff) -> SpinLock {
        SpinLock::of_client(&self.engine, name.as_ref(), None, spin::kind(backoff))
    }

    /// The simple lock `name`: a string, as other libraries have it. No I/O; a bad name is an error of the first use.
    #[must_use]
    pub fn get_simple_lock(&self, name: impl AsRef<str>) -> SimpleLock {
        SimpleLock::of_client(&self.engine, name.as_ref(), None, simple::kind)
    }

    /// The read/write lock `name`. No I/O; a bad name is an error of the first use.
    #[must_use]
    #[doc(alias = "getReadWriteLock")]
    pub fn get_read_write_lock(&self, name: impl AsRef<str>) -> ReadWriteLock {
        ReadWriteLock::new(&self.engine, name.as_ref(), None)
    }

    /// A candidate for the leadership `name`: who holds the fenced lock of that name leads. No I/O; a bad name is an error
    /// of the first use.
    #[must_use]
    #[doc(alias = "leader")]
    pub fn get_election(&self, name: impl AsRef<str>) -> Election {
        Election::new(&self.engine, name.as_ref())
    }

    /// The semaphore `name`: a number of permits, taken and given back by anybody. No I/O; a bad name is an error of the first
    /// use.
    #[must_use]
    #[doc(alias = "getSemaphore")]
    pub fn get_semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::of_client(&self.engine, name.as_ref())
    }

    /// The semaphore `name` whose permits have ids and leases, as Redisson has it. No I/O; a bad name is an error of the first
    /// use.
    #[must_use]
    #[doc(alias = "getPermitExpirableSemaphore")]
    pub fn get_permit_expirable_semaphore(
        &self,
        name: impl AsRef<str>,
    ) -> PermitExpirableSemaphore {
        PermitExpirableSemaphore::of_client(&self.engine, name.as_ref())
    }

    /// The count-down latch `name`: some wait until others have counted it down. No I/O; a bad name is an error of the first
    /// use.
    #[must_use]
    #[doc(alias = "getCountDownLatch")]
    pub fn get_count_down_latch(&self, name: impl AsRef<str>) -> CountDownLatch {
        CountDownLatch::of_client(&self.engine, name.as_ref())
    }

    /// A new owner. Pass it to all code that may enter its locks again.
    #[must_use]
    pub fn new_owner(&self) -> Owner {
        Owner::new(Arc::clone(&self.engine))
    }

    /// Runs `future` as one owner: every handle of this client that is used inside acts for this owner, and so enters again
    /// what it holds. Wrap each request or job once, and nested locks work as with Java's threads.
    ///
    /// `spawn` does not inherit it. Futures that are joined inside one scope share its owner, and so **do not exclude each
    /// other**; an inner `scope` makes a new owner. The end of the scope releases levels that were
    /// [detached](crate::LockGuard::detach) in it.
    ///
    /// ```no_run
    /// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
    /// let lock = client.get_lock("orders");
    /// client.scope(async {
    ///     let outer = lock.lock().await?;
    ///     let inner = lock.lock().await?; // enters again
    ///     assert_eq!(lock.hold_count(), 2);
    ///     inner.unlock().await?;
    ///     outer.unlock().await
    /// }).await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As `future`.
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        let owner = self.new_owner();
        owner.scope(future).await
    }

    /// How the client is doing: what it holds, what waits, what fails. Local; for a page of status, a health check or a test.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.core.stats()
    }

    /// Ends the client. New acquires fail with [`Error::Closed`](crate::Error::Closed), and
    /// [`shutting_down`](Self::shutting_down) resolves. For up to `timeout` the remaining holds stay valid, and can be entered
    /// again and unlocked. Then they are lost with reason [`LostReason::Shutdown`] and released, which goes on as long as
    /// Redis answers, and ends a [`command_timeout`](ClientBuilder::command_timeout) after the last answer (400 ms at least).
    /// Returns the names of holds that were left.
    ///
    /// ```no_run
    /// # async fn example(client: watchlock::Client) {
    /// use std::time::Duration;
    ///
    /// let report = client.shutdown(Duration::from_secs(10)).await;
    /// if !report.is_clean() {
    ///     eprintln!("still held: {:?}, not released: {:?}", report.held, report.unreleased);
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If dropped, new acquires stay refused, and holds stay valid until they are released.
    pub async fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        let core = &self.engine.core;
        core.stop_accepting();
        let holds = core.holds();
        let given_back = futures_util::future::join_all(holds.iter().map(|hold| hold.ended()));
        let in_time = self.engine.within(timeout, given_back).await.is_some();
        let holds = core.holds();
        let held = names(&holds, |hold| hold.phase() == Phase::Held);
        if !in_time {
            log(|| tracing::warn!("the client is shut down with holds left"));
        }
        core.close(LostReason::Shutdown);
        self.engine.joined().await;
        let mut unreleased = names(&holds, has_no_answer);
        // Unanswered releases that no guard stands for.
        let mut known: HashSet<_> = unreleased.iter().cloned().collect();
        let left = core.report.left().into_iter();
        unreleased.extend(left.filter(|name| known.insert(name.clone())));
        ShutdownReport { held, unreleased }
    }

    /// Resolves when [`shutdown`](Self::shutdown) is called, for jobs that should stop before its time-out. From then on it
    /// resolves at once. It also resolves when the background thread of the client has ended unexpectedly.
    ///
    /// ```no_run
    /// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
    /// let guard = client.get_lock("import").lock().await?;
    /// for part in 0..100 {
    ///     tokio::select! {
    ///         reason = guard.lost() => panic!("stop at once: {reason}"),
    ///         () = client.shutting_down() => break, // the hold is still valid: stop in order
    ///         () = import(part) => {}
    ///     }
    /// }
    /// guard.unlock().await
    /// # }
    /// # async fn import(_part: u32) {}
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn shutting_down(&self) {
        self.engine.core.stopped_accepting().await;
    }
}

/// The names of locks that were left when [`Client::shutdown`](crate::Client::shutdown) ended, without the client's
/// prefix.
///
/// ```
/// fn print(report: &watchlock::ShutdownReport) {
///     for name in &report.held {
///         eprintln!("{name}: its holder was cut off");
///     }
///     for name in &report.unreleased {
///         eprintln!("{name}: others may have to wait for its lease to end");
///     }
/// }
/// # print(&watchlock::ShutdownReport::default());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Still held at the time-out, and lost then with reason [`Shutdown`](crate::LostReason::Shutdown).
    pub held: Vec<String>,
    /// Redis did not answer the release before the client ended: the key may stay until its lease ends.
    pub unreleased: Vec<String>,
}

impl ShutdownReport {
    /// Whether every hold was released in time, and Redis confirmed it.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.held.is_empty() && self.unreleased.is_empty()
    }
}

/// Whether the last release of a hold has no answer.
fn has_no_answer(hold: &Hold) -> bool {
    let outcome = hold.with(|state| state.outcome().cloned());
    // A reply that the key is gone, or belongs to another client, counts as an answer.
    !matches!(outcome, Some(Ok(()))) && !matches!(outcome, Some(Err(error)) if error.is_lost())
}

fn names(holds: &[Arc<Hold>], which: impl Fn(&Hold) -> bool) -> Vec<String> {
    let holds = holds.iter().filter(|hold| which(hold));
    let names = holds.map(|hold| hold.kind.names.name().to_owned());
    names.collect()
}
