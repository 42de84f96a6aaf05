//! Semaphores: handles of counted locks, and the guard of permits.
//!
//! 1. Each acquire is a hold of its own with a lease, whatever it takes: there are no owners, and nothing is entered again.
//! 2. Permits are given back by their guard, or when their lease ends; nobody gives back what it does not have.

use std::iter;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::guard::{HasLevel, LockGuard};
use super::handle::{LockOfClient, LockTarget};
use super::inspect::{Holder, InspectTarget, holders_of_permits};
use super::kinds::permits::{self, MOST_AT_ONCE, PermitId, Permits, Records};
use super::kinds::{Counting, Expirable, SemaphoreKind};
use super::object::run_under;
use super::view::HoldView;
use crate::backend::Failure;
use crate::engine::caller::ask::{ask, tell};
use crate::engine::core::error_of;
use crate::engine::hold::kind::{Kind, KindCommands};
use crate::engine::keeper::Engine;
use crate::error::{Error, LostReason};
use crate::lease::Lease;
use crate::script::Reply;

/// The most permits that a semaphore has: Redisson counts in 32 bits.
const MOST_PERMITS: i64 = i32::MAX as i64;

/// A semaphore by name: a number of permits that any process may take and give back. [`Semaphore`] and
/// [`PermitExpirableSemaphore`] are aliases of it.
///
/// It is cheap to clone, and made to be kept and shared. Permits that are taken have a lease, which the watchdog renews while
/// the [`Permit`] lives; those of a process that died come back when their lease ends. Everybody who uses the name must agree
/// on the number of permits, by [`with_permits`](Self::with_permits) or [`try_set_permits`](Self::try_set_permits): without
/// one there are none, and an acquire waits.
///
/// **Never more valid permits than there are**, with the limits of a lock. One more: if the number is deleted, and Java sets
/// it anew before a program of this crate looks at it, permits that were taken before come back once too often. And if
/// Java gave the number a time to live, its permits end with it: who has one learns that at the next renewal, with a fixed
/// lease never, and others may have the permits of a new number by then.
///
/// **Order.** Inside a client requests are granted in the order of the calls. A request that has waited for 100 ms precedes
/// younger ones of other clients of this crate: they leave it as many permits as it asks for, so one for many does not
/// starve. They do so for 30 of every 40 s, as it may ask for more than there are. Java's waiters do not know that.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// // At most five imports at once, over all processes.
/// let imports = client.get_semaphore("imports").with_permits(5);
/// let permit = imports.acquire().await?;
/// // … four others at most are here …
/// permit.release().await
/// # }
/// ```
pub struct SemaphoreHandle<K: SemaphoreKind> {
    target: LockOfClient,
    /// None if somebody else sets the number of permits.
    initial: Option<u32>,
    kind: PhantomData<fn() -> K>,
}

/// Redisson's `RSemaphore`, with the same number and channel. Redisson does not know whose permits are taken, so this crate
/// keeps records of its own beside the number: permits of a dead Java process stay taken, and Java's `release` of what it does
/// not have, `addPermits`, `drainPermits` and `delete` do not see the records.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let imports: watchlock::Semaphore = client.get_semaphore("imports");
/// imports.try_set_permits(5).await?;
/// imports.acquire().await?.release().await
/// # }
/// ```
#[doc(alias = "RSemaphore")]
pub type Semaphore = SemaphoreHandle<Counting>;

/// Redisson's `RPermitExpirableSemaphore`: its permits have an id and a lease in Java, too, and each side takes back what the
/// other left behind at the end of its lease. A lease of Java's ends by the clock of Java's host: if that is ahead of Redis'
/// by two thirds of a lease of ours, Java takes live permits away; if it is behind, Java's are taken that much early.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let imports: watchlock::PermitExpirableSemaphore =
///     client.get_permit_expirable_semaphore("imports").with_permits(5);
/// let permit = imports.acquire().await?;
/// println!("permit {}", permit.ids()[0]);
/// permit.release().await
/// # }
/// ```
#[doc(alias = "RPermitExpirableSemaphore")]
pub type PermitExpirableSemaphore = SemaphoreHandle<Expirable>;

