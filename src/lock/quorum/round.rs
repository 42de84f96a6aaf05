//! One round: a try at all nodes at once.
//!
//! 1. It ends as soon as no further answer can change its outcome. Each node has a time-out of its own, which begins once
//!    there is a connection to it. A round ends before its caller returns, whatever is still to be answered.
//! 2. A refused round gives back what it got, and drops the tries without an answer: the nodes' clients finish and undo
//!    them.
//! 3. A grant that arrives after a round got the lock joins the hold ([`late`]) while that lasts. When the hold ends, the
//!    tries without an answer are dropped, or else the next round of this client would find the lock busy. When the hold
//!    was left to its lease, late grants are, too. A node where somebody else had the lock is asked again when it publishes
//!    a wake-up ([`take_freed`]): a hold of a bare majority would end with the next node that is lost.
//! 4. The hold is valid by the ends of its children, each counted from its own send. Its caller checks the validity when
//!    it collects the hold, after everything else.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::listeners::Listeners;
use super::node::NodeAnswer;
use super::nodes::{NodeTry, QuorumNodes};
use super::queue::AcquireRequest;
use super::rules::{BusyNodes, RoundOutcome, Vote, VoteCount};
use super::token;
use crate::backend::Lane;
use crate::clock::Moment;
use crate::engine::gate::ticket::{GRACE, Patience};
use crate::error::Error;
use crate::lease::{Lease, SHORTEST_FIXED};
use crate::lock::guard::LockGuard;
use crate::lock::several::{Composite, CompositeLevel, take_ready};
use crate::lock::view::HoldOfSeveral;

type Tries = FuturesUnordered<NodeTry>;

/// A hold that ends within this time does not subscribe for nodes that were busy.
const SHORT_HOLD: Duration = Duration::from_millis(10);

pub(super) enum Tried {
    Got(CompositeLevel),
    /// Somebody else has the lock.
    Busy(BusyNodes),
    /// Too few nodes answered or may vote.
    NoQuorum(Error),
    /// Servers refuse for good.
    Failed(Error),
}

/// The answers to a round.
struct Ballot<'a> {
    nodes: &'a Arc<QuorumNodes>,
    votes: VoteCount,
    children: Vec<Option<LockGuard>>,
    /// Grants of nodes that may not vote.
    young: Vec<LockGuard>,
    reports: Vec<NodeReport>,
    refused: Option<Error>,
}

/// How a node answered, for the round and for the text of an error.
#[derive(Clone)]
enum NodeReport {
    NotAsked,
    /// It cannot be part of the quorum.
    Unfit(&'static str),
    NoAnswer,
    Granted,
    Young,
    /// Until then, if known.
    Busy(Option<Moment>),
    Failed(Error),
}

impl<'a> Ballot<'a> {
    fn new(nodes: &'a Arc<QuorumNodes>, asked: &[usize]) -> Self {
        let all = nodes.all().len();
        let unasked = |problem: Option<_>| problem.map_or(NodeReport::NotAsked, NodeReport::Unfit);
        let reports = nodes.all().iter().map(|node| unasked(node.problem()));
        let mut reports: Vec<_> = reports.collect();
        for place in asked {
            reports[*place] = NodeReport::NoAnswer;
        }
        let mut children = Vec::new();
        children.resize_with(all, || None);
        Self {
            nodes,
            votes: VoteCount::new(all, nodes.needed, asked.len()),
            children,
            young: Vec::new(),
            reports,
            refused: None,
        }
    }

