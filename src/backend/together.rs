//! Several commands at once: those for one node are one pipeline, one write and one read.
//!
//! 1. Each is answered for itself. What a node refuses, or sends elsewhere, costs the others nothing: they are told when
//!    the pipeline is answered, and who goes on from there is told later.
//! 2. A pipeline that is cut off or not answered in time says nothing of any of its commands.
//! 3. Where replicas must acknowledge, the commit lane makes pipelines of its own.
//! 4. What is not answered in time leaves its connection, if it waited for long enough to tell: longer than an answer
//!    may wait for replicas.
//! 5. A node that does not know a script is told its text once: what comes behind it in the pipeline finds it known. How
//!    is in [`rounds`](super::rounds).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Pipeline;

use super::failure::Failure;
use super::fleet::Fleet;
use super::lane::Lane;
use super::rounds::exchanged;
use super::send::{Wrong, follow};
use super::{Outcome, Pending};
use crate::script::{Call, Order};
use crate::slot::Target;

/// A silence that is shorter says nothing of the connection, nor of the server.
pub(crate) const TELLING: Duration = Duration::from_millis(100);

/// Calls that are made together.
pub(crate) trait Calls: Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// One of them; most often it is made once. None of them publishes, nor asks on behind a nil.
    fn call(&self, index: usize) -> Call<'_>;

    /// What came of it, as soon as that is known.
    fn tell(&self, index: usize, outcome: Outcome);
}

/// Sends `calls` and waits for at most `limit`.
pub(crate) async fn send_together(fleet: &Arc<Fleet>, calls: &impl Calls, limit: Duration) {
    let mut shares: Vec<Share> = Vec::new();
    let mut alone = Vec::new();
    let acknowledged = fleet.home().commits().is_some();
    for index in 0..calls.count() {
        let call = calls.call(index);
        if acknowledged && call.order() != Order::Free {
            alone.push((index, Pending::start(fleet, call)));
            continue;
        }
        let room = calls.count() - index;
        match share_for(&mut shares, fleet, call.target(), room) {
            Ok(share) => share.add(index, &call),
            Err(failure) => calls.tell(index, Err(failure)),
        }
    }
    let telling = TELLING + fleet.acknowledged_within();
    let alone = alone
        .into_iter()
        .map(async |(index, pending): (_, Pending)| {
            calls.tell(index, pending.within_one_try(limit, telling).await);
        });
    let shares = shares
        .into_iter()
        .map(|share| share.send(fleet, calls, limit));
    tokio::join!(join_all(alone), join_all(shares));
}

/// The calls for one node, by their indices, and the commands that they are.
struct Share {
    node: Option<u32>,
    lane: Arc<Lane>,
    indices: Vec<usize>,
    commands: Pipeline,
}

/// The one that a call for `target` belongs to; with room for so many calls if it is a new one.
fn share_for<'s>(
    shares: &'s mut Vec<Share>,
    fleet: &Fleet,
    target: Target,
    room: usize,
) -> Result<&'s mut Share, Failure> {
    let node = fleet.node(target);
    let mut known = shares.iter();
    let known = known.rposition(|share| share.node.is_some() && share.node == node);
    let place = known.unwrap_or(shares.len());
    if known.is_none() {
        shares.push(Share {
            node,
            lane: fleet.lane(target)?,
            indices: Vec::with_capacity(room),
            commands: Pipeline::with_capacity(room),
        });
    }
    Ok(&mut shares[place])
}

impl Share {
    fn add(&mut self, index: usize, call: &Call<'_>) {
        self.indices.push(index);
        self.commands.add_command(call.encode().into_cmd());
    }

    async fn send(self, fleet: &Arc<Fleet>, calls: &impl Calls, limit: Duration) {
        let Self {
            lane,
            indices,
            commands,
            ..
        } = self;
        let (generation, began) = (lane.generation(), lane.now());
        let exchange = exchanged(&lane, calls, indices.clone(), commands);
        let Some(exchanged) = lane.timers().within(limit, exchange).await else {
            give_up(&lane, generation, limit, TELLING);
            for index in indices {
                calls.tell(index, Err(Failure::no_reply()));
            }
            return;
        };
        let mut elsewhere = Vec::new();
        let mut hear = |index, heard| match heard {
            Ok(answer) => calls.tell(index, Ok(answer)),
            Err(wrong) if fleet.cluster().is_joined() => elsewhere.push((index, wrong)),
            Err(Wrong { failure, .. }) => calls.tell(index, Err(failure)),
        };
        match exchanged {
            Ok(exchanged) => exchanged.heard(&lane, hear),
            Err(failure) => {
                for index in indices {
                    hear(index, Err(failure.clone().into()));
                }
            }
        }
        let left = limit.saturating_sub(began.until(lane.now()));
        let elsewhere = elsewhere.into_iter().map(async |(index, wrong)| {
            let following = follow(fleet, calls.call(index).encode(), wrong);
            let outcome = lane.timers().within(left, following).await;
            calls.tell(index, outcome.unwrap_or_else(|| Err(Failure::no_reply())));
        });
        join_all(elsewhere).await;
    }
}

/// The next try shall be on another connection, while there is time for one: after a silence of `limit`, if that is
/// `telling`.
pub(super) fn give_up(lane: &Lane, generation: Option<u64>, limit: Duration, telling: Duration) {
    lane.overdue();
    let silent = limit >= telling && lane.is_silent_for(limit);
    if let Some(generation) = generation.filter(|_| silent) {
        lane.replace(generation);
    }
}
