//! What a round at the nodes comes to, and which nodes may vote: arithmetic on their answers.
//!
//! 1. An acquire is granted by `needed` nodes that may vote, and by nothing else.
//! 2. It is busy when `needed` nodes answered and somebody else has the lock on one of them. A busy answer also counts
//!    when the node may not vote: the lock is taken there.
//! 3. It has no quorum when fewer answered, as nobody knows whether the lock is free.
//! 4. A node may vote if it had been up for the restart delay when it was asked: then everything that it granted before
//!    its start, and may have forgotten, is over. The delay is one lease, the drift between two clocks, and the
//!    inaccuracy of the age that a server reports.
//! 5. A node has four round trips to answer, so that an answer that is late by some is not lost. A round must leave most
//!    of the lease to its holder, so it waits for a quarter of the lease at most.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::Error;

/// How a node answered an acquire, for the round and for the text of an error.
#[derive(Debug, Clone)]
pub(super) enum NodeReport {
    NotAsked,
    /// It cannot be part of the quorum.
    Unfit(&'static str),
    NoAnswer,
    /// It may vote.
    Granted,
    /// It granted, and may not vote yet.
    Young,
    /// Somebody else has it there: until then, if known.
    Busy(Option<Moment>),
    Failed(Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundOutcome {
    Got,
    Busy,
    /// `reached` nodes answered yes or busy.
    NoQuorum {
        reached: usize,
    },
    /// So many nodes refuse for good that the others are no majority.
    Refused,
}

/// What a round found when too many nodes were busy.
pub(super) struct BusyNodes {
    /// Whether some nodes that may vote granted it all the same.
    pub(super) some: bool,
    /// The places of all nodes that granted it, as bits.
    pub(super) granted: u16,
    /// When the leases of enough other holders end, if nobody renews or releases.
    pub(super) free_at: Moment,
}

/// What a round comes to by the answers of all nodes, of which `needed` must say yes; and whether that is certain.
pub(super) fn counted(reports: &[NodeReport], needed: usize) -> (RoundOutcome, bool) {
    let (mut open, mut yes, mut busy, mut refused) = (0, 0, 0, 0);
    for report in reports {
        match report {
            NodeReport::NoAnswer => open += 1,
            NodeReport::Granted => yes += 1,
            NodeReport::Busy(_) => busy += 1,
            NodeReport::Failed(error) if !error.is_transient() => refused += 1,
            _ => {}
        }
    }
    let reached = yes + busy;
    let outcome = if yes >= needed {
        RoundOutcome::Got
    } else if busy > 0 && reached >= needed {
        RoundOutcome::Busy
    } else if reports.len() - refused < needed {
        RoundOutcome::Refused
    } else {
        RoundOutcome::NoQuorum { reached }
    };
    let is_certain = match outcome {
        RoundOutcome::Got => true,
        RoundOutcome::Busy | RoundOutcome::Refused => yes + open < needed,
        RoundOutcome::NoQuorum { reached } => reached + open < needed,
    };
    (outcome, is_certain || open == 0)
}

/// How long a node has to answer, if that is not set.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeTimeout(pub(super) Option<Duration>);

/// The least that is not set: a server that is near may be busy for a moment.
const LEAST_TIMEOUT: Duration = Duration::from_millis(50);

/// Whether a node with this round trip gets more than the least time-out.
pub(super) fn is_long(round_trip: Duration) -> bool {
    round_trip > LEAST_TIMEOUT / 4
}

impl NodeTimeout {
    /// For a node with this round trip.
    pub(super) fn of(self, round_trip: Duration, lease: Duration) -> Duration {
        let four = round_trip.saturating_mul(4);
        let timeout = self.0.unwrap_or_else(|| four.max(LEAST_TIMEOUT));
        timeout.min(lease / 4)
    }

    /// However far the node is.
    pub(super) fn longest(self, lease: Duration) -> Duration {
        self.of(lease, lease)
    }
}

/// How long a server must have been up before it may vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RestartDelay(pub(super) Duration);

/// Twice the inaccuracy of the age that a server reports, which is in whole seconds.
const INACCURACY: Duration = Duration::from_secs(2);

impl RestartDelay {
    /// For leases of up to `longest`.
    pub(super) fn for_leases(longest: Duration) -> Self {
        let with_drift = longest.as_millis().saturating_mul(101).div_ceil(100);
        let seconds = u64::try_from(with_drift.div_ceil(1000)).unwrap_or(u64::MAX);
        Self(Duration::from_secs(seconds).saturating_add(INACCURACY))
    }

    /// Whether a node may vote that had been up for `age` when it was asked, or did not report its age.
    pub(super) fn may_vote(self, age: Option<Duration>) -> bool {
        self.0.is_zero() || age.is_some_and(|age| age >= self.0)
    }

    /// How long a node of this age must still wait for its vote.
    pub(super) fn left(self, age: Option<Duration>) -> Duration {
        self.0.saturating_sub(age.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Failure;
    use proptest::prelude::*;

    #[test]
    fn a_node_has_four_round_trips_within_a_quarter_of_the_lease() {
        let ms = Duration::from_millis;
        for (set, round_trip, lease, expected) in [
            (None, 0, 30_000, 50),
            (None, 12, 30_000, 50),
            (None, 60, 30_000, 240),
            (None, 60, 600, 150),
            (None, 0, 100, 25),
            (Some(ms(80)), 60, 30_000, 80),
            (Some(ms(80)), 60, 200, 50),
        ] {
            let timeout = NodeTimeout(set).of(ms(round_trip), ms(lease));
            assert_eq!(timeout, ms(expected), "{set:?} {round_trip} {lease}");
        }
        assert_eq!(NodeTimeout(None).longest(ms(400)), ms(100));
        assert_eq!(NodeTimeout(Some(ms(80))).longest(ms(400)), ms(80));
    }

    fn said() -> impl Strategy<Value = NodeReport> {
        prop_oneof![
            4 => Just(NodeReport::Granted),
            1 => Just(NodeReport::Young),
            3 => Just(NodeReport::Busy(None)),
            2 => Just(NodeReport::Failed(Failure::no_reply().into())),
            1 => Just(NodeReport::Failed(Error::wrong_type())),
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
            let mut reports = vec![NodeReport::NotAsked; nodes];
            reports[..all.len()].fill(NodeReport::NoAnswer);
            let decided = all.iter().enumerate().position(|(place, said)| {
                reports[place] = said.clone();
                counted(&reports, needed).1
            });
            let decided = decided.expect("a round is decided when all were heard");
            let (outcome, _) = counted(&reports, needed);
            let count = |is_such: fn(&NodeReport) -> bool| all.iter().filter(|said| is_such(said)).count();
            let yes = count(|said| matches!(said, NodeReport::Granted));
            let busy = count(|said| matches!(said, NodeReport::Busy(_)));
            let refused = count(|said| matches!(said, NodeReport::Failed(error) if !error.is_transient()));
            // Answers that came after the decision would not have changed it.
            prop_assert_eq!(outcome == RoundOutcome::Got, yes >= needed);
            if let RoundOutcome::Busy = outcome {
                prop_assert!(yes < needed && busy > 0);
            }
            if let RoundOutcome::NoQuorum { reached } = outcome {
                let heard = &all[..=decided];
                let usable = heard.iter().filter(|said| matches!(said, NodeReport::Granted | NodeReport::Busy(_)));
                prop_assert_eq!(reached, usable.count());
                prop_assert!(reached < needed && yes + busy < needed);
            }
            if let RoundOutcome::Refused = outcome {
                prop_assert!(nodes - refused < needed);
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
            prop_assert!(RestartDelay(Duration::ZERO).may_vote(None));
        }
    }
}