    /// Counts the answer of one node. Returns the outcome once it is certain.
    fn count(&mut self, place: usize, answer: Result<NodeAnswer, Error>) -> Option<RoundOutcome> {
        self.nodes.note_answer(place, answer.as_ref().err());
        let (vote, report) = match answer {
            Ok(NodeAnswer::Granted(child)) if self.nodes.may_vote(place, &child) => {
                self.children[place] = Some(child);
                (Vote::Yes, NodeReport::Granted)
            }
            Ok(NodeAnswer::Granted(child)) => {
                self.young.push(child);
                (Vote::Young, NodeReport::Young)
            }
            Ok(NodeAnswer::Busy(until)) => (Vote::Busy, NodeReport::Busy(until)),
            Err(error) if error.is_transient() => (Vote::Failed, NodeReport::Failed(error)),
            Err(error) => {
                self.refused.get_or_insert_with(|| error.clone());
                (Vote::Refused, NodeReport::Failed(error))
            }
        };
        self.reports[place] = report;
        self.votes.count(vote)
    }

    /// The places of the nodes with such a report.
    fn places(&self, is_such: fn(&NodeReport) -> bool) -> Vec<usize> {
        let reports = self.reports.iter().enumerate();
        let such = reports.filter(|(_, report)| is_such(report));
        such.map(|(place, _)| place).collect()
    }

    fn found_busy(&self) -> BusyNodes {
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
        ends[self.nodes.needed - 1]
    }

