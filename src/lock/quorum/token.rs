//! Fencing tokens over a quorum: they grow from holder to holder, whichever majority each had.
//!
//! Each node gives a token of its own ([`fenced`](crate::script::fenced)). The hold's is the largest of them, and it is
//! written back as a maximum, to each node only while that has the hold's own field. Once a majority has it, every
//! later holder meets it: two majorities share a node, and there a token is taken only when the field is gone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::Nodes;
use super::line::Request;
use crate::backend::{Failure, Pending};
use crate::engine::hold::kind::Kind;
use crate::error::Error;
use crate::fencing::FencingToken;
use crate::lock::LockGuard;
use crate::lock::composite::Composite;
use crate::script::fenced;

/// The token of a hold, once a majority has it; nothing when that could not be had.
pub(super) async fn take(
    nodes: &Arc<Nodes>,
    kind: &Kind,
    hold: &Composite,
    limit: Duration,
) -> Option<FencingToken> {
    let mut children = hold.guards();
    children.retain(|(_, child)| child.fencing_token().is_some());
    if children.len() < nodes.needed {
        return None;
    }
    let tokens = children.iter().map(|(_, child)| child.fencing_token());
    let token = tokens.max().flatten()?;
    let mut raising: FuturesUnordered<_> = children
        .iter()
        .map(|(place, child)| raise(nodes, kind, *place, child, token, limit))
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

/// Takes a token for a hold that began without one, and is valid.
pub(super) async fn take_for(
    nodes: &Arc<Nodes>,
    request: &Request,
    hold: &Composite,
) -> Result<(), Error> {
    let children = hold.guards();
    let entering = children
        .iter()
        .map(|(_, child)| child.enter_as(&request.kind, request.lease));
    let limit = nodes.timeout_of(request.lease);
    // What the levels took stays with the children's holds.
    let entered = nodes.timers().within(limit, join_all(entering)).await;
    drop(entered);
    let Some(token) = take(nodes, &request.kind, hold, limit).await else {
        hold.check()?;
        let cause = Arc::new(Error::from(Failure::silence()));
        return Err(Error::no_quorum(0, nodes.needed, cause));
    };
    hold.keep_token(token);
    hold.check()
}

/// Writes `token` to the node at `place`, if `child` is held there. Whether it has it now, or a larger one.
pub(super) async fn raise(
    nodes: &Nodes,
    kind: &Kind,
    place: usize,
    child: &LockGuard,
    token: FencingToken,
    limit: Duration,
) -> bool {
    let core = nodes.all[place].core();
    let (Some(hold_id), Ok(fleet)) = (child.hold_id(), core.backend.callers_fleet()) else {
        return false;
    };
    let ttl = core.config.fencing_token_ttl;
    let call = fenced::raise(kind.names(), hold_id, token, ttl);
    let answer = Pending::start(&fleet, call).within(limit).await;
    answer.is_ok_and(|answer| fenced::raised(&answer.reply))
}
