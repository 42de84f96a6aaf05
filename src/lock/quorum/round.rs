//! One round: a try at all nodes at once.
//!
//! 1. It ends as soon as no further answer can change its outcome. Each node has a time-out of its own, which begins once
//!    there is a connection to it. When its caller has to return before the outcome is certain, the round goes on, and the
//!    next caller in turn gets the outcome. Otherwise callers that are far away and wait briefly would keep ending each
//!    other's rounds.
//! 2. A refused round gives back what it got, and drops the tries without an answer: the nodes' clients finish and undo
//!    them.
//! 3. A grant that arrives after a round got the lock joins the hold ([`late`]) while that lasts. When the hold ends, the
//!    tries without an answer are dropped, or else the next round of this client would find the lock busy. When the hold
//!    was left to its lease, late grants are, too. A node where somebody else had the lock is asked again by
//!    [repair](super::repair).
//! 4. The hold is valid by the ends of its children, each counted from its own send. Its caller checks the validity when
//!    it collects the hold, after everything else.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;

use super::ballot::{Ballot, Tries, UnderWay};
use super::node::NodeAnswer;
use super::nodes::QuorumNodes;
use super::queue::AcquireRequest;
use super::rules::{BusyNodes, NodeReport, RoundOutcome};
use super::token;
use crate::backend::Lane;
use crate::engine::gate::ticket::{GRACE, Patience};
use crate::engine::hold::state::Ended;
use crate::error::Error;
use crate::lease::{Lease, SHORTEST_FIXED};
use crate::lock::guard::LockGuard;
use crate::lock::several::{Composite, CompositeLevel, take_ready};
use crate::lock::view::HoldOfSeveral;

pub(super) enum Tried {
    Got(CompositeLevel),
    /// Somebody else has the lock.
    Busy(BusyNodes),
    /// Too few nodes answered or may vote.
    NoQuorum(Error),
    /// Servers refuse for good.
    Failed(Error),
}

impl UnderWay {
    /// One try for `request` at every node that is worth asking.
    fn begin(nodes: &Arc<QuorumNodes>, request: &AcquireRequest) -> Self {
        let asked = nodes.worth_asking();
        let unfit = nodes.all.iter().map(|node| node.problem());
        let tries = asked
            .iter()
            .map(|place| nodes.try_once(*place, request.kind.clone(), request.lease));
        Self {
            tries: tries.collect(),
            ballot: Ballot::new(unfit, &asked, nodes.needed),
            began: nodes.now(),
            lease: request.lease,
            fenced: request.fenced,
        }
    }

    /// Whether it asks for what `request` asks for, and began after that was made: an older round may have found the lock
    /// busy before it became free.
    pub(super) fn is_for(&self, request: &AcquireRequest) -> bool {
        let same = (self.lease, self.fenced) == (request.lease, request.fenced);
        same && self.began >= request.since
    }
}

impl Ballot {
    /// Counts the answer of one node. Returns the outcome once it is certain.
    fn count(
        &mut self,
        nodes: &Arc<QuorumNodes>,
        place: usize,
        answer: Result<NodeAnswer, Error>,
    ) -> Option<RoundOutcome> {
        nodes.note_answer(place, answer.as_ref().err());
        self.reports[place] = match answer {
            Ok(NodeAnswer::In(child)) if nodes.may_vote(place, &child) => {
                self.children[place] = Some(child);
                NodeReport::Granted
            }
            Ok(NodeAnswer::In(child)) => {
                self.young.push(child);
                NodeReport::Young
            }
            Ok(NodeAnswer::Busy(until)) => NodeReport::Busy(until),
            Err(error) => {
                if !error.is_transient() {
                    self.refused.get_or_insert_with(|| error.clone());
                }
                NodeReport::Failed(error)
            }
        };
        let (outcome, is_certain) = self.outcome();
        is_certain.then_some(outcome)
    }
}

