//! Fencing tokens at a quorum: they grow from holder to holder, whichever majority each had.
//!
//! Each node gives a token of its own ([`fenced`]). The hold takes the largest and raises all nodes
//! that have the hold's field to it. Once a majority has it, every later holder sees it: two majorities share a node, and
//! that node gives the next token only when the hold's field is gone.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::nodes::QuorumNodes;
use super::queue::AcquireRequest;
use crate::backend::{Failure, Pending};
use crate::error::Error;
use crate::fencing::FencingToken;
use crate::lease::LeaseMs;
use crate::lock::guard::LockGuard;
use crate::lock::kinds::fenced;
use crate::lock::several::Composite;
use crate::lock::view::HoldOfSeveral;
use crate::script::Reply;

/// The token of a hold, once a majority has it. None when too few nodes took it.
pub(super) async fn take(
    nodes: &QuorumNodes,
    request: &AcquireRequest,
    hold: &Composite,
) -> Option<FencingToken> {
    let mut children = hold.guards(true);
    children.retain(|(_, child)| child.fencing_token().is_some());
    if children.len() < nodes.needed {
        return None;
    }
    let tokens = children.iter().map(|(_, child)| child.fencing_token());
    let token = tokens.max().flatten()?;
    let mut raising: FuturesUnordered<_> = children
        .iter()
        .map(|(place, child)| raise(nodes, request, *place, child, token))
        .collect();
    let mut raised = 0;
    while let Some(done) = raising.next().await {
        raised += usize::from(done);
        if raised >= nodes.needed {
            return Some(token);
        }
    }
    None
}

/// Takes a token for a valid hold that began without one.
pub(super) async fn take_for(
    nodes: &QuorumNodes,
    request: &AcquireRequest,
    hold: &Composite,
) -> Result<(), Error> {
    let children = hold.guards(true);
    let entering = children
        .iter()
        .map(|(_, child)| child.enter_as(&request.kind, request.lease));
    let reached = children.iter().map(|(place, _)| nodes.node(*place));
    let reached = reached.filter(|node| !node.is_silent());
    // A child that cannot be reached fails below.
    drop(join_all(reached.map(|node| node.connect())).await);
    let limit = nodes.timeout_of(request.lease);
    // The children's holds keep their tokens when these levels are dropped.
    let entered = nodes.timers().within(limit, join_all(entering)).await;
    drop(entered);
    let Some(token) = take(nodes, request, hold).await else {
        hold.check()?;
        let cause = Arc::new(Error::from(Failure::silence()));
        return Err(Error::no_quorum(0, nodes.needed, cause));
    };
    hold.keep_token(token);
    // Children that joined meanwhile found no token to write.
    let asked: Vec<_> = children.iter().map(|(place, _)| *place).collect();
    raise_at(nodes, request, hold, |place| !asked.contains(&place)).await;
    hold.check()
}

/// Writes the token of `hold`, if it has one, to the nodes at such places. One that fails stays a child: a majority has
/// the token.
pub(super) async fn raise_at(
    nodes: &QuorumNodes,
    request: &AcquireRequest,
    hold: &Composite,
    is_such: impl Fn(usize) -> bool,
) {
    let Some(token) = hold.token() else {
        return;
    };
    let mut children = hold.guards(true);
    children.retain(|(place, _)| is_such(*place));
    let raising = children
        .iter()
        .map(|(place, child)| raise(nodes, request, *place, child, token));
    join_all(raising).await;
}

/// Writes `token` to the node at `place`, if `child` is held there. Returns whether the node has it, or a larger one.
pub(super) async fn raise(
    nodes: &QuorumNodes,
    request: &AcquireRequest,
    place: usize,
    child: &LockGuard,
    token: FencingToken,
) -> bool {
    let core = nodes.node(place).core();
    let (Some(hold_id), Ok(fleet)) = (child.hold_id(), core.backend.callers_fleet()) else {
        return false;
    };
    let ttl = core.config.fencing_token_ttl.map(LeaseMs::of);
    let call = fenced::raise(&request.kind.names, hold_id, token, ttl);
    let limit = nodes.timeout_of(request.lease);
    let answer = Pending::start(&fleet, call).within(limit).await;
    answer.is_ok_and(|answer| matches!(answer.reply, Reply::Done(_)))
}