/// Not derived: the kind itself need not be `Clone`.
impl<K: SemaphoreKind> Clone for SemaphoreHandle<K> {
    fn clone(&self) -> Self {
        Self {
            target: self.target.clone(),
            initial: self.initial,
            kind: PhantomData,
        }
    }
}

impl<K: SemaphoreKind> std::fmt::Debug for SemaphoreHandle<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(K::HANDLE)
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl<K: SemaphoreKind> SemaphoreHandle<K> {
    pub(crate) fn of_client(engine: &Arc<Engine>, name: &str) -> Self {
        let any = Permits::new(Records::of_kind::<K>(), 1, 0);
        Self {
            target: LockOfClient::new(engine, name, None, |config, name| any.kind(config, name)),
            initial: None,
            kind: PhantomData,
        }
    }

    /// The semaphore's name, without the client's prefix.
    #[must_use]
    #[doc(alias = "getName")]
    pub fn name(&self) -> &str {
        self.target.name()
    }

    /// Sets the number of permits to `permits`, 1 to 2^31 - 1, with each acquire that finds none set. It changes no number
    /// that is there. A number out of range is an error of the first use.
    ///
    /// Give each handle of a name the same number: a client serves its requests in the order of the calls, so one that finds
    /// no number set, and sets none, keeps those behind it waiting.
    #[must_use]
    pub fn with_permits(self, permits: u32) -> Self {
        let initial = Some(permits);
        Self { initial, ..self }
    }

    /// Waits for a permit without a limit. The watchdog keeps it while the [`Permit`] lives.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`]; [`Error::CrossSlot`] in a cluster; [`Error::InvalidCount`] when
    /// [`with_permits`](Self::with_permits) was out of range; [`Error::WrongType`] when the keys are not those of a
    /// semaphore; [`Error::Denied`]; [`Error::Unsupported`]; [`Error::Closed`];
    /// [`Error::Unavailable`] or [`Error::Refused`] when Redis was unreachable or refused for `unavailable_after` (5 s unless
    /// set); [`Error::Config`] with [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropped at any point, it leaves no permit taken once the background clean-up is done. The place in the
    /// queue is lost.
    #[doc(alias = "acquireAsync")]
    pub async fn acquire(&self) -> Result<Permit, Error> {
        self.acquire_many(1).await
    }

    /// Waits for `permits` permits without a limit, 1 to 1 024, and takes all or none. A request for more than there are
    /// waits until there are more.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::InvalidCount`] when `permits` is out of range, or above
    /// [`with_permits`](Self::with_permits).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<Permit, Error> {
        let got = self.take(permits, None, Lease::Watchdog).await?;
        got.ok_or(Error::Closed)
    }

    /// Waits for a permit for at most `wait`. `None` when there was none to the end.
    ///
    /// `Duration::ZERO` makes one try, `Duration::MAX` waits without a limit. `lease` is [`Lease::Watchdog`],
    /// [`Lease::AtMost`] or a fixed [`Duration`], of 10 ms to 365 days. Returns within the longer of `wait` and the command time-out. It overtakes nobody
    /// who waits in this client. Bind the permit: `is_some()` alone gives it back at once.
    ///
    /// ```no_run
    /// # async fn example(imports: watchlock::Semaphore) -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    /// use watchlock::Lease;
    ///
    /// let Some(permit) = imports.try_acquire(Duration::ZERO, Lease::Watchdog).await? else {
    ///     return Ok(()); // all are taken
    /// };
    /// permit.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::InvalidLease`]. Transient errors are retried within `wait`; at its end the
    /// last one is returned, unless the last answer was that there is none.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "tryAcquire")]
    pub async fn try_acquire(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<Permit>, Error> {
        self.try_acquire_many(1, wait, lease).await
    }

    /// As [`try_acquire`](Self::try_acquire), for `permits` permits, all or none.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire) and [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many(
        &self,
        permits: u32,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<Permit>, Error> {
        self.take(permits, Some(wait), lease.into()).await
    }

    /// Runs `body` with a permit, and cancels it when the permit is lost: as [`Handle::run`](crate::Handle::run).
    ///
    /// ```no_run
    /// # async fn example(imports: watchlock::Semaphore) -> Result<(), watchlock::Error> {
    /// let lines = imports.run(async |_permit| 42).await?;
    /// # drop(lines);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Lost`] when the permit was lost before the body ended, also when only the
    /// release finds that out.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body and gives the permit back.
    pub async fn run<T>(&self, body: impl AsyncFnOnce(&Permit) -> T) -> Result<T, Error> {
        let permit = self.acquire().await?;
        run_under(permit, body).await
    }

    /// How many permits are free; those whose lease has ended count as free. Negative when there are fewer than taken. Asks
    /// Redis.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`]; [`Error::CrossSlot`] in a cluster; [`Error::WrongType`]; [`Error::Unavailable`],
    /// [`Error::Refused`], [`Error::Denied`], [`Error::Closed`] of the command; [`Error::Config`] with
    /// [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    #[doc(alias = "availablePermits")]
    pub async fn available_permits(&self) -> Result<i64, Error> {
        self.look("free").await
    }

    /// Sets the number of permits, 0 to 2^31 - 1, if none is set. Returns whether it was this call; after a lost reply `false`
    /// may hide that it was.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits); [`Error::InvalidCount`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may have run.
    #[doc(alias = "trySetPermits")]
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.about(Error::check_count(permits.into(), 0..=MOST_PERMITS))?;
        self.change("first", permits.into()).await
    }

    /// Adds permits, or takes them away with a negative number; what is taken already stays taken.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits); [`Error::InvalidCount`] when fewer than -(2^31 - 1) or more than
    /// 2^31 - 1 permits would be free. [`Error::Unavailable`]: it may have run, and is not repeated.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may have run.
    #[doc(alias = "addPermits")]
    pub async fn add_permits(&self, permits: i32) -> Result<(), Error> {
        self.change("more", permits.into()).await.map(drop)
    }

    /// Deletes the semaphore. Returns whether it was there. Holders learn that their permits are
    /// [lost](LostReason::Missing) when they renew; waiters go on waiting.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may have run.
    pub async fn delete(&self) -> Result<bool, Error> {
        self.change("delete", 0).await
    }

    fn about<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| error.about(self.name()))
    }

    async fn take(
        &self,
        permits: u32,
        wait: Option<Duration>,
        lease: Lease,
    ) -> Result<Option<Permit>, Error> {
        let (target, request) = self.about(self.request(permits))?;
        let level = target.acquire(wait, lease).await?;
        Ok(level.map(|level| Permit::of::<K>(level, target, request)))
    }

    /// The lock to acquire for so many permits.
    fn request(&self, count: u32) -> Result<(LockOfClient, Permits), Error> {
        let kind = self.target.kind()?;
        if let Some(initial) = self.initial {
            Error::check_count(initial.into(), 1..=MOST_PERMITS)?;
        }
        let most = self.initial.unwrap_or(MOST_AT_ONCE).min(MOST_AT_ONCE);
        Error::check_count(count.into(), 1..=most.into())?;
        let request = Permits::new(Records::of_kind::<K>(), count, self.initial.unwrap_or(0));
        let commands = KindCommands::OfOne(Arc::new(request.clone()));
        let target = self.target.of_kind(Kind {
            commands,
            ..kind.clone()
        });
        Ok((target, request))
    }

    /// The permits that are taken, Redisson's expirable ones too: at most 100, each with its id and without a client; those
    /// first whose lease ends first. Asks Redis. For people, because it is outdated when it arrives.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn holders(&self) -> Result<Vec<Holder>, Error> {
        let asked = async {
            let names = &self.target.kind()?.names;
            let records = Records::of_kind::<K>().of(names);
            holders_of_permits(self.target.core(), names, &records).await
        };
        self.about(asked.await)
    }

    /// Roughly how many clients wait: as [`Handle::waiters`](crate::Handle::waiters).
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn waiters(&self) -> Result<u64, Error> {
        self.about(self.target.waiters().await)
    }

    async fn look(&self, what: &str) -> Result<i64, Error> {
        let asked = async {
            let names = &self.target.kind()?.names;
            let call = Records::of_kind::<K>().look(names, what);
            match ask(self.target.core(), call).await? {
                Reply::Done(number) => Ok(i64::try_from(number).unwrap_or(i64::MAX)),
                Reply::DoneNegative(number) => Ok(i64::try_from(number).map_or(i64::MIN, |n| -n)),
                refusal => Err(error_of(refusal)),
            }
        };
        self.about(asked.await)
    }

    /// Returns whether it changed anything. What would add twice, or could not say what the first did, is sent once.
    async fn change(&self, how: &str, permits: i64) -> Result<bool, Error> {
        let changed = async {
            let names = &self.target.kind()?.names;
            let call = Records::of_kind::<K>().change(names, how, permits);
            let reply = match how {
                "first" | "total" => ask(self.target.core(), call).await?,
                _ => tell(self.target.core(), call).await?,
            };
            match reply {
                Reply::Done(changed) => Ok(changed > 0),
                Reply::OutOfRange(size) => {
                    let size = i64::try_from(size).unwrap_or(i64::MAX);
                    let given = size.saturating_mul(permits.signum());
                    Error::check_count(given, -MOST_PERMITS..=MOST_PERMITS)?;
                    Err(error_of(reply))
                }
                refusal => Err(error_of(refusal)),
            }
        };
        self.about(changed.await)
    }
}

