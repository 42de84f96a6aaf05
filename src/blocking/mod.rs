//! The same locks for code without `async`: each call blocks its thread until it is done.
//!
//! [`Blocking`] wraps a client, a handle or a guard, and has its async methods as blocking ones. The thread of the caller
//! polls the future itself, and parks in between. What drives the connections is the runtime of one thread, which is made
//! at the first use and serves the whole process from then on.
#![expect(
    clippy::must_use_candidate,
    reason = "some calls are made only to wait"
)]
#![expect(
    clippy::missing_errors_doc,
    reason = "the errors are those of the async methods"
)]

mod latch;
mod permits;

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime;

use crate::backend::{Failure, Timers};
use crate::backoff::Backoff;
use crate::client::{ClientBuilder, QuorumBuilder, ShutdownReport};
use crate::engine::keeper::start_thread;
use crate::error::{Error, LostReason};
use crate::lease::Lease;
use crate::lock::kinds::{AtQuorum, Fair, Fenced, LockKind, Reentrant, Simple, Spin};
use crate::lock::kinds::{HasLevel, IsGuard, Read, Write};
use crate::lock::{CountDownLatch, PermitExpirableSemaphore, Semaphore};
use crate::lock::{Ended, FencedGuard, GuardError, HoldView, Holder, InspectTarget, Ttl};
use crate::lock::{ReadWriteLock, ReentrantLock, WriteGuard, release_after_run};

/// A client, handle or guard whose async methods block the thread instead. Made by [`Client::connect`] and what comes from
/// it, or [from](From) the async one.
///
/// It derefs to the async one for what is local, such as [`check`](crate::LockGuard::check) and
/// [`is_held`](crate::Handle::is_held), and [`into_async`](Self::into_async) gives that back. An async client and a
/// blocking one may be the same client. Errors are those of the async methods. Dropping a guard gives it back.
///
/// ```no_run
/// # fn write_file(_: u32) {}
/// # fn main() -> Result<(), watchlock::Error> {
/// use watchlock::blocking::Client;
///
/// let client = Client::connect("redis://127.0.0.1/")?;
/// let guard = client.get_lock("nightly").lock()?;
/// for part in 0..100 {
///     guard.check()?; // local
///     write_file(part);
/// }
/// guard.unlock()
/// # }
/// ```
///
/// **In async code** use the async methods. A call inside of a task is no panic, but blocks the thread of its runtime. On
/// a thread of `spawn_blocking` it is right.
///
/// **Owners.** A thread is no owner: two acquires of one thread exclude each other, unless the handle is that of a
/// [`new_owner`](Client::new_owner). There is no `scope`.
#[derive(Debug, Clone)]
#[must_use]
pub struct Blocking<T>(T);

/// A blocking [`Client`](crate::Client).
pub type Client = Blocking<crate::client::Client>;
/// A blocking [`Owner`](crate::Owner).
pub type Owner = Blocking<crate::lock::Owner>;
/// A blocking [`Quorum`](crate::Quorum).
pub type Quorum = Blocking<crate::client::Quorum>;
/// A blocking [`QuorumOwner`](crate::QuorumOwner).
pub type QuorumOwner = Blocking<crate::lock::QuorumOwner>;
/// A blocking [`Election`](crate::Election).
pub type Election = Blocking<crate::lock::Election>;
/// A blocking [`Handle`](crate::Handle).
pub type Handle<K> = Blocking<crate::lock::Handle<K>>;
/// A blocking [`LockGuard`](crate::LockGuard).
pub type LockGuard = Blocking<crate::lock::LockGuard>;

/// The async one, made blocking.
impl<T> From<T> for Blocking<T> {
    fn from(of_async: T) -> Self {
        Self(of_async)
    }
}

impl<T> Deref for Blocking<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Blocking<T> {
    /// The async one.
    pub fn into_async(self) -> T {
        self.0
    }
}

impl ClientBuilder {
    /// As [`connect`](Self::connect), on any thread.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), but for `NoRuntime`.
    pub fn connect_blocking(self) -> Result<Client, Error> {
        wait(self.connect()).map(Blocking)
    }
}

