//! The same locks for code without `async`: each call blocks its thread until it is done.
//!
//! [`Blocking`] wraps a client, a handle or a guard, and has its async methods as blocking ones. The thread of the caller
//! polls the future itself, and parks in between. What drives the connections is the runtime of one thread, which is made
//! at the first use and serves the whole process from then on.
#![expect(
    clippy::missing_errors_doc,
    reason = "the errors are those of the async methods"
)]

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
use crate::lock::kinds::{HasLevel, IsGuard, Read, SemaphoreKind, Write};
use crate::lock::{CountDownLatch, Permit, PermitExpirableSemaphore, PermitId, Semaphore};
use crate::lock::{Ended, FencedGuard, GuardError, HoldView, Holder, InspectTarget, Ttl};
use crate::lock::{ReadWriteLock, ReentrantLock, SemaphoreHandle, WriteGuard, release_after_run};

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

/// Makes methods that call the async methods with the same names. The first word says what happens to the result: `block`
/// waits for a future, and `Blocking` wraps a value.
macro_rules! blocking {
    ($how:ident $of:ident: $(
        pub fn $name:ident(&$this:ident $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;
    )+) => {$(
        #[doc = concat!(
            "As [`", stringify!($of), "::", stringify!($name), "`]",
            "(crate", "::", stringify!($of), "::", stringify!($name), ")."
        )]
        pub fn $name(&$this $(, $arg: $type)*) $(-> $result)? {
            $how($this.0.$name($($arg),*))
        }
    )+};
}

impl ClientBuilder {
    /// As [`connect`](Self::connect), on any thread.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), but for `NoRuntime`.
    pub fn connect_blocking(self) -> Result<Client, Error> {
        guard(self.connect())
    }
}

impl QuorumBuilder {
    /// As [`connect`](Self::connect), on any thread.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), but for `NoRuntime`.
    pub fn connect_blocking(self) -> Result<Quorum, Error> {
        guard(self.connect())
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

    blocking! { Blocking Client:
        pub fn get_lock(&self, name: impl AsRef<str>) -> Handle<Reentrant>;
        pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> Handle<Fenced>;
        pub fn get_fair_lock(&self, name: impl AsRef<str>) -> Handle<Fair>;
        pub fn get_spin_lock(&self, name: impl AsRef<str>) -> Handle<Spin>;
        pub fn get_spin_lock_with(&self, name: impl AsRef<str>, backoff: Backoff) -> Handle<Spin>;
        pub fn get_simple_lock(&self, name: impl AsRef<str>) -> Handle<Simple>;
        pub fn get_read_write_lock(&self, name: impl AsRef<str>) -> Blocking<ReadWriteLock>;
        pub fn get_semaphore(&self, name: impl AsRef<str>) -> Blocking<Semaphore>;
        pub fn get_permit_expirable_semaphore(&self, name: impl AsRef<str>) -> Blocking<PermitExpirableSemaphore>;
        pub fn get_count_down_latch(&self, name: impl AsRef<str>) -> Blocking<CountDownLatch>;
        pub fn get_election(&self, name: impl AsRef<str>) -> Election;
        pub fn new_owner(&self) -> Owner;
    }

    blocking! { block Client:
        pub fn shutdown(&self, timeout: Duration) -> ShutdownReport;
        pub fn shutting_down(&self);
    }
}

impl Blocking<crate::lock::Owner> {
    blocking! { Blocking Owner:
        pub fn get_lock(&self, name: impl AsRef<str>) -> Handle<Reentrant>;
        pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> Handle<Fenced>;
        pub fn get_fair_lock(&self, name: impl AsRef<str>) -> Handle<Fair>;
        pub fn get_spin_lock(&self, name: impl AsRef<str>) -> Handle<Spin>;
        pub fn get_spin_lock_with(&self, name: impl AsRef<str>, backoff: Backoff) -> Handle<Spin>;
        pub fn get_simple_lock(&self, name: impl AsRef<str>) -> Handle<Simple>;
        pub fn get_read_write_lock(&self, name: impl AsRef<str>) -> Blocking<ReadWriteLock>;
    }
}

impl Blocking<ReadWriteLock> {
    blocking! { Blocking ReadWriteLock:
        pub fn read_lock(&self) -> Handle<Read>;
        pub fn write_lock(&self) -> Handle<Write>;
    }
}

impl Blocking<crate::client::Quorum> {
    blocking! { Blocking Quorum:
        pub fn get_lock(&self, name: impl AsRef<str>) -> Handle<AtQuorum<Reentrant>>;
        pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> Handle<AtQuorum<Fenced>>;
        pub fn new_owner(&self) -> QuorumOwner;
    }

