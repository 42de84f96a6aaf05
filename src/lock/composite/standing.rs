//! How a composite stands: its rules, with what its children say as values.
//!
//! 1. While it is held, its validity is the `needed`-th largest of its children's.
//! 2. It is lost when fewer than `needed` are valid and one of the others is lost; the reason is that of the first that
//!    was lost, in their order. It is over when the others were all given back.
//! 3. Lost, over and left to its lease are final: what is said of a child later changes nothing.

use std::time::Duration;

use smallvec::SmallVec;

use crate::error::LostReason;

/// What a child says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Child {
    /// Its client vouches for it for so long, if nothing renews it.
    Valid(Duration),
    Lost(LostReason),
    /// It was given back.
    Over,
    /// There is none in this place, or not yet.
    Absent,
}

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Phase {
    /// Valid for so long.
    Held(Duration),
    /// By this child.
    Lost(usize, LostReason),
    /// Its last level was given back.
    Over,
    /// Its children were left to their leases.
    LeftToLease,
}

/// The state machine.
#[derive(Debug)]
pub(in crate::lock) struct Standing {
    needed: usize,
    end: Option<Phase>,
}

impl Standing {
    /// Of children of which `needed` must be valid.
    pub(in crate::lock) fn new(needed: usize) -> Self {
        Self { needed, end: None }
    }

    /// How it stands, by what its children say now.
    pub(in crate::lock) fn look(&mut self, children: impl IntoIterator<Item = Child>) -> Phase {
        if let Some(end) = self.end {
            return end;
        }
        let seen = self.see(children);
        if !matches!(seen, Phase::Held(_)) {
            self.end = Some(seen);
        }
        seen
    }

    fn see(&self, children: impl IntoIterator<Item = Child>) -> Phase {
        let mut valid: SmallVec<[Duration; 16]> = SmallVec::new();
        let mut first_lost = None;
        for (place, child) in children.into_iter().enumerate() {
            match child {
                Child::Valid(left) => valid.push(left),
                Child::Lost(reason) => {
                    first_lost.get_or_insert(Phase::Lost(place, reason));
                }
                Child::Over | Child::Absent => {}
            }
        }
        if valid.len() < self.needed {
            return first_lost.unwrap_or(Phase::Over);
        }
        Phase::Held(nth_largest(&mut valid, self.needed))
    }

    /// Whether it is lost or over.
    pub(super) fn is_final(&self) -> bool {
        self.end.is_some()
    }

    /// Its last level is given back: it cannot be lost any more.
    pub(super) fn end(&mut self) {
        self.end.get_or_insert(Phase::Over);
    }

    /// Its children are left to their leases: it cannot be lost any more.
    pub(super) fn leave_to_lease(&mut self) {
        self.end.get_or_insert(Phase::LeftToLease);
    }

    /// They were not left after all.
    pub(super) fn goes_on(&mut self) {
        self.end.take_if(|end| *end == Phase::LeftToLease);
    }
}

/// The `n`-th largest, counted from 1; there are as many.
pub(super) fn nth_largest<T: Ord + Copy>(values: &mut [T], n: usize) -> T {
    let at = values.len() - n;
    *values.select_nth_unstable(at).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REASON: LostReason = LostReason::Missing;

    /// What a sequence does to one of the children.
    #[derive(Debug, Clone)]
    enum Step {
        /// It is renewed: valid until so many ms after now.
        Renew(usize, u64),
        Lose(usize),
        GiveBack(usize),
        /// So many ms pass.
        Wait(u64),
        End,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0usize..9, 1u64..50).prop_map(|(child, ms)| Step::Renew(child, ms)),
            1 => (0usize..9).prop_map(Step::Lose),
            1 => (0usize..9).prop_map(Step::GiveBack),
            4 => (1u64..20).prop_map(Step::Wait),
            1 => Just(Step::End),
        ]
    }

    /// A child as its own hold sees it: its end, unless it is lost or given back. Past its end it is lost, for good.
    #[derive(Debug, Clone, Copy)]
    enum Hold {
        Until(u64),
        Gone(Child),
    }

    impl Hold {
        fn say(&mut self, now: u64) -> Child {
            match *self {
                Self::Until(end) if end > now => Child::Valid(Duration::from_millis(end - now)),
                Self::Until(_) => {
                    *self = Self::Gone(Child::Lost(LostReason::Expired));
                    Child::Lost(LostReason::Expired)
                }
                Self::Gone(said) => said,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn it_is_valid_exactly_while_enough_children_are_and_its_end_is_final(
            needed in 1usize..=9, more in 0usize..=8, steps in prop::collection::vec(step(), 0..40),
        ) {
            let n = (needed + more).min(9);
            let mut holds = vec![Hold::Until(30); n];
            let mut standing = Standing::new(needed);
            let (mut now, mut end) = (0, None);
            for step in steps {
                match step {
                    Step::Renew(child, ms) => if let Some(Hold::Until(end)) = holds.get_mut(child) && *end > now {
                        *end = (*end).max(now + ms);
                    },
                    Step::Lose(child) => if let Some(hold @ Hold::Until(_)) = holds.get_mut(child) {
                        *hold = Hold::Gone(Child::Lost(REASON));
                    },
                    Step::GiveBack(child) => if let Some(hold @ Hold::Until(_)) = holds.get_mut(child) {
                        *hold = Hold::Gone(Child::Over);
                    },
                    Step::Wait(ms) => now += ms,
                    Step::End => {
                        standing.end();
                        end.get_or_insert(Phase::Over);
                    }
                }
                let said: Vec<_> = holds.iter_mut().map(|hold| hold.say(now)).collect();
                let phase = standing.look(said.iter().copied());
                // By 3.
                if let Some(end) = end {
                    prop_assert_eq!(phase, end);
                    continue;
                }
                let mut left: Vec<_> = said.iter().filter_map(|child| match child {
                    Child::Valid(left) => Some(*left),
                    _ => None,
                }).collect();
                left.sort_unstable_by(|one, other| other.cmp(one));
                let lost = said.iter().filter(|child| matches!(child, Child::Lost(_))).count();
                match phase {
                    Phase::Held(valid_for) => prop_assert_eq!(valid_for, left[needed - 1]),
                    Phase::Lost(child, reason) => {
                        prop_assert!(left.len() < needed);
                        prop_assert_eq!(said[child], Child::Lost(reason));
                    }
                    Phase::Over => prop_assert!(lost == 0 && left.len() < needed),
                    Phase::LeftToLease => prop_assert!(false, "nobody left it"),
                }
                if !matches!(phase, Phase::Held(_)) {
                    end = Some(phase);
                }
            }
        }
    }
}