impl QuorumBuilder {
    /// As [`connect`](Self::connect), on any thread.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), but for `NoRuntime`.
    pub fn connect_blocking(self) -> Result<Quorum, Error> {
        wait(self.connect()).map(Blocking)
    }
}

impl Blocking<crate::client::Client> {
    /// Connects with the defaults. To set anything, use [`ClientBuilder::connect_blocking`](crate::ClientBuilder::connect_blocking).
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect_blocking`](crate::ClientBuilder::connect_blocking).
    pub fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        crate::client::Client::builder(url).connect_blocking()
    }

    /// As [`Client::get_lock`](crate::Client::get_lock).
    pub fn get_lock(&self, name: impl AsRef<str>) -> Handle<Reentrant> {
        Blocking(self.0.get_lock(name))
    }

    /// As [`Client::get_fenced_lock`](crate::Client::get_fenced_lock).
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> Handle<Fenced> {
        Blocking(self.0.get_fenced_lock(name))
    }

    /// As [`Client::get_fair_lock`](crate::Client::get_fair_lock).
    pub fn get_fair_lock(&self, name: impl AsRef<str>) -> Handle<Fair> {
        Blocking(self.0.get_fair_lock(name))
    }

    /// As [`Client::get_spin_lock`](crate::Client::get_spin_lock).
    pub fn get_spin_lock(&self, name: impl AsRef<str>) -> Handle<Spin> {
        Blocking(self.0.get_spin_lock(name))
    }

    /// As [`Client::get_spin_lock_with`](crate::Client::get_spin_lock_with).
    pub fn get_spin_lock_with(&self, name: impl AsRef<str>, backoff: Backoff) -> Handle<Spin> {
        Blocking(self.0.get_spin_lock_with(name, backoff))
    }

    /// As [`Client::get_simple_lock`](crate::Client::get_simple_lock).
    pub fn get_simple_lock(&self, name: impl AsRef<str>) -> Handle<Simple> {
        Blocking(self.0.get_simple_lock(name))
    }

    /// As [`Client::get_read_write_lock`](crate::Client::get_read_write_lock).
    pub fn get_read_write_lock(&self, name: impl AsRef<str>) -> Blocking<ReadWriteLock> {
        Blocking(self.0.get_read_write_lock(name))
    }

    /// As [`Client::get_semaphore`](crate::Client::get_semaphore).
    pub fn get_semaphore(&self, name: impl AsRef<str>) -> Blocking<Semaphore> {
        Blocking(self.0.get_semaphore(name))
    }

    /// As [`Client::get_permit_expirable_semaphore`](crate::Client::get_permit_expirable_semaphore).
    pub fn get_permit_expirable_semaphore(
        &self,
        name: impl AsRef<str>,
    ) -> Blocking<PermitExpirableSemaphore> {
        Blocking(self.0.get_permit_expirable_semaphore(name))
    }

    /// As [`Client::get_count_down_latch`](crate::Client::get_count_down_latch).
    pub fn get_count_down_latch(&self, name: impl AsRef<str>) -> Blocking<CountDownLatch> {
        Blocking(self.0.get_count_down_latch(name))
    }

    /// As [`Client::get_election`](crate::Client::get_election).
    pub fn get_election(&self, name: impl AsRef<str>) -> Election {
        Blocking(self.0.get_election(name))
    }

    /// As [`Client::new_owner`](crate::Client::new_owner).
    pub fn new_owner(&self) -> Owner {
        Blocking(self.0.new_owner())
    }

    /// As [`Client::shutdown`](crate::Client::shutdown).
    pub fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        block(self.0.shutdown(timeout))
    }

    /// As [`Client::shutting_down`](crate::Client::shutting_down).
    pub fn shutting_down(&self) {
        block(self.0.shutting_down());
    }
}

impl Blocking<crate::lock::Owner> {
    /// As [`Owner::get_lock`](crate::Owner::get_lock).
    pub fn get_lock(&self, name: impl AsRef<str>) -> Handle<Reentrant> {
        Blocking(self.0.get_lock(name))
    }

    /// As [`Owner::get_fenced_lock`](crate::Owner::get_fenced_lock).
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> Handle<Fenced> {
        Blocking(self.0.get_fenced_lock(name))
    }

    /// As [`Owner::get_fair_lock`](crate::Owner::get_fair_lock).
    pub fn get_fair_lock(&self, name: impl AsRef<str>) -> Handle<Fair> {
        Blocking(self.0.get_fair_lock(name))
    }

    /// As [`Owner::get_spin_lock`](crate::Owner::get_spin_lock).
    pub fn get_spin_lock(&self, name: impl AsRef<str>) -> Handle<Spin> {
        Blocking(self.0.get_spin_lock(name))
    }

    /// As [`Owner::get_spin_lock_with`](crate::Owner::get_spin_lock_with).
    pub fn get_spin_lock_with(&self, name: impl AsRef<str>, backoff: Backoff) -> Handle<Spin> {
        Blocking(self.0.get_spin_lock_with(name, backoff))
    }

    /// As [`Owner::get_simple_lock`](crate::Owner::get_simple_lock).
    pub fn get_simple_lock(&self, name: impl AsRef<str>) -> Handle<Simple> {
        Blocking(self.0.get_simple_lock(name))
    }

    /// As [`Owner::get_read_write_lock`](crate::Owner::get_read_write_lock).
    pub fn get_read_write_lock(&self, name: impl AsRef<str>) -> Blocking<ReadWriteLock> {
        Blocking(self.0.get_read_write_lock(name))
    }
}

impl Blocking<ReadWriteLock> {
    /// As [`ReadWriteLock::read_lock`](crate::ReadWriteLock::read_lock).
    pub fn read_lock(&self) -> Handle<Read> {
        Blocking(self.0.read_lock())
    }

    /// As [`ReadWriteLock::write_lock`](crate::ReadWriteLock::write_lock).
    pub fn write_lock(&self) -> Handle<Write> {
        Blocking(self.0.write_lock())
    }
}

impl Blocking<crate::client::Quorum> {
    /// As [`Quorum::get_lock`](crate::Quorum::get_lock).
    pub fn get_lock(&self, name: impl AsRef<str>) -> Handle<AtQuorum<Reentrant>> {
        Blocking(self.0.get_lock(name))
    }

    /// As [`Quorum::get_fenced_lock`](crate::Quorum::get_fenced_lock).
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> Handle<AtQuorum<Fenced>> {
        Blocking(self.0.get_fenced_lock(name))
    }

    /// As [`Quorum::new_owner`](crate::Quorum::new_owner).
    pub fn new_owner(&self) -> QuorumOwner {
        Blocking(self.0.new_owner())
    }

    /// As [`Quorum::shutdown`](crate::Quorum::shutdown).
    pub fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        block(self.0.shutdown(timeout))
    }

    /// As [`Quorum::shutting_down`](crate::Quorum::shutting_down).
    pub fn shutting_down(&self) {
        block(self.0.shutting_down());
    }
}

impl Blocking<crate::lock::QuorumOwner> {
    /// As [`QuorumOwner::get_lock`](crate::QuorumOwner::get_lock).
    pub fn get_lock(&self, name: impl AsRef<str>) -> Handle<AtQuorum<Reentrant>> {
        Blocking(self.0.get_lock(name))
    }

    /// As [`QuorumOwner::get_fenced_lock`](crate::QuorumOwner::get_fenced_lock).
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> Handle<AtQuorum<Fenced>> {
        Blocking(self.0.get_fenced_lock(name))
    }
}

impl<K: LockKind> Blocking<crate::lock::Handle<K>> {
    /// As [`Handle::lock`](crate::Handle::lock).
    pub fn lock(&self) -> Result<Blocking<K::Guard>, Error> {
        wait(self.0.lock()).map(Blocking)
    }

    /// As [`Handle::lock_with_lease`](crate::Handle::lock_with_lease).
    pub fn lock_with_lease(&self, lease: Duration) -> Result<Blocking<K::Guard>, Error> {
        wait(self.0.lock_with_lease(lease)).map(Blocking)
    }

    /// As [`Handle::try_lock`](crate::Handle::try_lock).
    pub fn try_lock(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<Blocking<K::Guard>>, Error> {
        let got = self::wait(self.0.try_lock(wait, lease))?;
        Ok(got.map(Blocking))
    }

    /// Runs `body` under the lock. A body that blocks cannot be cancelled: it has to [`check`](crate::LockGuard::check)
    /// before what needs the lock.
    ///
    /// # Errors
    ///
    /// As [`Handle::run`](crate::Handle::run): [`Error::Lost`] also when the hold was lost while the body ran.
    pub fn run<T>(&self, body: impl FnOnce(&Blocking<K::Guard>) -> T) -> Result<T, Error> {
        run_under(self.lock()?, body)
    }

    /// As [`run`](Self::run), with [`try_lock`](Self::try_lock). `None` when the lock stayed busy.
    ///
    /// # Errors
    ///
    /// As [`Handle::try_run`](crate::Handle::try_run).
    pub fn try_run<T>(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
        body: impl FnOnce(&Blocking<K::Guard>) -> T,
    ) -> Result<Option<T>, Error> {
        let guard = self.try_lock(wait, lease)?;
        guard.map(|guard| run_under(guard, body)).transpose()
    }

    /// As [`Handle::unlock`](crate::Handle::unlock).
    pub fn unlock(&self) -> Result<(), Error> {
        wait(self.0.unlock())
    }

    /// As [`Handle::is_locked`](crate::Handle::is_locked).
    pub fn is_locked(&self) -> Result<bool, Error> {
        wait(self.0.is_locked())
    }

    /// As [`Handle::remain_time_to_live`](crate::Handle::remain_time_to_live).
    pub fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        wait(self.0.remain_time_to_live())
    }

    /// As [`Handle::force_unlock`](crate::Handle::force_unlock).
    pub fn force_unlock(&self) -> Result<bool, Error> {
        wait(self.0.force_unlock())
    }
}

impl<K: LockKind<Target: InspectTarget>> Blocking<crate::lock::Handle<K>> {
    /// As [`Handle::holders`](crate::Handle::holders).
    pub fn holders(&self) -> Result<Vec<Holder>, Error> {
        wait(self.0.holders())
    }

    /// As [`Handle::waiters`](crate::Handle::waiters).
    pub fn waiters(&self) -> Result<u64, Error> {
        wait(self.0.waiters())
    }
}

impl Blocking<ReentrantLock> {
    /// As [`ReentrantLock::once_per`](crate::Handle::once_per), with a body that has to
    /// [`check`](crate::LockGuard::check): the end of the interval does not cancel it.
    pub fn once_per<T>(
        &self,
        interval: Duration,
        body: impl FnOnce(&crate::lock::LockGuard) -> T,
    ) -> Result<Option<T>, Error> {
        wait(self.0.once_per(interval, async |guard| body(guard)))
    }
}

impl Blocking<crate::lock::Election> {
    /// As [`Election::lead`](crate::Election::lead), with a body that has to [`check`](crate::LockGuard::check): a loss does
    /// not cancel it. If the term is lost before it ends, it is run again in the next one.
    pub fn lead<T>(&self, mut body: impl FnMut(&FencedGuard) -> T) -> Result<T, Error> {
        wait(self.0.lead(async |term| {
            let value = body(term);
            if !term.is_valid() {
                // It is dropped here.
                std::future::pending::<()>().await;
            }
            value
        }))
    }

    /// As [`Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Holder>, Error> {
        wait(self.0.leader())
    }
}

