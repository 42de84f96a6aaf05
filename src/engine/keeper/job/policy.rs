//! When the job of a name tries if it hears nothing. This is arithmetic, and takes time as a value.
//!
//! 1. A planned try is not put off, whatever happens meanwhile, until [`WaitPolicy::again`].
//! 2. It comes no later than the backoff's cap, but for (4), so that a missed wake-up costs a bounded delay.
//! 3. It comes no later than just after the holder's lease, because an expiry wakes nobody.
//! 4. With a subscription the poll is a safety net, and comes in the second half of the cap. Without one it is the only
//!    way, and begins with the backoff's first delay. It is put off to [`HARDLY`] where the heartbeats of many clients do
//!    the same for all of them.
//! 5. If the kind of the head has a backoff of its own, tries come at that pace, from its first delay on. If a waiter
//!    without one queues behind it, rule 2 (no later than the cap) holds, too.
//! 6. That pace does not slow down while the lock changes hands. A lease that ends later than Redis said before shows
//!    that: the lock was released and acquired again, or renewed. For [`RESTLESS`] from then on, tries come after a
//!    quarter of the first delay, or after all of it if the backoff has no jitter: timers count milliseconds, and with the
//!    time of an answer a try must not take two. A client that passes the lock on inside leaves it free for only a
//!    [moment](crate::engine::gate::succession), which a slow poll would meet by luck.

use std::time::Duration;

use crate::backoff::{Backoff, Delays, OUTAGE};
use crate::clock::Moment;
use crate::engine::gate::LastAnswer;
use crate::engine::gate::succession::PASS_ON_FOR;

/// For how long a lock that changed hands is expected to change hands again: the pass-on window of the other client,
/// doubled for a busy machine.
const RESTLESS: Duration = PASS_ON_FOR.saturating_mul(2);

/// Two answers about the end of the same lease differ by less: Redis counts in ms, and we add that to the time of the
/// answer.
const SAME_LEASE: Duration = Duration::from_millis(5);

/// How long after the holder's lease a try comes.
const AFTER_LEASE: Duration = Duration::from_millis(1);

/// The longest pause between polls where heartbeats wake the head of a free lock: longer than a heartbeat.
const HARDLY: Duration = Duration::from_secs(60);

/// When to try next if nothing is heard.
pub(super) struct WaitPolicy {
    cap: Duration,
    /// The longest pause between polls with a subscription (4).
    longest: Duration,
    delays: Delays,
    random: fastrand::Rng,
    planned: Option<Moment>,
    /// The pace of the head of the queue, if its kind has a backoff of its own.
    own: Option<OwnPace>,
}

/// The pace of a ticket whose kind has a backoff of its own.
struct OwnPace {
    /// The number of the ticket.
    of: u64,
    delays: Delays,
    /// When the holder's lease ends, by the last answer.
    lease_end: Option<Moment>,
    restless_until: Moment,
}

impl OwnPace {
    fn delay(&mut self, now: Moment, known: &LastAnswer) -> Duration {
        if let LastAnswer::Busy(Some(until)) = known {
            let before = self.lease_end.replace(*until);
            if before.is_some_and(|before| before + SAME_LEASE < *until) {
                self.restless_until = now + RESTLESS;
            }
        }
        if now < self.restless_until {
            self.delays.shortest()
        } else {
            self.delays.step()
        }
    }
}

impl WaitPolicy {
    pub(super) fn new(backoff: Backoff, seed: u64) -> Self {
        Self {
            cap: backoff.cap_delay(),
            longest: backoff.cap_delay(),
            delays: backoff.delays(seed),
            random: fastrand::Rng::with_seed(seed),
            planned: None,
            own: None,
        }
    }

    /// Plans for the head of the queue from now on: the ticket's number, and the backoff of its kind if it has one.
    pub(super) fn serve(&mut self, head: u64, backoff: Option<Backoff>) {
        if self.own.as_ref().map(|own| own.of) == backoff.map(|_| head) {
            return;
        }
        let seed = self.random.u64(..);
        self.own = backoff.map(|backoff| OwnPace {
            of: head,
            delays: backoff.delays(seed),
            lease_end: None,
            restless_until: Moment::default(),
        });
        self.planned = None;
    }

    /// Plans looks at this client's own hold from now on, by the client's backoff.
    pub(super) fn watch(&mut self) {
        let longest = std::mem::replace(&mut self.longest, self.cap);
        if self.own.take().is_some() || longest > self.cap {
            self.planned = None;
        }
    }

    /// Whether the heartbeats of others do what a poll is for (4). Once they do not, what was left to them comes at once.
    pub(super) fn leaves_polls(&mut self, to_others: bool, now: Moment) {
        let longest = if to_others {
            HARDLY.max(self.cap)
        } else {
            self.cap
        };
        let before = std::mem::replace(&mut self.longest, longest);
        if before > longest && self.planned.is_some_and(|at| at > now + longest) {
            self.planned = Some(now);
        }
    }

