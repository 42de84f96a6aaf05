//! How long Redis keeps a lock without news of its holder.

use std::time::Duration;

use crate::clock::{Moment, millis};
use crate::error::LeaseError;

/// How long a lock is kept: for as long as its holder lives, renewed by the watchdog, for a fixed time, or both.
///
/// A [`Duration`] converts into a fixed lease wherever a lease is asked for.
///
/// ```
/// use std::time::Duration;
/// use watchlock::Lease;
/// assert_eq!(Lease::from(Duration::from_secs(10)), Lease::Fixed(Duration::from_secs(10)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Lease {
    /// The client's watchdog keeps the lock alive for as long as the level lives.
    #[default]
    Watchdog,
    /// Redis keeps the lock for this time, and nothing renews it. The hold is valid for this lease less the drift (1 % of
    /// the lease and 2 ms), counted from just before the command was sent, unless it is released or lost. Whole
    /// milliseconds (the rest is cut off), 10 ms to 365 days.
    Fixed(Duration),
    /// The watchdog keeps the lock alive, but not for longer than this after the acquire. Then the hold is lost with reason
    /// [`Expired`](crate::LostReason::Expired), a little early as with a fixed lease, so a holder that is stuck does not
    /// keep the lock for ever, and one that dies only keeps it for the watchdog's lease. Range as a fixed lease.
    ///
    /// Other levels of the hold may keep it longer; of several such levels the longest counts, also after it was given
    /// back. It cannot be [extended](crate::LockGuard::extend) or left to expire. Read/write locks, a
    /// [`MultiLock`](crate::MultiLock) and a [`Quorum`](crate::Quorum) refuse it:
    /// [`LeaseError::AtMost`](crate::LeaseError::AtMost).
    ///
    /// ```no_run
    /// # async fn example(lock: watchlock::ReentrantLock) -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    /// use watchlock::Lease;
    ///
    /// let an_hour = Lease::AtMost(Duration::from_secs(3600));
    /// if let Some(guard) = lock.try_lock(Duration::MAX, an_hour).await? {
    ///     // … a job that takes minutes, and must not block the others for days …
    ///     guard.unlock().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    AtMost(Duration),
}

impl From<Duration> for Lease {
    fn from(lease: Duration) -> Self {
        Self::Fixed(lease)
    }
}

impl Lease {
    /// How long it lasts without a renewal, or at most.
    pub(crate) fn resolve(
        self,
        watchdog: LeaseMs,
        max_lease: Option<Duration>,
    ) -> Result<LeaseMs, LeaseError> {
        match self {
            Self::Watchdog => Ok(watchdog),
            Self::Fixed(lease) => LeaseMs::fixed(lease, max_lease),
            Self::AtMost(limit) => LeaseMs::fixed(limit, None),
        }
    }

    /// The same, for a lock whose levels have leases of their own.
    pub(crate) fn of_several(self) -> Result<Self, LeaseError> {
        match self {
            Self::AtMost(_) => Err(LeaseError::AtMost),
            _ => Ok(self),
        }
    }
}

pub(crate) const SHORTEST_FIXED: Duration = Duration::from_millis(10);

const LONGEST_FIXED: Duration = Duration::from_secs(365 * 24 * 3600);

/// A lease in whole milliseconds, within its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseMs(u64);

impl LeaseMs {
    /// A fixed lease; in a quorum no longer than its `max_lease`.
    pub(crate) fn fixed(lease: Duration, max_lease: Option<Duration>) -> Result<Self, LeaseError> {
        if !(SHORTEST_FIXED..=LONGEST_FIXED).contains(&lease) {
            return Err(LeaseError::OutOfBounds { given: lease });
        }
        match max_lease {
            Some(max_lease) if lease > max_lease => Err(LeaseError::AboveMaxLease {
                given: lease,
                max_lease,
            }),
            _ => Ok(Self::of(lease)),
        }
    }

    pub(crate) const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Rounded down, and at least 1 ms.
    pub(crate) fn of(span: Duration) -> Self {
        Self(millis(span).max(1))
    }

    pub(crate) const fn as_millis(self) -> u64 {
        self.0
    }

    pub(crate) const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// How much earlier than Redis the client stops trusting a lease: 1 % of it and 2 ms, for clocks
    /// that do not run at the same rate.
    pub(crate) fn drift(self) -> Duration {
        Duration::from_micros(self.0 * 10 + 2_000)
    }

    /// How often a hold with this lease is renewed: a third of it.
    pub(crate) fn period(self) -> Duration {
        self.duration() / 3
    }

    /// When a hold with this lease is renewed that is valid until then: while two thirds of the lease are left.
    pub(crate) fn renewal(self, valid_until: Moment) -> Moment {
        (valid_until + self.drift()).minus(self.period() * 2)
    }

    /// The term of this lease, when Redis acknowledged the command that was sent at `sent_at`.
    pub(crate) fn term(self, sent_at: Moment) -> Term {
        Term {
            sent_at,
            valid_until: sent_at + self.duration().saturating_sub(self.drift()),
            ends_at: sent_at + self.duration(),
        }
    }
}

/// An acknowledged lease, by the client's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    /// Just before its command was sent.
    pub(crate) sent_at: Moment,
    /// Until when the client treats the hold as valid.
    pub(crate) valid_until: Moment,
    /// When the lease ends by the client's clock. In Redis it ends later, by the time that the command took to arrive.
    pub(crate) ends_at: Moment,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_lease_lies_between_10_ms_and_365_days_and_in_a_quorum_up_to_its_longest() {
        let ms = Duration::from_millis;
        let nano = Duration::from_nanos(1);
        let year = Duration::from_secs(365 * 24 * 3600);
        assert!(LeaseMs::fixed(ms(10), None).is_ok() && LeaseMs::fixed(year, None).is_ok());
        for given in [Duration::from_micros(9_999), year + nano, Duration::MAX] {
            for max_lease in [None, Some(ms(5_000))] {
                let refused = LeaseMs::fixed(given, max_lease);
                assert_eq!(refused, Err(LeaseError::OutOfBounds { given }));
            }
        }
        let max_lease = ms(5_000);
        assert!(LeaseMs::fixed(max_lease, Some(max_lease)).is_ok());
        let given = max_lease + nano;
        let refused = LeaseMs::fixed(given, Some(max_lease));
        assert_eq!(refused, Err(LeaseError::AboveMaxLease { given, max_lease }));
    }

    #[test]
    fn drift_is_one_percent_and_two_milliseconds() {
        let lease = LeaseMs::from_millis(10_000);
        assert_eq!(lease.drift(), Duration::from_millis(102));
        let term = lease.term(Moment::default());
        assert_eq!(
            term.valid_until,
            Moment::default() + Duration::from_millis(9_898)
        );
        assert_eq!(term.ends_at, Moment::default() + Duration::from_secs(10));
    }
}