    blocking! { block Quorum:
        pub fn shutdown(&self, timeout: Duration) -> ShutdownReport;
        pub fn shutting_down(&self);
    }
}

impl Blocking<crate::lock::QuorumOwner> {
    blocking! { Blocking QuorumOwner:
        pub fn get_lock(&self, name: impl AsRef<str>) -> Handle<AtQuorum<Reentrant>>;
        pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> Handle<AtQuorum<Fenced>>;
    }
}

impl<K: LockKind> Blocking<crate::lock::Handle<K>> {
    blocking! { guard Handle:
        pub fn lock(&self) -> Result<Blocking<K::Guard>, Error>;
        pub fn lock_with_lease(&self, lease: Duration) -> Result<Blocking<K::Guard>, Error>;
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

    blocking! { wait Handle:
        pub fn unlock(&self) -> Result<(), Error>;
        pub fn is_locked(&self) -> Result<bool, Error>;
        pub fn remain_time_to_live(&self) -> Result<Ttl, Error>;
        pub fn force_unlock(&self) -> Result<bool, Error>;
    }
}

impl<K: LockKind<Target: InspectTarget>> Blocking<crate::lock::Handle<K>> {
    blocking! { wait Handle:
        pub fn holders(&self) -> Result<Vec<Holder>, Error>;
        pub fn waiters(&self) -> Result<u64, Error>;
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

    blocking! { wait Election:
        pub fn leader(&self) -> Result<Option<Holder>, Error>;
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
        guard(self.0.downgrade())
    }
}

impl Blocking<HoldView> {
    blocking! { block HoldView:
        pub fn lost(&self) -> LostReason;
        pub fn ended(&self) -> Ended;
    }
}

impl<K: SemaphoreKind> Blocking<SemaphoreHandle<K>> {
    /// As [`SemaphoreHandle::with_permits`](crate::SemaphoreHandle::with_permits).
    pub fn with_permits(self, permits: u32) -> Self {
        Self(self.0.with_permits(permits))
    }

    blocking! { guard SemaphoreHandle:
        pub fn acquire(&self) -> Result<Blocking<Permit>, Error>;
        pub fn acquire_many(&self, permits: u32) -> Result<Blocking<Permit>, Error>;
    }

    blocking! { wait SemaphoreHandle:
        pub fn holders(&self) -> Result<Vec<Holder>, Error>;
        pub fn waiters(&self) -> Result<u64, Error>;
        pub fn available_permits(&self) -> Result<i64, Error>;
        pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error>;
        pub fn add_permits(&self, permits: i32) -> Result<(), Error>;
        pub fn delete(&self) -> Result<bool, Error>;
    }

    /// As [`SemaphoreHandle::try_acquire`](crate::SemaphoreHandle::try_acquire).
    pub fn try_acquire(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<Blocking<Permit>>, Error> {
        let got = self::wait(self.0.try_acquire(wait, lease))?;
        Ok(got.map(Blocking))
    }

    /// As [`SemaphoreHandle::try_acquire_many`](crate::SemaphoreHandle::try_acquire_many).
    pub fn try_acquire_many(
        &self,
        permits: u32,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<Blocking<Permit>>, Error> {
        let got = self::wait(self.0.try_acquire_many(permits, wait, lease))?;
        Ok(got.map(Blocking))
    }

    /// Runs `body` with a permit. A body that blocks cannot be cancelled: it has to [`check`](crate::Permit::check) before
    /// what needs the permit.
    ///
    /// # Errors
    ///
    /// As [`SemaphoreHandle::run`](crate::SemaphoreHandle::run): [`Error::Lost`] also when the permit was lost while the
    /// body ran.
    pub fn run<T>(&self, body: impl FnOnce(&Blocking<Permit>) -> T) -> Result<T, Error> {
        run_under(self.acquire()?, body)
    }
}

impl Blocking<PermitExpirableSemaphore> {
    blocking! { wait PermitExpirableSemaphore:
        pub fn total_permits(&self) -> Result<i64, Error>;
        pub fn acquired_permits(&self) -> Result<u64, Error>;
        pub fn set_permits(&self, permits: u32) -> Result<(), Error>;
        pub fn release_permit(&self, id: PermitId) -> Result<bool, Error>;
    }
}

impl Blocking<Permit> {
    /// As [`Permit::release`](crate::Permit::release).
    pub fn release(self) -> Result<(), Error> {
        wait(self.0.release())
    }

    /// As [`Permit::forget`](crate::Permit::forget).
    pub fn forget(self) -> Result<(), Error> {
        wait(self.0.forget())
    }
}

impl Blocking<CountDownLatch> {
    blocking! { wait CountDownLatch:
        pub fn try_set_count(&self, count: u32) -> Result<bool, Error>;
        pub fn count_down(&self) -> Result<u64, Error>;
        pub fn count(&self) -> Result<u64, Error>;
        pub fn wait(&self) -> Result<(), Error>;
        pub fn delete(&self) -> Result<bool, Error>;
    }

    /// As [`wait`](Self::wait), for at most `limit`. Returns false if no answer said within it that the latch is open.
    pub fn wait_within(&self, limit: Duration) -> Result<bool, Error> {
        match within(Some(self.0.timers()), limit, self.0.wait()) {
            Some(waited) => waited.map(|()| true),
            None => Ok(false),
        }
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

/// As [`wait`], for a guard.
fn guard<T>(future: impl Future<Output = Result<T, Error>>) -> Result<Blocking<T>, Error> {
    wait(future).map(Blocking)
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
    let Some(timers) = timers else {
        return Some(block(future));
    };
    let end = timers.clock().now() + limit;
    block(timers.until(end, future))
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