impl PermitExpirableSemaphore {
    /// How many permits there are, free and taken ones. Asks Redis.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    #[doc(alias = "getPermits")]
    pub async fn total_permits(&self) -> Result<i64, Error> {
        self.look("total").await
    }

    /// How many permits are taken; those whose lease has ended do not count. Asks Redis.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    #[doc(alias = "acquiredPermits")]
    pub async fn acquired_permits(&self) -> Result<u64, Error> {
        Ok(u64::try_from(self.look("taken").await?).unwrap_or(0))
    }

    /// Sets how many permits there are, free and taken ones, 0 to 2^31 - 1. When more are taken, none is free until enough
    /// came back.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits); [`Error::InvalidCount`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may have run.
    #[doc(alias = "setPermits")]
    pub async fn set_permits(&self, permits: u32) -> Result<(), Error> {
        self.about(Error::check_count(permits.into(), 0..=MOST_PERMITS))?;
        self.change("total", permits.into()).await.map(drop)
    }

    /// Gives back the permit of that id, whoever has it. Returns whether it was taken. For operators, ids from Java, and
    /// forgotten permits: the guard of a permit of this crate learns at its next renewal that it is
    /// [lost](LostReason::Missing).
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may have run.
    #[doc(alias = "tryRelease")]
    pub async fn release_permit(&self, id: PermitId) -> Result<bool, Error> {
        let released = async {
            let names = &self.target.kind()?.names;
            let call = Records::Shared.release(names, "given", iter::once(id));
            match tell(self.target.core(), call).await? {
                Reply::Gone => Ok(false),
                Reply::Woke(_) | Reply::Done(_) | Reply::Unheard(_) => Ok(true),
                refusal => Err(error_of(refusal)),
            }
        };
        self.about(released.await)
    }
}

