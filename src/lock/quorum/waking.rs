//! When a waiter tries again: by what the nodes tell, at the end of a lease, after a pause, or by a poll.
//!
//! 1. A lock is given back on all nodes at about the same time: it is tried for when `needed` of them told so. When one
//!    did and the others are silent, a while later: it may be down, or its message lost.
//! 2. Who got some nodes and not enough met others who want it. What was given back then is told, too, so messages are
//!    no reason to come back before the pause is over.
//! 3. Whoever is told moves by a random span, so that not all come at once.
//! 4. A try takes with it all that was told before it.
//! 5. A lease that ends tells nobody. Who was refused heard when the leases end that stand in the way, and comes then.

use std::time::Duration;

use crate::clock::Moment;

/// How long the messages of other nodes are waited for.
const OTHERS: Duration = Duration::from_millis(5);
/// How much later than a lease its end is tried for: servers count in ms.
const AFTER_LEASE: Duration = Duration::from_millis(1);
/// Over how long those who are told of a lock spread.
const SPREAD: Duration = Duration::from_millis(2);

/// The plan of one waiter.
#[derive(Debug)]
pub(super) struct Waking {
    needed: usize,
    /// Which nodes told something since the last try, by their place.
    told: u16,
    not_before: Moment,
    next: Moment,
}

impl Waking {
    /// Nothing is planned.
    pub(super) fn new(needed: usize) -> Self {
        Self {
            needed,
            told: 0,
            not_before: Moment::default(),
            next: Moment::NEVER,
        }
    }

    /// When to try, if that is planned.
    pub(super) fn next(&self) -> Moment {
        self.next
    }

    /// A try begins.
    pub(super) fn tries(&mut self) {
        self.told = 0;
        self.next = Moment::NEVER;
    }

    /// It was refused, and got nothing: the next one is `poll` away, at the end of the leases that are in the way, or
    /// when something is told; `random` is from 0 to 1.
    pub(super) fn refused(&mut self, now: Moment, poll: Duration, free_at: Moment, random: f64) {
        self.not_before = now;
        self.plan(now + poll);
        self.plan(free_at + AFTER_LEASE + SPREAD.mul_f64(random));
    }

    /// It was refused, and got some: by 2.
    pub(super) fn met_others(&mut self, now: Moment, pause: Duration) {
        self.not_before = now + pause;
        self.plan(self.not_before);
    }

    /// The node at `place` told something; `random` is from 0 to 1.
    pub(super) fn told(&mut self, place: usize, now: Moment, random: f64) {
        self.told |= 1 << place;
        let wait = if self.told.count_ones() as usize >= self.needed {
            Duration::ZERO
        } else {
            OTHERS
        };
        self.plan(now + wait + SPREAD.mul_f64(random));
    }

    /// Something changed: a node is back, or somebody else is first now.
    pub(super) fn soon(&mut self, now: Moment) {
        self.plan(now);
    }

    fn plan(&mut self, at: Moment) {
        self.next = self.next.min(at).max(self.not_before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Wait(u64),
        Told(usize, f64),
        Soon,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u64..20).prop_map(Step::Wait),
            4 => (0usize..5, 0f64..1.0).prop_map(|(place, random)| Step::Told(place, random)),
            1 => Just(Step::Soon),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn a_try_is_planned_no_later_than_the_poll_and_never_in_the_pause(
            met in any::<bool>(), span in 1u64..300, lease in 0u64..400,
            steps in prop::collection::vec(step(), 0..40),
        ) {
            let ms = Duration::from_millis;
            let start = Moment::default() + ms(1);
            let mut waking = Waking::new(3);
            let poll = start + ms(span);
            let free = start + ms(lease);
            if met {
                waking.met_others(start, ms(span));
            } else {
                waking.refused(start, ms(span), free, 0.5);
                prop_assert!(waking.next() == poll || waking.next() > free);
                prop_assert!(waking.next() <= free + AFTER_LEASE + SPREAD);
            }
            let (mut now, mut who) = (start, 0u16);
            for step in steps {
                match step {
                    Step::Wait(span) => now = now + ms(span),
                    Step::Soon => waking.soon(now),
                    Step::Told(place, random) => {
                        waking.told(place, now, random);
                        who |= 1 << place;
                        let by = if who.count_ones() >= 3 { SPREAD } else { OTHERS + SPREAD };
                        let earliest = if met { poll } else { start };
                        prop_assert!(waking.next() <= (now + by).max(earliest));
                    }
                }
                prop_assert!(waking.next() <= poll);
                prop_assert!(!met || waking.next() == poll);
            }
        }
    }
}