impl<G: HasLevel> Blocking<G> {
    /// As [`LockGuard::verify`](crate::LockGuard::verify) and [`Permit::verify`](crate::Permit::verify).
    pub fn verify(&self) -> Result<(), Error> {
        wait(self.0.level().verify())
    }

    /// As [`LockGuard::extend`](crate::LockGuard::extend) and [`Permit::extend`](crate::Permit::extend).
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        wait(self.0.level().extend(lease))
    }

    /// Blocks until the hold is lost: [`LockGuard::lost`](crate::LockGuard::lost), [`Permit::lost`](crate::Permit::lost).
    pub fn lost(&self) -> LostReason {
        block(self.0.level().lost())
    }

    /// As [`lost`](Self::lost), for at most `limit`; `None` if the hold was not lost by then.
    pub fn lost_within(&self, limit: Duration) -> Option<LostReason> {
        let level = self.0.level();
        let lost = within(level.timers(), limit, level.lost());
        // After a pause of the process the limit may be noticed before the loss is reported.
        lost.or_else(|| match level.check() {
            Err(Error::Lost { reason, .. }) => Some(reason),
            _ => None,
        })
    }
}

impl<G: IsGuard> Blocking<G> {
    /// As [`LockGuard::reenter`](crate::LockGuard::reenter).
    pub fn reenter(&self, lease: impl Into<Lease>) -> Result<Self, Error> {
        let level = wait(self.0.level().reenter(lease))?;
        G::of(level).map(Blocking)
    }

    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn unlock(self) -> Result<(), Error> {
        wait(self.0.into_level().unlock())
    }