/// Permits of a semaphore that are taken. Dropping it gives them back.
///
/// Use [`release`](Self::release) where you can: it reports whether they were held to the end. A drop leaves the release to the
/// client's background thread. While it lives under the watchdog the permits are kept, also when its task is stuck.
///
/// ```no_run
/// # async fn example(imports: watchlock::Semaphore) -> Result<(), watchlock::Error> {
/// let permit = imports.acquire_many(2).await?;
/// tokio::select! {
///     reason = permit.lost() => eprintln!("stop at once: {reason}"),
///     () = work() => permit.release().await?,
/// }
/// # Ok(())
/// # }
/// # async fn work() {}
/// ```
#[clippy::has_significant_drop]
#[must_use = "dropping permits gives them back at once"]
pub struct Permit {
    level: LockGuard,
    target: LockOfClient,
    request: Permits,
    ids: Box<[PermitId]>,
}

impl HasLevel for Permit {
    fn level(&self) -> &LockGuard {
        &self.level
    }

    fn into_level(self) -> LockGuard {
        self.level
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit")
            .field("name", &self.name())
            .field("num_permits", &self.num_permits())
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl Permit {
    fn of<K: SemaphoreKind>(level: LockGuard, target: LockOfClient, request: Permits) -> Self {
        let hold_id = level.hold_id().filter(|_| K::RECORDED);
        let ids = hold_id.map(|id| permits::ids(id, request.count).collect());
        Self {
            ids: ids.unwrap_or_default(),
            level,
            target,
            request,
        }
    }

    /// The semaphore's name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.level.name()
    }

    /// How many permits these are.
    #[must_use]
    pub fn num_permits(&self) -> u32 {
        self.request.count
    }

    /// Their ids in Redis; none for a [`Semaphore`].
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        &self.ids
    }

