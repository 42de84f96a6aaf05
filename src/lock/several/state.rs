//! The rules of a hold of several locks: its state, on what its children report.
//!
//! 1. While it is held, its validity is the `needed`-th largest of its children's.
//! 2. It is lost when fewer than `needed` children are valid and one of the others is lost. The reason is that of the
//!    first lost one, by place. It is over when the others were all given back.
//! 3. Lost, over and left to its lease are final, whatever a child reports later.

use std::time::Duration;

use smallvec::SmallVec;

use crate::error::LostReason;

/// What a child reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum ChildState {
    /// For this long, if nothing renews it.
    Valid(Duration),
    Lost(LostReason),
    /// It was given back, or there is none in this place.
    Over,
}

impl ChildState {
    /// The state of a child that has a hold with a fixed lease, and one under the watchdog: it is valid for as long as one
    /// of them is. That under the watchdog is never lost before the other one, so its reason counts.
    pub(super) fn or(self, watched: Self) -> Self {
        match (self, watched) {
            (Self::Valid(fixed), Self::Valid(watched)) => Self::Valid(fixed.max(watched)),
            (Self::Valid(_), _) | (_, Self::Over) => self,
            (_, Self::Valid(_) | Self::Lost(_)) => watched,
        }
    }
}

/// The phase of a hold of several locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum CompositePhase {
    /// Valid for this long.
    Held(Duration),
    /// The child in this place is lost.
    Lost(usize, LostReason),
    /// Its last level was given back.
    Over,
    /// Its children were left to their leases.
    LeftToLease,
}

#[derive(Debug)]
pub(in crate::lock) struct CompositeState {
    needed: usize,
    end: Option<CompositePhase>,
}

impl CompositeState {
    /// At least `needed` children must be valid.
    pub(in crate::lock) fn new(needed: usize) -> Self {
        Self { needed, end: None }
    }

    /// The phase by what the children report now.
    pub(in crate::lock) fn look(
        &mut self,
        children: impl IntoIterator<Item = ChildState>,
    ) -> CompositePhase {
        if let Some(end) = self.end {
            return end;
        }
        let seen = self.see(children);
        if !matches!(seen, CompositePhase::Held(_)) {
            self.end = Some(seen);
        }
        seen
    }

    fn see(&self, children: impl IntoIterator<Item = ChildState>) -> CompositePhase {
        let mut valid: SmallVec<[Duration; 16]> = SmallVec::new();
        let mut first_lost = None;
        for (place, child) in children.into_iter().enumerate() {
            match child {
                ChildState::Valid(left) => valid.push(left),
                ChildState::Lost(reason) => {
                    first_lost.get_or_insert(CompositePhase::Lost(place, reason));
                }
                ChildState::Over => {}
            }
        }
        if valid.len() < self.needed {
            return first_lost.unwrap_or(CompositePhase::Over);
        }
        CompositePhase::Held(nth_largest(&mut valid, self.needed))
    }

    pub(super) fn is_final(&self) -> bool {
        self.end.is_some()
    }

    /// The last level is given back, or the children are left to their leases, so the hold cannot be lost any more.
    pub(super) fn end(&mut self, end: CompositePhase) {
        self.end.get_or_insert(end);
    }

    /// Undoes that the children were left to their leases.
    pub(super) fn goes_on(&mut self) {
        self.end.take_if(|end| *end == CompositePhase::LeftToLease);
    }
}

/// The `n`-th largest, counted from 1. There are at least `n` values.
pub(super) fn nth_largest<T: Ord + Copy>(values: &mut [T], n: usize) -> T {
    let at = values.len() - n;
    *values.select_nth_unstable(at).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REASON: LostReason = LostReason::Missing;

    /// A step of a random sequence.
    #[derive(Debug, Clone)]
    enum StateStep {
        /// It is renewed: valid until so many ms after now.
        Renew(usize, u64),
        Lose(usize),
        GiveBack(usize),
        /// So many ms pass.
        Wait(u64),
        End,
    }

    fn step() -> impl Strategy<Value = StateStep> {
        prop_oneof![
            4 => (0usize..9, 1u64..50).prop_map(|(child, ms)| StateStep::Renew(child, ms)),
            1 => (0usize..9).prop_map(StateStep::Lose),
            1 => (0usize..9).prop_map(StateStep::GiveBack),
            4 => (1u64..20).prop_map(StateStep::Wait),
            1 => Just(StateStep::End),
        ]
    }

    /// A simulated child: valid until its end, then lost for good.
    #[derive(Debug, Clone, Copy)]
    enum ChildHold {
        Until(u64),
        Gone(ChildState),
    }

    impl ChildHold {
        fn say(&mut self, now: u64) -> ChildState {
            match *self {
                Self::Until(end) if end > now => {
                    ChildState::Valid(Duration::from_millis(end - now))
                }
                Self::Until(_) => {
                    *self = Self::Gone(ChildState::Lost(LostReason::Expired));
                    ChildState::Lost(LostReason::Expired)
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
            let mut holds = vec![ChildHold::Until(30); n];
            let mut state = CompositeState::new(needed);
            let (mut now, mut end) = (0, None);
            for step in steps {
                match step {
                    StateStep::Renew(child, ms) => if let Some(ChildHold::Until(end)) = holds.get_mut(child) && *end > now {
                        *end = (*end).max(now + ms);
                    },
                    StateStep::Lose(child) => if let Some(hold @ ChildHold::Until(_)) = holds.get_mut(child) {
                        *hold = ChildHold::Gone(ChildState::Lost(REASON));
                    },
                    StateStep::GiveBack(child) => if let Some(hold @ ChildHold::Until(_)) = holds.get_mut(child) {
                        *hold = ChildHold::Gone(ChildState::Over);
                    },
                    StateStep::Wait(ms) => now += ms,
                    StateStep::End => {
                        state.end(CompositePhase::Over);
                        end.get_or_insert(CompositePhase::Over);
                    }
                }
                let said: Vec<_> = holds.iter_mut().map(|hold| hold.say(now)).collect();
                let phase = state.look(said.iter().copied());
                // A final phase stays.
                if let Some(end) = end {
                    prop_assert_eq!(phase, end);
                    continue;
                }
                let mut left: Vec<_> = said.iter().filter_map(|child| match child {
                    ChildState::Valid(left) => Some(*left),
                    _ => None,
                }).collect();
                left.sort_unstable_by(|one, other| other.cmp(one));
                let lost = said.iter().filter(|child| matches!(child, ChildState::Lost(_))).count();
                match phase {
                    CompositePhase::Held(valid_for) => prop_assert_eq!(valid_for, left[needed - 1]),
                    CompositePhase::Lost(child, reason) => {
                        prop_assert!(left.len() < needed);
                        prop_assert_eq!(said[child], ChildState::Lost(reason));
                    }
                    CompositePhase::Over => prop_assert!(lost == 0 && left.len() < needed),
                    CompositePhase::LeftToLease => prop_assert!(false, "nobody left it"),
                }
                if !matches!(phase, CompositePhase::Held(_)) {
                    end = Some(phase);
                }
            }
        }
    }
}