    /// Makes a new plan next time: a try was made, or something was heard.
    pub(super) fn again(&mut self) {
        self.planned = None;
    }

    /// Whether no try is planned.
    pub(super) fn is_open(&self) -> bool {
        self.planned.is_none()
    }

    /// When to try next. `listening`: the subscription is confirmed. `listeners`: a waiter has no backoff of its own.
    pub(super) fn next_try(
        &mut self,
        now: Moment,
        known: &LastAnswer,
        listening: bool,
        listeners: bool,
    ) -> Moment {
        let mut next = match self.planned {
            Some(planned) => planned,
            None => self.plan(now, known, listening),
        };
        if listeners {
            next = next.min(now + if listening { self.longest } else { self.cap });
        }
        self.planned = Some(next);
        next
    }

    fn plan(&mut self, now: Moment, known: &LastAnswer, listening: bool) -> Moment {
        let delay = if let Some(own) = &mut self.own {
            own.delay(now, known)
        } else if listening {
            self.delays.reset();
            self.longest.mul_f64(0.5 + self.random.f64() / 2.0)
        } else {
            self.delays.step()
        };
        match known {
            LastAnswer::Failed(_) => now + delay.min(OUTAGE),
            LastAnswer::Busy(Some(until)) => (now + delay).min(*until + AFTER_LEASE),
            LastAnswer::Busy(None) | LastAnswer::Nothing => now + delay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Failure;
    use proptest::prelude::*;

    #[test]
    fn a_head_with_a_backoff_of_its_own_is_tried_for_at_its_pace_from_the_first_delay_on() {
        let ms = Duration::from_millis;
        let own = Backoff::new().base(ms(1)).cap(ms(4_000)).jitter(false);
        let mut policy = WaitPolicy::new(Backoff::new(), 7);
        let now = Moment::default() + Duration::from_secs(10);
        let busy = LastAnswer::Busy(None);
        let next = |policy: &mut WaitPolicy, now, listeners| {
            policy.next_try(now, &busy, listeners, listeners)
        };
        let delay = |policy: &mut WaitPolicy, listeners| {
            let next = next(policy, now, listeners);
            policy.again();
            now.until(next)
        };
        for listeners in [false, true] {
            policy.serve(1 + u64::from(listeners), Some(own));
            for expected in [1, 2, 4, 8] {
                assert_eq!(delay(&mut policy, listeners), ms(expected));
            }
        }
        policy.serve(3, Some(own.base(ms(4_000))));
        assert_eq!(delay(&mut policy, false), ms(4_000));
        assert_eq!(delay(&mut policy, true), ms(1_000), "others wait");
        // A later call finds the try planned, and does not put it off.
        let planned = next(&mut policy, now, false);
        assert_eq!(now.until(planned), ms(4_000));
        for later in [500, 900] {
            let planned = next(&mut policy, now + ms(later), true);
            assert_eq!(now.until(planned), ms(1_500));
        }
        policy.again();
        // The next head's plan is its own.
        next(&mut policy, now, false);
        policy.serve(4, None);
        assert!(delay(&mut policy, false) <= ms(20));
    }

    #[test]
    fn while_the_lock_changes_hands_that_pace_does_not_slow_down() {
        let ms = Duration::from_millis;
        let start = Moment::default() + Duration::from_secs(10);
        for (jitter, shortest) in [(false, ms(2)), (true, ms(2) / 4)] {
            let own = Backoff::new().base(ms(2)).cap(ms(128)).jitter(jitter);
            let mut policy = WaitPolicy::new(Backoff::new(), 7);
            policy.serve(1, Some(own));
            // What is said at `now` of a lease that ends then.
            let mut delay = |now: Moment, until| {
                policy.again();
                now.until(policy.next_try(now, &LastAnswer::Busy(Some(until)), false, false))
            };
            let first = start + Duration::from_secs(30);
            let mut grown = Duration::ZERO;
            for said in [first, first + ms(5), first + ms(2), first] {
                let next = delay(start, said);
                assert!(next > grown, "it is the same lease");
                grown = next;
            }
            let later = first + ms(6);
            for now in [start, start + ms(10), start + ms(19)] {
                assert_eq!(delay(now, later), shortest);
            }
            assert!(
                delay(start + ms(20), later) <= ms(2),
                "from its first delay on"
            );
            assert!(
                delay(start + ms(21), later) > shortest,
                "nothing moved for long"
            );
            assert_eq!(delay(start + ms(22), later + ms(6)), shortest);
            // The next one in the queue knows nothing of that.
            policy.serve(2, Some(own.base(ms(50))));
            policy.again();
            let known = LastAnswer::Busy(Some(later + ms(30)));
            let next = policy.next_try(start + ms(23), &known, false, false);
            assert!((start + ms(23)).until(next) >= ms(25));
        }
    }

    #[test]
    fn with_a_subscription_the_poll_comes_in_the_second_half_of_the_cap() {
        let now = Moment::default() + Duration::from_secs(10);
        for seed in 0..100 {
            let backoff = Backoff::new();
            let next =
                WaitPolicy::new(backoff, seed).next_try(now, &LastAnswer::Nothing, true, true);
            let half = backoff.cap_delay() / 2;
            assert!((half..=half * 2).contains(&now.until(next)), "{seed}");
        }
    }

    #[test]
    fn heartbeats_of_many_take_the_place_of_polls_and_of_no_other_try() {
        let now = Moment::default() + Duration::from_secs(10);
        let mut policy = WaitPolicy::new(Backoff::new(), 7);
        let pause = |policy: &mut WaitPolicy, known: &LastAnswer, listening| {
            policy.again();
            now.until(policy.next_try(now, known, listening, true))
        };
        policy.leaves_polls(true, now);
        let busy = LastAnswer::Busy(None);
        assert!(pause(&mut policy, &busy, true) >= HARDLY / 2);
        let until = now + Duration::from_secs(3);
        let ends = pause(&mut policy, &LastAnswer::Busy(Some(until)), true);
        assert_eq!(ends, Duration::from_secs(3) + AFTER_LEASE);
        assert!(pause(&mut policy, &busy, false) <= Duration::from_secs(1));
        let failed = LastAnswer::Failed(Failure::no_reply());
        assert!(pause(&mut policy, &failed, true) <= OUTAGE);
        pause(&mut policy, &busy, true);
        policy.leaves_polls(false, now);
        assert_eq!(policy.next_try(now, &busy, true, true), now);
        assert!(pause(&mut policy, &busy, true) <= Duration::from_secs(1));
        policy.leaves_polls(true, now);
        pause(&mut policy, &busy, true);
        policy.watch();
        assert!(policy.next_try(now, &busy, true, true) <= now + Duration::from_secs(1));
        // The pace of a kind is not a poll's.
        let own = Backoff::new().base(Duration::from_secs(4)).jitter(false);
        policy.serve(1, Some(own.cap(Duration::from_secs(4))));
        let next = policy.next_try(now, &busy, false, false);
        policy.leaves_polls(false, now);
        assert_eq!(policy.next_try(now, &busy, false, false), next);
    }

    #[test]
    fn our_own_hold_is_not_watched_at_the_pace_of_a_kind() {
        let now = Moment::default() + Duration::from_secs(10);
        let own = Backoff::new()
            .base(Duration::from_secs(5))
            .cap(Duration::from_secs(5));
        let mut policy = WaitPolicy::new(Backoff::new(), 7);
        assert!(policy.is_open());
        policy.serve(1, Some(own.jitter(false)));
        let next =
            |policy: &mut WaitPolicy| policy.next_try(now, &LastAnswer::Nothing, true, false);
        assert_eq!(now.until(next(&mut policy)), Duration::from_secs(5));
        assert!(!policy.is_open());
        policy.watch();
        assert!(policy.is_open(), "that plan was for a try");
        assert!(now.until(next(&mut policy)) <= Backoff::new().cap_delay());
        policy.watch();
        assert!(!policy.is_open(), "and this one is for a look");
    }

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
                            LastAnswer::Failed(Failure::no_reply())
                        } else {
                            LastAnswer::Busy(until)
                        };
                        let next = policy.next_try(now, &known, listening, false);
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

    #[test]
    fn a_head_that_is_served_again_keeps_its_plan_and_its_pace() {
        let ms = Duration::from_millis;
        let own = Backoff::new().base(ms(1)).cap(ms(4_000)).jitter(false);
        let now = Moment::default() + Duration::from_secs(10);
        let busy = LastAnswer::Busy(None);
        for backoff in [None, Some(own)] {
            let mut policy = WaitPolicy::new(Backoff::new(), 7);
            policy.serve(1, backoff);
            let planned = policy.next_try(now, &busy, true, false);
            policy.serve(1, backoff);
            assert_eq!(
                policy.next_try(now + ms(1), &busy, true, false),
                planned,
                "a planned try is not put off"
            );
        }
        let mut policy = WaitPolicy::new(Backoff::new(), 7);
        for expected in [1, 2, 4, 8] {
            policy.serve(1, Some(own));
            assert_eq!(
                now.until(policy.next_try(now, &busy, false, false)),
                ms(expected)
            );
            policy.again();
        }
    }
}
