//! Repair: a hold goes on without the nodes that it lost, and takes them back when they answer again. So a hold of hours
//! survives three restarts on three days.
//!
//! 1. Only a valid hold is repaired: one that lost its majority stays lost. This is checked at the moment at which the
//!    child is added.
//! 2. The child is a new hold with its own id, as the last release of the old one may still be repeated.
//! 3. A child of a fixed lease gets what is left of it. A child of a fenced hold counts once its node has the token.
//! 4. A node is asked once it may vote, and then at most once a second. It is asked for a few holds at a time, so that
//!    acquires do not wait behind those of thousands.
//! 5. The other nodes are asked first whether they still have the hold. A forced release reaches one node before the
//!    others; taking that one back would undo it. A node that has confirmed the hold since then is not asked again, because
//!    a busy node is tried every second, for each of thousands of holds.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::UnboundedReceiver;

use super::node::QuorumNode;
use super::nodes::{HoldToRepair, QuorumNodes, QuorumSettings};
use super::queue::AcquireRequest;
use super::round::take_again;
use crate::backend::Failure;
use crate::clock::Moment;
use crate::engine::caller::enter::verify;
use crate::lock::several::Composite;
use crate::log::log;

/// How often holds are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How long a hold leaves a node alone after it asked it.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts a quorum and the repair of its holds.
pub(crate) fn start(
    nodes: Vec<QuorumNode>,
    settings: &QuorumSettings,
) -> Result<Arc<QuorumNodes>, Failure> {
    let (nodes, to_repair) = QuorumNodes::new(nodes, settings)?;
    nodes.start_task(look_after(Arc::downgrade(&nodes), to_repair));
    Ok(nodes)
}

/// Looks after all holds while the quorum exists.
async fn look_after(quorum: Weak<QuorumNodes>, mut new: UnboundedReceiver<HoldToRepair>) {
    let mut all = Vec::new();
    loop {
        if all.is_empty() {
            match new.recv().await {
                Some(hold) => all.push(hold),
                None => return,
            }
        }
        tokio::time::sleep(LOOK).await;
        while let Ok(hold) = new.try_recv() {
            all.push(hold);
        }
        let Some(nodes) = quorum.upgrade() else {
            return;
        };
        all.retain_mut(|repair: &mut HoldToRepair| match repair.hold.upgrade() {
            Some(hold) if hold.is_held() => {
                repair.look(&nodes, &hold);
                true
            }
            _ => false,
        });
    }
}

impl HoldToRepair {
    fn look(&mut self, nodes: &Arc<QuorumNodes>, hold: &Arc<Composite>) {
        let now = nodes.now();
        let invalid = hold.invalid_places();
        self.lacks_since.retain(|place, _| invalid.contains(place));
        self.asked
            .retain(|_, (again, task)| now < *again || !task.is_finished());
        for place in invalid {
            let since = *self.lacks_since.entry(place).or_insert(now);
            if self.asked.contains_key(&place) || !may_be_asked(nodes, place) {
                continue;
            }
            let (quorum, hold) = (Arc::clone(nodes), Arc::clone(hold));
            let request = self.request.clone();
            let task = nodes.start_task(async move {
                let _permit = quorum.may_repair(place).await;
                // It may have waited for long.
                if hold.invalid_places().contains(&place) && may_be_asked(&quorum, place) {
                    repair(&quorum, &hold, place, since, request).await;
                }
            });
            self.asked.insert(place, (now + PAUSE, task));
        }
    }
}

fn may_be_asked(nodes: &QuorumNodes, place: usize) -> bool {
    let node = nodes.node(place);
    !node.is_silent() && node.may_vote_at(nodes.now())
}

/// Takes the node at `place` back into the hold, which has lacked it since then.
async fn repair(
    nodes: &Arc<QuorumNodes>,
    hold: &Arc<Composite>,
    place: usize,
    since: Moment,
    request: AcquireRequest,
) {
    look_for_children(nodes, hold, since).await;
    if hold.is_held() && take_again(nodes, hold, place, request).await {
        let name = Arc::clone(hold.name());
        log(move || {
            let server = place + 1;
            tracing::info!(name = &*name, server, "a server is back in the hold");
        });
    }
}

/// Asks about each valid child that was not found since then, and waits as long for an answer as a round would. A child
/// that is gone is lost then; one without an answer stays valid.
async fn look_for_children(nodes: &Arc<QuorumNodes>, hold: &Arc<Composite>, since: Moment) {
    let limit = nodes.timeout_of(hold.lease_now());
    let children = hold.children();
    let valid = children
        .iter()
        .map(|sorts| sorts.iter().flatten().find(|child| child.is_valid()));
    let asked = valid.enumerate().filter_map(|(place, child)| {
        let child = child?.single()?;
        let is_known = child.found_at() >= since;
        let asking = verify(nodes.node(place).core(), child);
        (!is_known).then(|| nodes.timers().within(limit, asking))
    });
    join_all(asked).await;
}
