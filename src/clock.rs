//! A clock of elapsed time that includes the time while the machine sleeps.
//!
//! This clock alone decides whether a hold is still valid. On Linux it is `CLOCK_BOOTTIME`: the monotonic clock stops during
//! a suspend, while the lease in Redis runs down. Elsewhere it is [`std::time::Instant`].

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// A point in time: nanoseconds since some fixed start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Later than everything.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `self` until `later`, zero when that is past.
    pub(crate) const fn until(self, later: Self) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }

    pub(crate) fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The clock a client measures leases with.
///
/// [`Clock::system`] is the default. [`Clock::driven`] is for tests of code that must notice a lost hold:
/// it runs like the system's clock and can be pushed ahead, as a suspended laptop or virtual machine
/// would see it, or stopped.
///
/// ```
/// use std::time::Duration;
/// let (clock, ahead) = watchlock::Clock::driven();
/// let builder = watchlock::Client::builder("redis://127.0.0.1/").clock(clock);
/// ahead.advance(Duration::from_secs(60)); // every lease of up to a minute is over now
/// # drop(builder);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Clock {
    driven: Option<Arc<DrivenTime>>,
}

#[derive(Debug, Default)]
struct DrivenTime {
    ahead: AtomicU64,
    /// What the system's clock showed when it was stopped, 0 while it runs.
    stopped_at: AtomicU64,
    advanced: Notify,
}

impl DrivenTime {
    fn now(&self) -> Moment {
        // Relaxed: the numbers guard no other data. `advanced` orders them for those who wait for a change.
        let ahead = self.ahead.load(Ordering::Relaxed);
        let now = match self.stopped_at.load(Ordering::Relaxed) {
            0 => elapsed_nanos(),
            stopped_at => stopped_at,
        };
        Moment(now.saturating_add(ahead))
    }
}

impl Clock {
    /// The system's clock of elapsed time, suspend included.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that can be pushed ahead of the system's, and stopped.
    #[must_use]
    pub fn driven() -> (Self, ClockDriver) {
        let driven = Arc::<DrivenTime>::default();
        (
            Self {
                driven: Some(Arc::clone(&driven)),
            },
            ClockDriver { driven },
        )
    }

    pub(crate) fn now(&self) -> Moment {
        #[cfg(feature = "__simulation")]
        if let Some(nanos) = crate::host::now() {
            return Moment(nanos);
        }
        match &self.driven {
            None => Moment(elapsed_nanos()),
            Some(driven) => driven.now(),
        }
    }

    /// Resolves at the next jump of the clock after this call. Jumps are what a timer does not know of; the system's clock
    /// has none.
    pub(crate) fn jumped(&self) -> Option<Notified<'_>> {
        self.driven
            .as_ref()
            .map(|driven| driven.advanced.notified())
    }
}

/// Pushes a [`Clock::driven`] ahead, or stops it.
///
/// ```no_run
/// # async fn example() -> Result<(), watchlock::Error> {
/// use std::time::Duration;
/// use watchlock::{Client, Clock};
///
/// let (clock, ahead) = Clock::driven();
/// let client = Client::builder("redis://127.0.0.1/").clock(clock).connect().await?;
/// let guard = client.get_lock("report").lock().await?;
/// ahead.advance(Duration::from_secs(60)); // as after a minute's suspend
/// assert!(!guard.is_valid());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ClockDriver {
    driven: Arc<DrivenTime>,
}

impl ClockDriver {
    /// What the clock shows: the time since a fixed start, which is the same for all clocks of the process.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.driven.now().as_nanos())
    }

    /// Lets `span` pass on the clock, at once. The clients with this clock notice at once: they send renewals that are
    /// due, report losses, end waits whose time is over, and repeat what they held back. Time-outs of commands and of
    /// connecting go on: they measure how long a server is silent. So let commands that are under way arrive first: to the
    /// client they are as old as the clock says.
    pub fn advance(&self, span: Duration) {
        let later = |ahead: u64| Some(ahead.saturating_add(nanos(span)));
        let _ = self
            .driven
            .ahead
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        self.driven.advanced.notify_waiters();
    }

    /// Stops the clock: from now on time passes by [`advance`](Self::advance) alone, so that a test does not depend on
    /// how fast it runs. Leases, waits and renewals stand still with it; Redis, time-outs, and pauses between tries go on.
    pub fn stop(&self) {
        // One that stands still already stays where it is.
        let _ = self.driven.stopped_at.compare_exchange(
            0,
            elapsed_nanos(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// Starts a stopped clock again, and adds the time that passed meanwhile.
    pub fn go_on(&self) {
        self.driven.stopped_at.store(0, Ordering::Relaxed);
        self.driven.advanced.notify_waiters();
    }
}

#[cfg(target_os = "linux")]
fn elapsed_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    secs.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(not(target_os = "linux"))]
fn elapsed_nanos() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    nanos(START.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Moment(5) + Duration::MAX, Moment::NEVER);
        assert_eq!(Moment(5).minus(Duration::from_secs(1)), Moment(0));
        assert_eq!(Moment(5).until(Moment(3)), Duration::ZERO);
    }

    #[test]
    fn a_driven_clock_goes_ahead() {
        let (clock, driver) = Clock::driven();
        let before = clock.now();
        driver.advance(Duration::from_secs(3600));
        assert!(before.until(clock.now()) >= Duration::from_secs(3600));
    }
}
