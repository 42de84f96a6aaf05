//! When a waiter tries next if nothing is heard: arithmetic over time as a value.
//!
//! 1. A planned try stays planned, whatever happens meanwhile, until [`WaitPolicy::again`].
//! 2. Never later than the backoff's cap, so that a missed wake-up costs a bounded delay.
//! 3. Not later than just after the holder's lease: an expiry wakes nobody.
//! 4. With a subscription the poll is a safety net and only comes at the cap; without one it is the only
//!    way, and begins with the backoff's first delay.

use std::time::Duration;

use crate::backoff::{Backoff, Delays};
use crate::clock::Moment;
use crate::engine::known::Known;

/// The longest pause between tries while the server does not answer.
const OUTAGE: Duration = Duration::from_millis(200);

/// How much later than the holder's lease a try is made.
const AFTER_LEASE: Duration = Duration::from_millis(1);

pub(crate) struct WaitPolicy {
    cap: Duration,
    delays: Delays,
    random: fastrand::Rng,
    planned: Option<Moment>,
}

impl WaitPolicy {
    pub(crate) fn new(backoff: Backoff, seed: u64) -> Self {
        Self {
            cap: backoff.cap_delay(),
            delays: backoff.delays(seed),
            random: fastrand::Rng::with_seed(seed),
            planned: None,
        }
    }

    /// A try was made, or there is news: what was planned is void.
    pub(crate) fn again(&mut self) {
        self.planned = None;
    }

    /// Whether a plan is still to be made.
    pub(crate) fn is_open(&self) -> bool {
        self.planned.is_none()
    }

    /// When to try next; `listening` with a subscription that is confirmed.
    pub(crate) fn next_try(&mut self, now: Moment, known: &Known, listening: bool) -> Moment {
        if let Some(planned) = self.planned {
            return planned;
        }
        let delay = if listening {
            self.delays.reset();
            self.cap.mul_f64(0.5 + self.random.f64() / 2.0)
        } else {
            self.delays.step()
        };
        let next = match known {
            Known::Failed(_) => now + delay.min(OUTAGE),
            Known::Busy(Some(until)) => (now + delay).min(*until + AFTER_LEASE),
            Known::Busy(None) | Known::Nothing => now + delay,
        };
        self.planned = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Failure;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Event {
        Pass(u64),
        Again,
        Ask {
            ttl_ms: Option<u64>,
            fails: bool,
            listening: bool,
        },
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let ask = (
            proptest::option::of(0u64..5_000),
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(ttl_ms, fails, listening)| Event::Ask {
                ttl_ms,
                fails,
                listening,
            });
        let event = prop_oneof![(0u64..500).prop_map(Event::Pass), Just(Event::Again), ask];
        proptest::collection::vec(event, 1..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn a_try_is_never_far_and_stays_planned(events in events(), seed: u64) {
            let mut policy = WaitPolicy::new(Backoff::new(), seed);
            let mut now = Moment::default() + Duration::from_secs(10);
            let mut planned = None;
            for event in events {
                match event {
                    Event::Pass(ms) => now = now + Duration::from_millis(ms),
                    Event::Again => {
                        policy.again();
                        planned = None;
                    }
                    Event::Ask { ttl_ms, fails, listening } => {
                        let until = ttl_ms.map(|ms| now + Duration::from_millis(ms));
                        let known = if fails {
                            Known::Failed(Failure::no_reply())
                        } else {
                            Known::Busy(until)
                        };
                        let next = policy.next_try(now, &known, listening);
                        if let Some(planned) = planned {
                            prop_assert_eq!(next, planned);
                        } else {
                            prop_assert!(next > now);
                            prop_assert!(next <= now + Duration::from_secs(1));
                            if fails {
                                prop_assert!(next <= now + OUTAGE);
                            } else if let Some(until) = until {
                                prop_assert!(next <= until + AFTER_LEASE);
                            }
                        }
                        planned = Some(next);
                    }
                }
            }
        }
    }
}
