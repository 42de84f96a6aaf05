//! What a round at the nodes comes to, and which nodes may vote: arithmetic over what they said.
//!
//! 1. An acquire is granted by `needed` nodes that may vote, and by nothing else.
//! 2. It is busy when `needed` nodes answered and one of them said that somebody else has it. What a node says that may
//!    not vote counts if it is busy: somebody has it there.
//! 3. It has no quorum when fewer answered: nobody knows whether it is free.
//! 4. A node may vote once it has been up for the restart delay when it is asked: whatever it granted before it was
//!    started, and may have forgotten, is over by then. The delay is a whole lease, the drift between two clocks, and
//!    what a server's word on its age may be wrong by.

use std::time::Duration;

/// What a node said to an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// It granted, and may vote.
    Yes,
    /// It granted, and may not vote yet.
    Young,
    /// Somebody else has it there.
    Busy,
    /// Nothing that could be used; a later answer may do.
    Failed,
    /// It refused, and will again.
    Refused,
}

/// What a round came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Got,
    Busy,
    /// So many said yes or busy.
    NoQuorum {
        reached: usize,
    },
    /// So many refuse for good that the rest is no quorum.
    Refused,
}

/// The votes of one round.
#[derive(Debug, Clone)]
pub(super) struct Votes {
    nodes: usize,
    needed: usize,
    /// How many are still to be heard.
    open: usize,
    yes: usize,
    busy: usize,
    refused: usize,
}

impl Votes {
    /// Of `asked` out of `nodes`; `needed` of them must say yes.
    pub(super) fn new(nodes: usize, needed: usize, asked: usize) -> Self {
        Self {
            nodes,
            needed,
            open: asked,
            yes: 0,
            busy: 0,
            refused: 0,
        }
    }

    /// Hears one node. What the round comes to, as soon as that is certain.
    pub(super) fn hear(&mut self, said: Said) -> Option<Outcome> {
        self.open -= 1;
        match said {
            Said::Yes => self.yes += 1,
            Said::Busy => self.busy += 1,
            Said::Refused => self.refused += 1,
            Said::Young | Said::Failed => {}
        }
        let outcome = self.close();
        let may_be_got = self.yes + self.open >= self.needed;
        let certain = match outcome {
            Outcome::Got => true,
            Outcome::Busy | Outcome::Refused => !may_be_got,
            Outcome::NoQuorum { reached } => reached + self.open < self.needed,
        };
        (certain || self.open == 0).then_some(outcome)
    }

    /// What the round comes to with what was heard so far.
    pub(super) fn close(&self) -> Outcome {
        let reached = self.yes + self.busy;
        if self.yes >= self.needed {
            Outcome::Got
        } else if self.busy > 0 && reached >= self.needed {
            Outcome::Busy
        } else if self.nodes - self.refused < self.needed {
            Outcome::Refused
        } else {
            Outcome::NoQuorum { reached }
        }
    }
}

/// By 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RestartDelay(Duration);

/// By how much a server's word on its age may be wrong, twice: it counts in whole seconds.
const WORD: Duration = Duration::from_secs(2);

impl RestartDelay {
    pub(super) fn new(delay: Duration) -> Self {
        Self(delay)
    }

    /// For leases of up to `longest`.
    pub(super) fn for_leases(longest: Duration) -> Self {
        let with_drift = longest.as_millis().saturating_mul(101).div_ceil(100);
        let seconds = u64::try_from(with_drift.div_ceil(1000)).unwrap_or(u64::MAX);
        Self(Duration::from_secs(seconds).saturating_add(WORD))
    }

    /// Whether a node may vote that had been up for `age` when it was asked.
    pub(super) fn may_vote(self, age: Option<Duration>) -> bool {
        self.0.is_zero() || age.is_some_and(|age| age >= self.0)
    }

    /// How much longer a node of that age may not vote.
    pub(super) fn left(self, age: Option<Duration>) -> Duration {
        self.0.saturating_sub(age.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said() -> impl Strategy<Value = Said> {
        prop_oneof![
            4 => Just(Said::Yes),
            1 => Just(Said::Young),
            3 => Just(Said::Busy),
            2 => Just(Said::Failed),
            1 => Just(Said::Refused),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn a_round_is_decided_once_no_answer_can_change_it(
            half in 0usize..=4, all in prop::collection::vec(said(), 9), asked in 1usize..=9,
        ) {
            let (nodes, needed) = (2 * half + 1, half + 1);
            let all = &all[..asked.min(nodes)];
            let mut votes = Votes::new(nodes, needed, all.len());
            let told = all.iter().position(|said| votes.hear(*said).is_some());
            let told = told.expect("a round is decided when all were heard");
            let outcome = votes.close();
            let count = |what| all.iter().filter(|said| **said == what).count();
            let (yes, busy) = (count(Said::Yes), count(Said::Busy));
            // By 1 to 3, of all answers: what came later changed neither that it was got nor that it was not.
            prop_assert_eq!(outcome == Outcome::Got, yes >= needed);
            if let Outcome::Busy = outcome {
                prop_assert!(yes < needed && busy > 0);
            }
            if let Outcome::NoQuorum { reached } = outcome {
                let heard = &all[..=told];
                let usable = heard.iter().filter(|said| matches!(said, Said::Yes | Said::Busy));
                prop_assert_eq!(reached, usable.count());
                prop_assert!(reached < needed && yes + busy < needed);
            }
            if let Outcome::Refused = outcome {
                prop_assert!(nodes - count(Said::Refused) < needed);
            }
        }

        #[test]
        fn a_node_votes_when_all_it_may_have_forgotten_is_over(lease_ms in 10u64..86_400_000, age_ms in 0u64..90_000_000) {
            let lease = Duration::from_millis(lease_ms);
            let delay = RestartDelay::for_leases(lease);
            let age = Duration::from_millis(age_ms);
            if delay.may_vote(Some(age)) {
                prop_assert!(age >= lease + lease / 100 + Duration::from_secs(1));
                prop_assert_eq!(delay.left(Some(age)), Duration::ZERO);
            } else {
                prop_assert!(age < lease + lease / 100 + Duration::from_secs(3));
                prop_assert!(delay.may_vote(Some(age + delay.left(Some(age)))));
            }
            prop_assert!(!delay.may_vote(None));
            prop_assert!(RestartDelay::new(Duration::ZERO).may_vote(None));
        }
    }
}