    /// As [`LockGuard::detach`](crate::LockGuard::detach).
    ///
    /// # Errors
    ///
    /// As there; the guard comes back as the async one.
    pub fn detach(self) -> Result<(), GuardError> {
        self.0.into_level().detach()
    }

    /// As [`LockGuard::let_expire`](crate::LockGuard::let_expire).
    ///
    /// # Errors
    ///
    /// As there; the guard comes back as the async one.
    pub fn let_expire(self) -> Result<(), GuardError> {
        self.0.into_level().let_expire()
    }
}

impl Blocking<WriteGuard> {
    /// As [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    pub fn downgrade(self) -> Result<LockGuard, Error> {
        wait(self.0.downgrade()).map(Blocking)
    }
}

impl Blocking<HoldView> {
    /// As [`HoldView::lost`](crate::HoldView::lost).
    pub fn lost(&self) -> LostReason {
        block(self.0.lost())
    }

    /// As [`HoldView::ended`](crate::HoldView::ended).
    pub fn ended(&self) -> Ended {
        block(self.0.ended())
    }
}

/// Runs `body`, and gives the guard back. Fails if the hold was lost before that.
fn run_under<G: HasLevel, T>(
    guard: Blocking<G>,
    body: impl FnOnce(&Blocking<G>) -> T,
) -> Result<T, Error> {
    let value = body(&guard);
    wait(release_after_run(guard.0.into_level()))?;
    Ok(value)
}