    /// As [`LockGuard::is_valid`]. Local.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.level.is_valid()
    }

    /// As [`LockGuard::valid_for`]. Local.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.level.valid_for()
    }

    /// As [`LockGuard::check`]. Local.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        self.level.check()
    }

    /// Resolves when the permits are lost, as [`LockGuard::lost`]; when one of them is, all are.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        self.level.lost().await
    }

    /// A view of the hold for spawned subtasks. It does not keep the permits.
    #[must_use]
    pub fn hold(&self) -> HoldView {
        self.level.hold()
    }

    /// Asks Redis whether the permits are there, as [`LockGuard::verify`]. One round trip.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::verify`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease may have been written or not.
    pub async fn verify(&self) -> Result<(), Error> {
        self.level.verify().await
    }

    /// Extends a fixed lease, as [`LockGuard::extend`]. Never shortens it.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::extend`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease may have been extended or not.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.level.extend(lease).await
    }

    /// Gives the permits back and waits for the answer of Redis, as [`LockGuard::unlock`]. Those of a [`Semaphore`] may go to
    /// a waiter of this client instead, which takes no command ([`pass_on`](crate::ClientBuilder::pass_on)).
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`]. [`Error::Lost`] also when Redis is asked and one of them was not there any more; the others are given back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the first poll gives them back, and the background finishes the rest.
    pub fn release(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.level.unlock()
    }

    /// Leaves the permits taken for good, whatever becomes of this process: until
    /// [`add_permits`](SemaphoreHandle::add_permits), or [`release_permit`](SemaphoreHandle::release_permit) of their
    /// [`ids`](Self::ids). One round trip.
    ///
    /// ```no_run
    /// # async fn example(licences: watchlock::PermitExpirableSemaphore) -> Result<(), watchlock::Error> {
    /// let permit = licences.acquire().await?;
    /// let sold = permit.ids()[0];
    /// permit.forget().await?;
    /// // … another day, in another process …
    /// licences.release_permit(sold).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; [`Error::Unavailable`], [`Error::Refused`], [`Error::Denied`], [`Error::Closed`] of the command.
    /// After an error the permits are given back, as by a drop. If Redis then stays away until the lease and a command time-out
    /// are over, they may stay taken: a command whose answer is missing may have run.
    ///
    /// # Cancel safety
    ///
    /// If dropped before it returned Ok, the permits are given back, with the same limit.
    pub async fn forget(self) -> Result<(), Error> {
        let forgotten = self.forget_records().await;
        forgotten.map_err(|error| error.about(self.name()))
    }

    /// Returns Ok once the permits are forgotten in Redis: from then on the drop of the level gives nothing back.
    async fn forget_records(&self) -> Result<(), Error> {
        self.check()?;
        let names = &self.target.kind()?.names;
        let hold_id = self.level.hold_id().ok_or_else(Error::not_owner)?;
        self.level.may_never_end();
        let asked = ask(self.target.core(), self.request.forget(names, hold_id));
        let reply = self.level.answered(asked).await?;
        match reply.found() {
            Some(true) => {
                // Set under the hold's lock: if the hold was lost before, its release gives the permits back.
                let forgets = || self.request.forgotten.store(true, Ordering::Release);
                let kept = self.level.while_held(forgets);
                if kept {
                    Ok(())
                } else {
                    self.check().and(Err(Error::not_owner()))
                }
            }
            Some(false) => Err(Error::lost(LostReason::Missing)),
            None => Err(Failure::strange_reply().into()),
        }
    }
}
