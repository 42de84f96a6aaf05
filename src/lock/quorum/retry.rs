//! When a waiter tries again: after wake-ups of the nodes, when leases end, after a pause, or at the next poll.
//!
//! 1. A holder gives its lock back on all nodes at about the same time. The next try is due when `needed` nodes published
//!    a wake-up. When only one did, it is due a little later: the others may be down, or their messages lost.
//! 2. A waiter that got some nodes and not enough competes with others. The nodes that it gives back publish wake-ups,
//!    too, so wake-ups do not shorten the pause after such a try.
//!    If the pauses do not help, the other is a holder that lacks these nodes, and the try counts as refused.
//! 3. Waiters must not wake each other for as long as a hold lasts that lacks nodes: each that gets such a node gives it
//!    back, which publishes a wake-up. So only nodes that were busy in the last try wake a waiter, and when fewer than
//!    `needed` did and the try is refused, the wait for more grows, until `needed` do.
//! 4. A random delay spreads the tries of waiters that are woken at the same time.
//! 5. A try covers all wake-ups that came before it.
//! 6. A round without a quorum ended because too few nodes answered or may vote. No release changes that, so wake-ups do
//!    not lead to a try, until a node is back. Otherwise waiters that have some nodes would wake each other without end.
//! 7. The end of a lease publishes nothing. A refused try returns when the leases of the other holders end, so the next
//!    try is due then.

use std::time::Duration;

use crate::clock::Moment;

/// How long to wait for the wake-ups of more nodes, at first.
const OTHERS: Duration = Duration::from_millis(5);
/// How often that time quadruples: to 1.3 s, beyond most polls.
const GROWTHS: u32 = 4;
/// How long after the end of a lease the try is due: servers count in whole ms.
const AFTER_LEASE: Duration = Duration::from_millis(1);
/// Over how long the tries of waiters that are woken together spread.
const SPREAD: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(super) struct Retry {
    needed: usize,
    /// The places of the nodes that published a wake-up since the last try, as bits.
    woken_by: u16,
    /// The places of the nodes that granted in the last try, as bits.
    granted: u16,
    /// How many nodes woke the waiter for the present try.
    tried_after: usize,
    /// How many tries were refused to which fewer nodes than needed had led.
    false_alarms: u32,
    not_before: Moment,
    no_quorum: bool,
    next: Moment,
}

impl Retry {
    /// Without a planned try.
    pub(super) fn new(needed: usize) -> Self {
        Self {
            needed,
            next: Moment::NEVER,
            ..Self::default()
        }
    }

    /// When the next try is due; `NEVER` when none is planned.
    pub(super) fn next(&self) -> Moment {
        self.next
    }

    pub(super) fn begins(&mut self) {
        self.tried_after = self.woken_by.count_ones() as usize;
        if self.follows_a_release() {
            self.false_alarms = 0;
        }
        (self.woken_by, self.granted) = (0, 0);
        self.no_quorum = false;
        self.next = Moment::NEVER;
    }

    /// Whether as many nodes led to the present try as one that gives the lock back frees.
    pub(super) fn follows_a_release(&self) -> bool {
        self.tried_after >= self.needed
    }

    /// The try got the lock. Others try again after `poll`, or after wake-ups.
    pub(super) fn got(&mut self, now: Moment, poll: Duration) {
        self.false_alarms = 0;
        self.plan_from(now, poll, 0);
    }

    /// The try was refused, though the nodes at the places `granted` did grant. The next one is due after `poll`, just
    /// after `free_at`, when enough leases end, or after wake-ups of other nodes, whichever is first; `random` is from 0
    /// to 1.
    pub(super) fn refused(
        &mut self,
        now: Moment,
        poll: Duration,
        free_at: Moment,
        granted: u16,
        random: f64,
    ) {
        if self.tried_after > 0 && !self.follows_a_release() {
            self.false_alarms = (self.false_alarms + 1).min(GROWTHS);
        }
        self.plan_from(now, poll, granted);
        self.plan(free_at + AFTER_LEASE + SPREAD.mul_f64(random));
    }

    fn plan_from(&mut self, now: Moment, poll: Duration, granted: u16) {
        self.granted = granted;
        self.not_before = now;
        self.plan(now + poll);
    }

    /// The try got some nodes and not enough: wake-ups do not shorten the pause.
    pub(super) fn met_others(&mut self, now: Moment, pause: Duration) {
        self.not_before = now + pause;
        self.plan(self.not_before);
    }

    /// The try had no quorum. The next one is due after `poll`.
    pub(super) fn no_quorum(&mut self, now: Moment, poll: Duration) {
        self.no_quorum = true;
        self.not_before = now + poll;
        self.plan(self.not_before);
    }

