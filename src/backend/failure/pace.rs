//! When the next attempt to connect may begin. Pure arithmetic over moments.
//!
//! 1. Two attempts are at least one delay apart, whether the first succeeded or not, and the delays grow.
//! 2. The delays start again from the first when the last attempt is longer ago than the longest delay.
//! 3. A server that became a replica still answers, so nobody waits for a new connection. It is replaced after delays of
//!    its own, which are longer, in case the master is elsewhere by now.

use std::time::Duration;

use crate::backoff::{Backoff, Delays};
use crate::clock::Moment;

/// The longest pause between two connections to a server that stays a replica.
const DEMOTED: Duration = Duration::from_secs(1);

pub(crate) struct AttemptPace {
    longest: Duration,
    delays: Delays,
    demotions: Delays,
    last: Option<Moment>,
    next: Moment,
}

impl AttemptPace {
    pub(crate) fn new(backoff: Backoff, seed: u64) -> Self {
        Self {
            longest: backoff.cap_delay(),
            delays: backoff.delays(seed),
            demotions: backoff.cap(DEMOTED).delays(seed),
            last: None,
            next: Moment::default(),
        }
    }

    pub(crate) fn wait(&self, now: Moment) -> Duration {
        now.until(self.next)
    }

    /// An attempt begins. Returns when its connection may be replaced if the server is a replica.
    pub(crate) fn attempt(&mut self, now: Moment) -> Moment {
        let ago = self.last.map_or(Duration::MAX, |last| last.until(now));
        if ago > self.longest {
            self.delays.reset();
        }
        // Only the next command shows that the server is a replica, and it may come some time after the delay.
        if ago > DEMOTED * 2 {
            self.demotions.reset();
        }
        self.last = Some(now);
        self.next = now + self.delays.step();
        now + self.demotions.step()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAP: Duration = Duration::from_millis(200);

    fn at(ms: u64) -> Moment {
        Moment::default() + Duration::from_millis(ms)
    }

    #[test]
    fn the_first_attempt_and_one_after_a_long_time_are_made_at_once() {
        let mut pace = AttemptPace::new(Backoff::new().cap(CAP), 0);
        assert_eq!(pace.wait(at(0)), Duration::ZERO);
        pace.attempt(at(0));
        assert!(pace.wait(at(0)) > Duration::ZERO);
        for _ in 0..9 {
            pace.attempt(pace.next);
        }
        let later = pace.next + CAP;
        assert_eq!(pace.wait(later), Duration::ZERO);
        pace.attempt(later);
        assert!(pace.wait(later) <= Duration::from_millis(20));
    }

    /// Attempts that each come `after` ms behind the one before, as long as they grow; and how long the delay, and the
    /// time until a replica is left, are at most after the last.
    fn row(after: u64) -> (Duration, Duration) {
        let rows = (0..50).map(|seed| {
            let mut pace = AttemptPace::new(Backoff::new().cap(CAP), seed);
            let mut last = (Duration::ZERO, Duration::ZERO);
            for attempt in 0..10 {
                let now = at(attempt * after);
                let leave = pace.attempt(now);
                last = (now.until(pace.next), now.until(leave));
            }
            last
        });
        rows.fold(Default::default(), |(delay, leave), row| {
            (row.0.max(delay), row.1.max(leave))
        })
    }

    #[test]
    fn delays_grow_as_long_as_the_longest_does_not_pass_without_an_attempt() {
        let first = Duration::from_millis(20);
        assert!(row(200).0 > CAP / 2);
        assert!(row(201).0 <= first);
    }

    #[test]
    fn a_replica_is_left_ever_later_until_it_was_not_met_for_two_seconds() {
        let first = Duration::from_millis(20);
        for after in [10, 700, 2_000] {
            assert!(row(after).1 > DEMOTED / 2, "{after}");
        }
        assert!(row(2_001).1 <= first);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        /// Connections that come up and break as soon as they may, or after any time.
        #[test]
        fn whatever_succeeds_attempts_are_bounded(seed: u64, lived in prop::collection::vec(0u64..400, 60)) {
            let mut pace = AttemptPace::new(Backoff::new().cap(CAP), seed);
            let (mut now, mut attempts) = (at(0), Vec::new());
            for ms in lived {
                now = now + pace.wait(now);
                let leave = pace.attempt(now);
                prop_assert!(leave > now && leave <= now + DEMOTED);
                attempts.push(now);
                now = now + Duration::from_millis(ms);
            }
            for ten in attempts.windows(11) {
                prop_assert!(ten[0].until(ten[10]) >= CAP * 2, "{:?}", ten);
            }
        }
    }
}