/// Blocks until `future` ends, with the runtime that drives its connections.
fn wait<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = the_runtime()?;
    let _on_it = runtime.enter();
    block(future)
}

/// The runtime of the process. Its thread ends with the process.
fn the_runtime() -> Result<runtime::Handle, Error> {
    static RUNTIME: Mutex<Option<runtime::Handle>> = Mutex::new(None);
    let mut runtime = RUNTIME.lock();
    if let Some(runtime) = &*runtime {
        return Ok(runtime.clone());
    }
    let started = start_thread("watchlock-blocking", std::future::pending());
    let started = started.map_err(Failure::starting)?;
    Ok(runtime.insert(started).clone())
}

/// Blocks until `future` ends, for at most `limit` by the client's clock.
fn within<F: Future>(timers: Option<Timers>, limit: Duration, future: F) -> Option<F::Output> {
    let over = async {
        match timers {
            Some(timers) => timers.sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    block(async {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = over => None,
        }
    })
}

fn block<F: Future>(future: F) -> F::Output {
    let parked = Arc::new(Parked {
        thread: std::thread::current(),
        woken: AtomicBool::new(true),
    });
    let waker = Arc::clone(&parked).into();
    let mut context = Context::from_waker(&waker);
    // In a task of tokio, what is polled too often without an await gets no answers any more.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        // Acquire: what was done before the wake-up is seen by the poll.
        if parked.woken.swap(false, Ordering::Acquire) {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            // Not parked at once: a call inside of the poll may have taken the unpark of a wake-up.
        } else {
            std::thread::park();
        }
    }
}

/// A thread that waits for a wake-up. The flag, because others may unpark or park it, too.
struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        // Release: pairs with the swap in `block`. Before the unpark, so that the thread finds it.
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