    /// The node at `place` published a wake-up; `random` is from 0 to 1.
    pub(super) fn woken_by(&mut self, place: usize, now: Moment, random: f64) {
        if self.granted & 1 << place != 0 {
            return;
        }
        self.woken_by |= 1 << place;
        let wait = if self.woken_by.count_ones() as usize >= self.needed {
            Duration::ZERO
        } else {
            OTHERS * 4_u32.pow(self.false_alarms)
        };
        self.plan(now + wait + SPREAD.mul_f64(random));
    }

    /// A node is back. A round without a quorum is tried again now; a pause after meeting others lasts to its end.
    pub(super) fn soon(&mut self, now: Moment) {
        if self.no_quorum {
            self.not_before = self.not_before.min(now);
        }
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
    enum PlanStep {
        Wait(u64),
        Woken(usize, f64),
        Soon,
    }

    fn step() -> impl Strategy<Value = PlanStep> {
        prop_oneof![
            3 => (0u64..20).prop_map(PlanStep::Wait),
            4 => (0usize..5, 0f64..1.0).prop_map(|(place, random)| PlanStep::Woken(place, random)),
            1 => Just(PlanStep::Soon),
        ]
    }

    const NOW: Moment = Moment::from_nanos(1);
    const POLL: Duration = Duration::from_secs(60);

    /// One node wakes the waiter. Returns after how many ms it tries, if no other does.
    fn wait_for_others(retry: &mut Retry) -> u128 {
        retry.woken_by(0, NOW, 0.0);
        NOW.until(retry.next()).as_millis()
    }

    /// The try that is due begins, and is refused.
    fn refused(retry: &mut Retry) {
        retry.begins();
        retry.refused(NOW, POLL, Moment::NEVER, 0, 0.0);
    }

    /// Three of five nodes are needed, and the first alone led to two tries that were refused.
    fn behind_two_false_alarms() -> Retry {
        let mut retry = Retry::new(3);
        for _ in 0..2 {
            wait_for_others(&mut retry);
            refused(&mut retry);
        }
        retry
    }

    #[test]
    fn the_wait_for_others_grows_with_each_false_alarm() {
        let mut retry = Retry::new(3);
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(wait_for_others(&mut retry));
            refused(&mut retry);
        }
        assert_eq!(waits, [5, 20, 80, 320, 1280, 1280]);
    }

    #[test]
    fn a_poll_that_is_refused_is_no_false_alarm() {
        let mut retry = behind_two_false_alarms();
        refused(&mut retry);
        assert_eq!(wait_for_others(&mut retry), 80);
    }

    #[test]
    fn behind_a_release_the_wait_for_others_is_short_again() {
        let mut retry = behind_two_false_alarms();
        for place in 1..4 {
            retry.woken_by(place, NOW, 0.0);
        }
        assert_eq!(retry.next(), NOW);
        refused(&mut retry);
        assert_eq!(wait_for_others(&mut retry), 5);
    }

    #[test]
    fn behind_a_grant_the_wait_for_others_is_short_again() {
        let mut retry = behind_two_false_alarms();
        retry.begins();
        retry.got(NOW, POLL);
        assert_eq!(wait_for_others(&mut retry), 5);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn a_try_is_planned_no_later_than_the_poll_and_never_in_a_pause(
            ended in 0..3, span in 1u64..300, lease in 0u64..400,
            granted in 0u16..4, steps in prop::collection::vec(step(), 0..40),
        ) {
            let ms = Duration::from_millis;
            let start = Moment::default() + ms(1);
            let mut retry = Retry::new(3);
            let poll = start + ms(span);
            let free = start + ms(lease);
            let (met, mut no_quorum) = (ended == 1, ended == 2);
            if met {
                retry.met_others(start, ms(span));
            } else if no_quorum {
                retry.no_quorum(start, ms(span));
            } else {
                retry.refused(start, ms(span), free, granted, 0.5);
                prop_assert!(retry.next() == poll || retry.next() > free);
                prop_assert!(retry.next() <= free + AFTER_LEASE + SPREAD);
            }
            let (mut now, mut who) = (start, 0u16);
            for step in steps {
                match step {
                    PlanStep::Wait(span) => now = now + ms(span),
                    PlanStep::Soon => {
                        retry.soon(now);
                        no_quorum = false;
                    }
                    PlanStep::Woken(place, random) => {
                        let before = retry.next();
                        retry.woken_by(place, now, random);
                        if ended == 0 && granted & 1 << place != 0 {
                            prop_assert_eq!(retry.next(), before);
                            continue;
                        }
                        who |= 1 << place;
                        let by = if who.count_ones() >= 3 { SPREAD } else { OTHERS + SPREAD };
                        let earliest = if met || no_quorum { poll } else { start };
                        prop_assert!(retry.next() <= (now + by).max(earliest));
                    }
                }
                prop_assert!(retry.next() <= poll);
                prop_assert!(!(met || no_quorum) || retry.next() == poll);
            }
        }
    }
}
