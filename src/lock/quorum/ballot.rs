//! What the nodes answered in a round so far. It belongs to no caller.

use std::fmt;

use futures_util::stream::FuturesUnordered;

use super::node::NodeTry;
use super::rules::{BusyNodes, NodeReport, RoundOutcome, counted};
use crate::clock::Moment;
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::guard::LockGuard;

pub(super) type Tries = FuturesUnordered<NodeTry>;

/// A round whose outcome is not certain yet.
pub(super) struct UnderWay {
    pub(super) ballot: Ballot,
    pub(super) tries: Tries,
    pub(super) began: Moment,
    pub(super) lease: Lease,
    pub(super) fenced: bool,
}

/// The answers to a round.
pub(super) struct Ballot {
    needed: usize,
    pub(super) children: Vec<Option<LockGuard>>,
    /// Grants of nodes that may not vote.
    pub(super) young: Vec<LockGuard>,
    pub(super) reports: Vec<NodeReport>,
    pub(super) refused: Option<Error>,
}

impl Ballot {
    /// `unfit`: why a node cannot be part of the quorum, for each. Those at the places `asked` are asked.
    pub(super) fn new(
        unfit: impl Iterator<Item = Option<&'static str>>,
        asked: &[usize],
        needed: usize,
    ) -> Self {
        let unasked = |problem: Option<_>| problem.map_or(NodeReport::NotAsked, NodeReport::Unfit);
        let mut reports: Vec<_> = unfit.map(unasked).collect();
        for place in asked {
            reports[*place] = NodeReport::NoAnswer;
        }
        let mut children = Vec::new();
        children.resize_with(reports.len(), || None);
        Self {
            needed,
            children,
            young: Vec::new(),
            reports,
            refused: None,
        }
    }

    /// What the round comes to by the answers so far, and whether that is certain.
    pub(super) fn outcome(&self) -> (RoundOutcome, bool) {
        counted(&self.reports, self.needed)
    }

    /// The places of the nodes without an answer.
    pub(super) fn unanswered(&self) -> Vec<usize> {
        let reports = self.reports.iter().enumerate();
        let unanswered = reports.filter(|(_, report)| matches!(report, NodeReport::NoAnswer));
        unanswered.map(|(place, _)| place).collect()
    }

    pub(super) fn found_busy(&self) -> BusyNodes {
        let grants = self.reports.iter().zip(0..).map(|(report, place)| {
            let grants = matches!(report, NodeReport::Granted | NodeReport::Young);
            u16::from(grants) << place
        });
        BusyNodes {
            some: self.children.iter().any(Option::is_some),
            granted: grants.fold(0, std::ops::BitOr::bitor),
            free_at: self.free_at(),
        }
    }

    /// When the leases of enough other holders end, if nobody renews or releases.
    fn free_at(&self) -> Moment {
        let mut ends: Vec<_> = self
            .reports
            .iter()
            .map(|report| match report {
                NodeReport::Granted => Moment::default(),
                NodeReport::Busy(Some(until)) => *until,
                _ => Moment::NEVER,
            })
            .collect();
        ends.sort_unstable();
        ends[self.needed - 1]
    }

    pub(super) fn no_quorum(&self, reached: usize) -> Error {
        let servers = self.reports.iter().zip(1..);
        let reports: Vec<_> = servers
            .map(|(report, server)| format!("server {server}: {report}"))
            .collect();
        let cause: Box<dyn std::error::Error + Send + Sync> = reports.join(", ").into();
        Error::no_quorum(reached, self.needed, cause.into())
    }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => f.write_str("not asked, as it did not answer before"),
            Self::Unfit(problem) => f.write_str(problem),
            Self::NoAnswer => f.write_str("no reply yet"),
            Self::Granted => f.write_str("granted"),
            Self::Young => f.write_str("granted, but has no vote yet so soon after its start"),
            Self::Busy(_) => f.write_str("busy"),
            Self::Failed(error) => match std::error::Error::source(error) {
                Some(cause) => write!(f, "{cause}"),
                None => write!(f, "{error}"),
            },
        }
    }
}