    fn no_quorum(&self, reached: usize) -> Error {
        let servers = self.reports.iter().zip(1..);
        let reports: Vec<_> = servers
            .map(|(report, server)| format!("server {server}: {report}"))
            .collect();
        let cause: Box<dyn std::error::Error + Send + Sync> = reports.join(", ").into();
        Error::no_quorum(reached, self.nodes.needed, cause.into())
    }
}

/// One try for `request` at every node that is worth asking.
pub(super) async fn round(nodes: &Arc<QuorumNodes>, request: &AcquireRequest) -> Tried {
    let limit = nodes.timeout_of(request.lease);
    let asked = nodes.worth_asking();
    let mut tries: Tries = asked
        .iter()
        .map(|place| nodes.try_once(*place, request.kind.clone(), request.lease))
        .collect();
    let mut ballot = Ballot::new(nodes, &asked);
    let (began, command_timeout) = (nodes.now(), nodes.config().command_timeout);
    let returns_by = request.patience.returns_by(request.since, command_timeout);
    // Before its caller returns.
    let end = returns_by + GRACE / 2;
    let first = nodes.by(end, first_answers(&mut tries, &mut ballot)).await;
    let is_cut = first.is_none();
    let outcome = first.unwrap_or_else(|| ballot.votes.close());
    // To connect may take longer than the caller waits. A timer that is late says that the process stood still.
    let now = nodes.now();
    let waited = began.until(now) >= command_timeout.max(limit) && now <= end + GRACE;
    let is_silence = is_cut && waited;
    if is_silence {
        for place in ballot.places(|report| matches!(report, NodeReport::NoAnswer)) {
            nodes.fell_silent(place);
        }
    }
    if outcome == RoundOutcome::Got {
        take_ready(&mut tries, |(place, answer)| {
            ballot.count(place, answer);
        })
        .await;
        let children = std::mem::take(&mut ballot.children);
        let Some(level) = got(nodes, request, children, limit).await else {
            return Tried::NoQuorum(ballot.no_quorum(0));
        };
        nodes.repair(level.hold(), request);
        join_later(&ballot, request, level.hold(), tries, limit);
        return Tried::Got(level);
    }
    let waits_for_leases = outcome == RoundOutcome::Busy && request.patience != Patience::Once;
    if waits_for_leases || matches!(outcome, RoundOutcome::NoQuorum { .. }) {
        // A caller that waits until leases end needs to know those of all nodes, and the error says what each answered.
        let rest = async {
            while let Some((place, answer)) = tries.next().await {
                ballot.count(place, answer);
            }
        };
        nodes.by(end, nodes.timers().within(limit, rest)).await;
    }
    // The nodes' clients finish and undo what has no answer yet.
    drop(tries);
    let tried = match outcome {
        RoundOutcome::Got | RoundOutcome::Busy => Tried::Busy(ballot.found_busy()),
        RoundOutcome::NoQuorum { reached } => {
            let reached = match ballot.votes.close() {
                RoundOutcome::NoQuorum { reached } => reached,
                _ => reached,
            };
            match ballot.no_quorum(reached) {
                // It says nothing to others that its caller's wait ended in the middle of it.
                error if is_cut && !is_silence => Tried::Failed(error),
                error => Tried::NoQuorum(error),
            }
        }
        RoundOutcome::Refused => Tried::Failed(ballot.refused.take().unwrap_or(Error::Closed)),
    };
    let children = ballot.children.into_iter().flatten().chain(ballot.young);
    let given_back = join_all(children.map(LockGuard::unlock));
    // The answers change nothing here, and the background finishes what is not answered in time.
    nodes
        .by(end, nodes.timers().within(limit, given_back))
        .await;
    tried
}

async fn first_answers(tries: &mut Tries, ballot: &mut Ballot<'_>) -> RoundOutcome {
    while let Some((place, answer)) = tries.next().await {
        if let Some(outcome) = ballot.count(place, answer) {
            return outcome;
        }
    }
    ballot.votes.close()
}

/// The hold of these children, with its token if it needs one. None when it gets no token: then they are given back.
async fn got(
    nodes: &Arc<QuorumNodes>,
    request: &AcquireRequest,
    children: Vec<Option<LockGuard>>,
    limit: Duration,
) -> Option<CompositeLevel> {
    let spare_timeout = nodes.timeout_of(Lease::Watchdog);
    let (name, lease) = (&request.name, request.lease);
    let level = CompositeLevel::first(name, nodes.needed, spare_timeout, children, lease);
    if request.fenced {
        let token = token::take(nodes, &request.kind, level.hold(), limit).await?;
        level.hold().keep_token(token);
    }
    Some(level)
}

/// Waits in the background for the remaining answers, and for the nodes that are busy.
fn join_later(
    ballot: &Ballot<'_>,
    request: &AcquireRequest,
    hold: &Arc<Composite>,
    tries: Tries,
    limit: Duration,
) {
    let nodes = Arc::clone(ballot.nodes);
    let mut busy = ballot.places(|report| matches!(report, NodeReport::Busy(_)));
    if tries.is_empty() && busy.is_empty() {
        return;
    }
    let unanswered = ballot.places(|report| matches!(report, NodeReport::NoAnswer));
    let lane_of = |place| (place, nodes.node(place).lane());
    let unanswered = unanswered.into_iter().map(lane_of).collect();
    let (hold, request) = (Arc::clone(hold), request.clone());
    ballot.nodes.start_task(async move {
        late(&nodes, &request, &hold, tries, unanswered, limit, &mut busy).await;
        if !busy.is_empty() {
            take_freed(nodes, &request, &hold, &busy).await;
        }
    });
}

/// Takes late answers into the hold until that is given back or lost. After that, the connections still show which nodes
/// are silent.
async fn late(
    nodes: &Arc<QuorumNodes>,
    request: &AcquireRequest,
    hold: &Arc<Composite>,
    mut tries: Tries,
    mut unanswered: Vec<(usize, Option<Arc<Lane>>)>,
    limit: Duration,
    busy: &mut Vec<usize>,
) {
    let mut over = pin!(hold.over());
    let mut left_to_lease = false;
    loop {
        let (place, answer) = tokio::select! {
            biased;
            () = &mut over, if !left_to_lease => {
                left_to_lease = hold.is_left_to_lease();
                if left_to_lease {
                    continue;
                }
                drop((tries, over));
                return watch(nodes, unanswered, limit).await;
            }
            answer = tries.next() => match answer {
                Some(answer) => answer,
                None => return,
            },
        };
        unanswered.retain(|(other, _)| *other != place);
        nodes.note_answer(place, answer.as_ref().err());
        match answer {
            Ok(NodeAnswer::Granted(child)) => {
                join(nodes, request, hold, place, child).await;
            }
            Ok(NodeAnswer::Busy(_)) => busy.push(place),
            Err(_) => {}
        }
    }
}

/// Takes the lock at these nodes, each when it publishes a wake-up, until the hold ends.
async fn take_freed(
    nodes: Arc<QuorumNodes>,
    request: &AcquireRequest,
    hold: &Arc<Composite>,
    busy: &[usize],
) {
    let mut missing = busy.to_vec();
    tokio::select! {
        biased;
        _ = hold.ended() => return,
        () = tokio::time::sleep(SHORT_HOLD) => {}
    }
    missing.retain(|place| hold.invalid_places().contains(place));
    if missing.is_empty() {
        return;
    }
    let listened: Vec<_> = busy
        .iter()
        .map(|place| Arc::clone(nodes.node(*place)))
        .collect();
    let mut listeners = Listeners::open(&listened, request.kind.names());
    // A guard that is kept for long keeps no quorum.
    let quorum = Arc::downgrade(&nodes);
    drop(nodes);
    loop {
        let place = tokio::select! {
            biased;
            _ = hold.ended() => return,
            index = listeners.next() => busy[index],
        };
        let Some(nodes) = quorum.upgrade() else {
            return;
        };
        let invalid = hold.invalid_places();
        missing.retain(|place| invalid.contains(place));
        if missing.contains(&place)
            && take_again(&nodes, hold, place, request.clone())
                .await
                .is_some()
        {
            // It joined, or it granted and cannot join. Giving that grant back publishes a wake-up, so another try would
            // follow at once, without end. Repair asks the node again.
            missing.retain(|other| *other != place);
        }
        if missing.is_empty() {
            return;
        }
    }
}

/// Takes the lock at one node for a hold that lacks it, unless the hold ends first. Returns whether the node joined;
/// `None` when it granted nothing.
pub(super) async fn take_again(
    nodes: &Arc<QuorumNodes>,
    hold: &Arc<Composite>,
    place: usize,
    mut request: AcquireRequest,
) -> Option<bool> {
    request.lease = hold.lease_now();
    if let Lease::Fixed(left) = request.lease
        && left < SHORTEST_FIXED
    {
        return None;
    }
    let trying = nodes.try_once(place, request.kind.clone(), request.lease);
    let answer = tokio::select! {
        biased;
        () = hold.over() => return None,
        (_, answer) = trying => answer,
    };
    nodes.note_answer(place, answer.as_ref().err());
    match answer {
        Ok(NodeAnswer::Granted(child)) => Some(join(nodes, &request, hold, place, child).await),
        _ => None,
    }
}

/// Checks whether these nodes send anything within `limit`, or are connected within a connect time-out. One check at a time
/// for each node, as short holds come by the thousand.
async fn watch(
    nodes: &Arc<QuorumNodes>,
    mut places: Vec<(usize, Option<Arc<Lane>>)>,
    limit: Duration,
) {
    places.retain(|(place, _)| nodes.node(*place).set_watched(true));
    let watching = places.into_iter().map(async |(place, lane)| {
        let silent = match lane {
            Some(lane) => is_silent(&lane, limit, nodes.config().connect_timeout).await,
            None => true,
        };
        nodes.node(place).set_watched(false);
        if silent {
            nodes.fell_silent(place);
        }
    });
    join_all(watching).await;
}

async fn is_silent(lane: &Lane, limit: Duration, connect_timeout: Duration) -> bool {
    tokio::time::sleep(limit).await;
    if lane.connected().is_some() {
        return lane.is_silent_for(limit);
    }
    tokio::time::sleep(connect_timeout).await;
    lane.connected().is_none()
}

/// Adds a child to a hold, once its node has the hold's token. A child that cannot be added is given back.
async fn join(
    nodes: &Arc<QuorumNodes>,
    request: &AcquireRequest,
    hold: &Arc<Composite>,
    place: usize,
    child: LockGuard,
) -> bool {
    if !nodes.may_vote(place, &child) {
        return false;
    }
    if let Some(token) = hold.token() {
        let limit = nodes.timeout_of(request.lease);
        if !token::raise(nodes, &request.kind, place, &child, token, limit).await {
            return false;
        }
    }
    hold.adopt(place, child, request.lease == Lease::Watchdog)
        .await
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