/// Goes on with the round that is `under_way` if that is one for `request`, or makes a new one.
pub(super) async fn round(
    nodes: &Arc<QuorumNodes>,
    request: &AcquireRequest,
    under_way: &mut Option<UnderWay>,
) -> Tried {
    let limit = nodes.timeout_of(request.lease);
    let begun = under_way.take().filter(|begun| begun.is_for(request));
    let begun = begun.unwrap_or_else(|| UnderWay::begin(nodes, request));
    let begun = under_way.insert(begun);
    let (began, command_timeout) = (begun.began, nodes.config().command_timeout);
    let returns_by = request.patience.returns_by(request.since, command_timeout);
    // Before its caller returns.
    let end = returns_by + GRACE / 2;
    let first = first_answers(nodes, &mut begun.tries, &mut begun.ballot);
    let first = nodes.by(end, first).await;
    let is_cut = first.is_none();
    let outcome = first.unwrap_or_else(|| begun.ballot.outcome().0);
    // To connect may take longer than the caller waits. A timer that is late says that the process stood still.
    let now = nodes.now();
    let waited = began.until(now) >= command_timeout.max(limit) && now <= end + GRACE;
    let is_silence = is_cut && waited;
    if let RoundOutcome::NoQuorum { reached } = outcome
        && is_cut
        && !is_silence
    {
        // The caller's wait is over. That says nothing about the lock, so the others do not hear of it.
        return Tried::Failed(begun.ballot.no_quorum(reached));
    }
    let Some(UnderWay {
        mut ballot,
        mut tries,
        ..
    }) = under_way.take()
    else {
        return Tried::Failed(Error::Closed);
    };
    if is_silence {
        for place in ballot.unanswered() {
            nodes.fell_silent(place);
        }
    }
    if outcome == RoundOutcome::Got {
        take_ready(&mut tries, |(place, answer)| {
            ballot.count(nodes, place, answer);
        })
        .await;
        let children = std::mem::take(&mut ballot.children);
        let Some(level) = got(nodes, request, children).await else {
            return Tried::NoQuorum(ballot.no_quorum(0));
        };
        nodes.repair(level.hold(), request);
        join_later(nodes, &ballot, request, level.hold(), tries);
        return Tried::Got(level);
    }
    let waits_for_leases = outcome == RoundOutcome::Busy && request.patience != Patience::Once;
    if waits_for_leases || matches!(outcome, RoundOutcome::NoQuorum { .. }) {
        // A caller that waits until leases end needs to know those of all nodes, and the error says what each answered.
        let rest = async {
            while let Some((place, answer)) = tries.next().await {
                ballot.count(nodes, place, answer);
            }
        };
        nodes.by(end, nodes.timers().within(limit, rest)).await;
    }
    // The nodes' clients finish and undo what has no answer yet.
    drop(tries);
    let tried = match outcome {
        RoundOutcome::Got | RoundOutcome::Busy => Tried::Busy(ballot.found_busy()),
        RoundOutcome::NoQuorum { reached } => {
            let reached = match ballot.outcome() {
                (RoundOutcome::NoQuorum { reached }, _) => reached,
                _ => reached,
            };
            Tried::NoQuorum(ballot.no_quorum(reached))
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

async fn first_answers(
    nodes: &Arc<QuorumNodes>,
    tries: &mut Tries,
    ballot: &mut Ballot,
) -> RoundOutcome {
    while let Some((place, answer)) = tries.next().await {
        if let Some(outcome) = ballot.count(nodes, place, answer) {
            return outcome;
        }
    }
    ballot.outcome().0
}

/// The hold of these children, with its token if it needs one. None when it gets no token: then they are given back.
async fn got(
    nodes: &Arc<QuorumNodes>,
    request: &AcquireRequest,
    children: Vec<Option<LockGuard>>,
) -> Option<CompositeLevel> {
    let spare_timeout = nodes.timeout_of(Lease::Watchdog);
    let (name, lease) = (&request.name, request.lease);
    let level = CompositeLevel::first(name, nodes.needed, spare_timeout, children, lease);
    if request.fenced {
        let token = token::take(nodes, request, level.hold()).await?;
        level.hold().keep_token(token);
    }
    Some(level)
}

/// Waits in the background for the remaining answers.
fn join_later(
    nodes: &Arc<QuorumNodes>,
    ballot: &Ballot,
    request: &AcquireRequest,
    hold: &Arc<Composite>,
    tries: Tries,
) {
    if tries.is_empty() {
        return;
    }
    let lane_of = |place| (place, nodes.node(place).lane());
    let unanswered = ballot.unanswered().into_iter().map(lane_of).collect();
    let (quorum, hold, request) = (Arc::clone(nodes), Arc::clone(hold), request.clone());
    nodes.start_task(async move { late(&quorum, &request, &hold, tries, unanswered).await });
}

/// Takes late answers into the hold until that is given back or lost. After that, the connections still show which nodes
/// are silent.
async fn late(
    nodes: &Arc<QuorumNodes>,
    request: &AcquireRequest,
    hold: &Arc<Composite>,
    mut tries: Tries,
    mut unanswered: Vec<(usize, Option<Arc<Lane>>)>,
) {
    let mut ended = hold.ended();
    let mut left_to_lease = false;
    loop {
        let (place, answer) = tokio::select! {
            biased;
            end = &mut ended, if !left_to_lease => {
                left_to_lease = end == Ended::Left;
                if left_to_lease {
                    continue;
                }
                drop((tries, ended));
                return watch(nodes, unanswered, nodes.timeout_of(request.lease)).await;
            }
            answer = tries.next() => match answer {
                Some(answer) => answer,
                None => return,
            },
        };
        unanswered.retain(|(other, _)| *other != place);
        nodes.note_answer(place, answer.as_ref().err());
        if let Ok(NodeAnswer::In(child)) = answer {
            join(nodes, request, hold, place, child).await;
        }
    }
}

/// Takes the lock at one node for a hold that lacks it, unless the hold ends first. Returns whether the node joined.
pub(super) async fn take_again(
    nodes: &Arc<QuorumNodes>,
    hold: &Arc<Composite>,
    place: usize,
    mut request: AcquireRequest,
) -> bool {
    request.lease = hold.lease_now();
    if let Lease::Fixed(left) = request.lease
        && left < SHORTEST_FIXED
    {
        return false;
    }
    let trying = nodes.try_once(place, request.kind.clone(), request.lease);
    let answer = tokio::select! {
        biased;
        _ = hold.ended() => return false,
        (_, answer) = trying => answer,
    };
    nodes.note_answer(place, answer.as_ref().err());
    match answer {
        Ok(NodeAnswer::In(child)) => join(nodes, &request, hold, place, child).await,
        _ => false,
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
    let known = hold.token();
    if let Some(token) = known
        && !token::raise(nodes, request, place, &child, token).await
    {
        return false;
    }
    let watched = request.lease == Lease::Watchdog;
    let joined = hold.adopt(place, child, watched).await;
    if joined && known.is_none() {
        // A fenced level may have taken a token since then, and did not see this child.
        token::raise_at(nodes, request, hold, |other| other == place).await;
    }
    joined
}
