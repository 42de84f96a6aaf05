//! The rules of a hold of several locks: its state, on what its children report, and the counting of their answers to one
//! question.
//!
//! 1. While it is held, its validity is the `needed`-th largest of its children's.
//! 2. It is lost when fewer than `needed` children are valid and one of the others is lost. The reason is that of the
//!    first lost one, by place. It is over when the others were all given back.
//! 3. Lost, over and left to its lease are final, whatever a child reports later.

use std::time::Duration;

use smallvec::SmallVec;

use crate::error::{Error, LostReason};

/// What a child reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum ChildState {
    /// For this long, if nothing renews it.
    Valid(Duration),
    Lost(LostReason),
    /// It was given back.
    Over,
    /// There is no child in this place.
    Absent,
}

impl ChildState {
    /// The state of a child that has a hold with a fixed lease, and one under the watchdog: it is valid for as long as one
    /// of them is. That under the watchdog is never lost before the other one, so its reason counts.
    pub(super) fn or(self, watched: Self) -> Self {
        match (self, watched) {
            (Self::Valid(fixed), Self::Valid(watched)) => Self::Valid(fixed.max(watched)),
            (Self::Valid(_), _) | (Self::Lost(_), Self::Over | Self::Absent) => self,
            (_, Self::Valid(_) | Self::Lost(_)) => watched,
            (Self::Over, _) | (_, Self::Over) => Self::Over,
            (Self::Absent, Self::Absent) => Self::Absent,
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

/// The state machine.
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
                ChildState::Over | ChildState::Absent => {}
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

    /// The last level is given back, so the hold cannot be lost any more.
    pub(super) fn end(&mut self) {
        self.end.get_or_insert(CompositePhase::Over);
    }

    /// The children are left to their leases, so the hold cannot be lost any more.
    pub(super) fn leave_to_lease(&mut self) {
        self.end.get_or_insert(CompositePhase::LeftToLease);
    }

    /// Undoes [`leave_to_lease`](Self::leave_to_lease).
    pub(super) fn goes_on(&mut self) {
        self.end.take_if(|end| *end == CompositePhase::LeftToLease);
    }
}

/// The `n`-th largest, counted from 1. There are at least `n` values.
pub(super) fn nth_largest<T: Ord + Copy>(values: &mut [T], n: usize) -> T {
    let at = values.len() - n;
    *values.select_nth_unstable(at).1
}

/// The answers so far.
#[derive(Debug)]
pub(super) struct Tally {
    needed: usize,
    /// How many have not answered yet.
    open: usize,
    yes: usize,
    lost: usize,
    asked: usize,
    first_lost: Option<Error>,
    first_error: Option<Error>,
}

impl Tally {
    /// `asked` children are asked, and `needed` must say yes.
    pub(super) fn new(needed: usize, asked: usize) -> Self {
        Self {
            needed,
            open: asked,
            yes: 0,
            lost: 0,
            asked,
            first_lost: None,
            first_error: None,
        }
    }

    /// Counts one answer. Returns the result as soon as it is certain: yes when `needed` said yes; lost when so many are
    /// lost that the others are fewer than `needed`; else, after all answers, the first other error.
    pub(super) fn count(&mut self, answer: Result<(), Error>) -> Option<Result<(), Error>> {
        self.open -= 1;
        match answer {
            Ok(()) => self.yes += 1,
            Err(error) if error.is_lost() => {
                self.lost += 1;
                self.first_lost.get_or_insert(error);
            }
            Err(error) => {
                self.first_error.get_or_insert(error);
            }
        }
        if self.yes >= self.needed {
            return Some(Ok(()));
        }
        if self.lost + self.needed > self.asked {
            return self.first_lost.take().map(Err);
        }
        if self.open > 0 {
            return None;
        }
        let error = self.first_error.take().or_else(|| self.first_lost.take());
        Some(Err(error.unwrap_or_else(Error::not_owner)))
    }
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
                        state.end();
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

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum ChildSays {
        Yes,
        Lost,
        Denied,
    }

    impl ChildSays {
        fn answer(self) -> Result<(), Error> {
            match self {
                Self::Yes => Ok(()),
                Self::Lost => Err(Error::lost(LostReason::Missing)),
                Self::Denied => Err(Error::not_owner()),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn it_is_yes_exactly_when_enough_said_so_and_lost_when_too_many_are(
            needed in 1usize..=9,
            says in prop::collection::vec(prop_oneof![Just(ChildSays::Yes), Just(ChildSays::Lost), Just(ChildSays::Denied)], 9),
            more in 0usize..=8,
        ) {
            let says = &says[..(needed + more).min(9)];
            let mut tally = Tally::new(needed, says.len());
            let mut counted = says.iter().map(|said| tally.count(said.answer()));
            let result = counted.find_map(|answer| answer).expect("a result once all answers are counted");
            let number_of = |what| says.iter().filter(|said| **said == what).count();
            let too_many = says.len() - number_of(ChildSays::Lost) < needed;
            match result {
                Ok(()) => prop_assert!(number_of(ChildSays::Yes) >= needed),
                Err(error) if too_many => prop_assert!(error.is_lost()),
                Err(error) => prop_assert!(number_of(ChildSays::Yes) < needed && !error.is_lost()),
            }
        }
    }
}
