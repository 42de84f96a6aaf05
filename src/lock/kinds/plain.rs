//! The plain lock: Redisson's hash, channel and commands.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::config::Config;
use crate::engine::hold::kind::{Commands, Kind, KindCommands, KindRules};
use crate::error::Error;
use crate::lock::guard::{LockGuard, sealed};
use crate::lock::handle::{Handle, LockKind, LockOfClient};
use crate::lock::object::while_valid;
use crate::names::Family;

/// The kind of [`ReentrantLock`].
#[derive(Debug)]
pub enum Reentrant {}

impl sealed::Sealed for Reentrant {}

impl LockKind for Reentrant {
    const HANDLE: &'static str = "ReentrantLock";
    type Target = LockOfClient;
    type Guard = LockGuard;
}

/// A reentrant, exclusive lock by name: Redisson's `RLock`, with the same hash and channel.
///
/// From [`Client::get_lock`](crate::Client::get_lock) or [`Owner::get_lock`](crate::Owner::get_lock). For several permits
/// there is the [`Semaphore`](crate::Semaphore); this is the one with a single permit.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let lock: watchlock::ReentrantLock = client.get_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … nobody else is here …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RLock")]
#[doc(alias = "mutex")]
#[doc(alias = "semaphore")]
pub type ReentrantLock = Handle<Reentrant>;

impl ReentrantLock {
    /// Runs `body` if nobody did within `interval`, in any process; else `None`, at once.
    ///
    /// It takes the lock for `interval` as a fixed lease, and after the body leaves it to that lease
    /// ([`let_expire`](LockGuard::let_expire)). The body is cancelled when the interval ends. If it panics, the lock is
    /// released, and the next call runs.
    ///
    /// Take an interval a little shorter than the schedule: with the same, every second run finds the lock still held.
    /// `interval` has whole milliseconds (the rest is cut off), 10 ms to 365 days.
    ///
    /// ```no_run
    /// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    ///
    /// // Each host calls this once a minute.
    /// let tick = client.get_lock("tick");
    /// let ran = tick.once_per(Duration::from_secs(55), async |_guard| println!("tick")).await?;
    /// if ran.is_none() {
    ///     println!("another host had this minute");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_run`](Handle::try_run). [`Error::InvalidLease`] also when the owner that it acts for holds the lock already,
    /// before the body runs, and when the body leaves a level of the hold behind.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body and releases the lock.
    pub async fn once_per<T>(
        &self,
        interval: Duration,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<Option<T>, Error> {
        let Some(guard) = self.try_lock(Duration::ZERO, interval).await? else {
            return Ok(None);
        };
        guard.may_expire()?;
        let value = while_valid(&guard, body(&guard)).await?;
        guard.let_expire()?;
        Ok(Some(value))
    }
}

pub(crate) fn kind(config: &Config, name: &str) -> Result<Kind, Error> {
    let commands = KindCommands::OfAll(&Plain { backoff: None });
    Kind::new(&Family::PLAIN, config, name, commands)
}

/// All its commands are the defaults of [`Commands`].
pub(super) struct Plain {
    /// Its waiters poll with it: it is a spin lock.
    pub(super) backoff: Option<Backoff>,
}

impl Commands for Plain {
    fn rules(&self) -> KindRules {
        KindRules {
            name: self.backoff.map_or(KindRules::DEFAULT.name, |_| "spin"),
            passes_on: true,
            backoff: self.backoff,
            ..KindRules::DEFAULT
        }
    }
}
