//! Repair: a hold goes on without the nodes that it lost, and takes them back when they answer again. So a hold of hours
//! survives three restarts on three days.
//!
//! 1. Only a valid hold is repaired: one that lost its majority stays lost. This is checked at the moment at which the
//!    child is added.
//! 2. The child is a new hold with its own id, as the last release of the old one may still be repeated.
//! 3. A child of a fixed lease gets what is left of it. A child of a fenced hold counts once its node has the token.
//! 4. A node is asked once it may vote, and then at most once a second.
//! 5. The nodes that still count are asked first whether they have the hold. A forced release reaches one node before the
//!    others; taking that one back would undo it. One that found the hold since the other node was lost is not asked again:
//!    a node that stays busy, or refuses, is tried every second, for each of very many holds.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::UnboundedReceiver;

use super::node::QuorumNode;
use super::nodes::{HoldToRepair, QuorumNodes, QuorumSettings};
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
        for place in invalid {
            let since = *self.lacks_since.entry(place).or_insert(now);
            let node = nodes.node(place);
            let again = self.ask_at.get(&place);
            let is_due = again.is_none_or(|again| now >= *again);
            if !is_due || node.is_silent() || !node.may_vote_at(now) {
                continue;
            }
            self.ask_at.insert(place, now + PAUSE);
            let (quorum, hold) = (Arc::clone(nodes), Arc::clone(hold));
            let request = self.request.clone();
            nodes.start_task(async move {
                look_for_children(&quorum, &hold, since).await;
                if hold.is_held() && take_again(&quorum, &hold, place, request).await == Some(true)
                {
                    let name = Arc::clone(hold.name());
                    log(move || {
                        let server = place + 1;
                        tracing::info!(name = &*name, server, "a server is back in the hold");
                    });
                }
            });
        }
    }
}

/// Asks the nodes of the valid children for those that were not found since then, and waits for each as long as a round
/// would. Those that are gone are lost then; one without an answer stays valid.
async fn look_for_children(nodes: &Arc<QuorumNodes>, hold: &Arc<Composite>, since: Moment) {
    let limit = nodes.timeout_of(hold.lease_now());
    let children = hold.children();
    let valid = children
        .iter()
        .map(|sorts| sorts.iter().flatten().find(|child| child.is_valid()));
    let asked = valid.enumerate().filter_map(|(place, child)| {
        let child = child?.single()?;
        let is_known = child.with(|state| state.found_at()) >= since;
        let asking = verify(nodes.node(place).core(), child);
        (!is_known).then(|| nodes.timers().within(limit, asking))
    });
    join_all(asked).await;
}
