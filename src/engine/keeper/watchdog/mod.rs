//! Keeping holds alive, and telling their holders when that failed.
//!
//! 1. Holds are asked for together; what is due within the next tenth of a period fills up the last batch. Which is
//!    asked for when, and in which batch, is [`asking`](self::asking)'s; by which calls is [`calls`](self::calls)'s.
//! 2. A failed renewal is an unknown one: it is repeated until the validity is over, on a new connection
//!    after a silence. Whatever happens to it, the schedule has an entry not later than that end (I8).
//! 3. The keeper has a connection to each node of a cluster that has holds, or it would not notice that such a node
//!    restarted empty. Where no renewal goes, it asks for the holds once, and that opens the connection.

mod asking;
mod calls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;

use self::asking::{Asking, BATCH, Batch};
use crate::backend::Failure;
use crate::clock::Moment;
use crate::engine::core::{Core, Mail};
use crate::engine::hold::Hold;
use crate::engine::hold::state::{Due, EARLY, Phase};
use crate::engine::keeper::shared::Keeper;
use crate::error::LostReason;
use crate::slot::{Slot, Target};

/// How often the keeper looks for nodes that have holds and that it is not connected to.
const REACH: Duration = Duration::from_secs(1);

/// The holds of each node of a cluster, by its number; of the one server (0) otherwise. The trouble of one does not
/// delay the others.
#[derive(Default)]
pub(super) struct Wards {
    nodes: BTreeMap<u32, Ward>,
    /// When the keeper next looks for nodes that it is not connected to.
    reach_from: Moment,
}

struct Ward {
    asking: Asking<Arc<Hold>>,
    /// Whether all of them are to be asked for once calls are answered again.
    unverified: bool,
}

impl Ward {
    fn new(core: &Core) -> Self {
        // By when a hold ends; nothing once it has ended.
        let config = &core.config;
        let clock = config.clock.clone();
        let end = move |hold: &Arc<Hold>| hold.asked_until(|| clock.now());
        Self {
            asking: Asking::new(config.backoff, config.command_timeout, end),
            unverified: false,
        }
    }
}

impl Wards {
    fn of(&mut self, node: u32, core: &Core) -> &mut Ward {
        self.nodes.entry(node).or_insert_with(|| Ward::new(core))
    }

    fn is_failing(&self, node: u32) -> bool {
        let ward = self.nodes.get(&node);
        ward.is_some_and(|ward| ward.asking.is_failing())
    }

    fn is_troubled(&self) -> bool {
        self.nodes.values().any(|ward| ward.asking.is_troubled())
    }
}

/// The node that has a hold, as far as is known.
fn node_of(core: &Core, hold: &Hold) -> u32 {
    let cluster = core.backend.cluster();
    match hold.kind.names().target() {
        Target::Slot(slot) if cluster.is_joined() => cluster.number_of(slot).unwrap_or(0),
        _ => 0,
    }
}

/// Does what is due now, and plans the rest.
pub(crate) fn look(keeper: &Keeper) {
    let core = &keeper.core;
    let now = core.now();
    if !core.schedule.is_due(now) {
        // What comes soon is left to share the call of the first that is due.
        return;
    }
    let due = sort_out(keeper, core.schedule.take(now, now, BATCH), now);
    if due.is_empty() {
        // Thousands of holds may end at about the same time: none is looked at before its own.
        return;
    }
    for hold in &due {
        let _ = core.schedule.no_later_than(hold, now);
    }
    let period = core.plan.period();
    let (due_by, soon) = (now + period / 100, now + period / 10);
    let mut due = sort_out(keeper, core.schedule.take(due_by, soon, BATCH), now);
    if due.len() > BATCH && core.backend.cluster().is_joined() {
        // What is renewed together now is so again and again: those of one node are one batch.
        due.sort_by_cached_key(|hold| node_of(core, hold));
    }
    want(keeper, &due, false);
}

/// Does what those need that were taken from the schedule; gives back which are to be renewed.
fn sort_out(keeper: &Keeper, holds: Vec<Arc<Hold>>, now: Moment) -> Vec<Arc<Hold>> {
    let core = &keeper.core;
    // An entry is up to a tenth of a period before its renewal; further only when an answer came late, and
    // then it is looked at again.
    let horizon = now + core.plan.period() / 5;
    let mut due = Vec::new();
    for hold in holds {
        let (what, phase) = hold.with(|state| {
            let what = state.due(core.plan, now, horizon, core.jitter());
            if what == Due::Lose {
                state.lose(LostReason::Expired);
            }
            (what, state.phase())
        });
        match (what, phase) {
            (Due::Renew, _) => due.push(hold),
            (Due::Later(moment), _) => drop(core.schedule.no_later_than(&hold, moment)),
            (Due::Finish, _) => finish(core, &hold),
            // Its holder knows by now. Thousands may end at about the same time: what else is to be done for one
            // must not keep the next holder waiting.
            (Due::Lose | Due::Nothing, Phase::Lost(reason)) => core.post(Mail::Lost(hold, reason)),
            (Due::Lose | Due::Nothing, _) => {}
        }
    }
    due
}

/// Has every hold at these nodes asked for: a connection was broken, Redis may have restarted. While nothing is
/// answered that is left to the end of the trouble: connections may break as long as that lasts.
pub(super) fn verify_at(keeper: &Keeper, nodes: &BTreeSet<u32>) {
    let core = &keeper.core;
    let mut nodes = nodes.clone();
    {
        let mut wards = keeper.wards.lock();
        nodes.retain(|node| {
            let failing = wards.is_failing(*node);
            wards.of(*node, core).unverified |= failing;
            !failing
        });
    }
    verify_where(keeper, |hold| nodes.contains(&node_of(core, hold)));
}

/// Has every hold of these slots asked for: another node has them now, which may know less.
pub(super) fn verify_in(keeper: &Keeper, slots: &BTreeSet<Slot>) {
    verify_where(keeper, |hold| match hold.kind.names().target() {
        Target::Slot(slot) => slots.contains(&slot),
        _ => false,
    });
}

/// Asks for the holds of nodes that the keeper is not connected to, from time to time.
pub(super) fn reach(keeper: &Keeper) {
    let core = &keeper.core;
    let cluster = core.backend.cluster();
    if core.schedule.is_empty() || !cluster.is_joined() {
        return;
    }
    let now = core.now();
    {
        let mut wards = keeper.wards.lock();
        if now < wards.reach_from {
            return;
        }
        wards.reach_from = now + REACH;
    }
    let reached = core.keeper_fleet.reached();
    let nodes = cluster.nodes().into_iter().map(|node| node.number());
    let unreached: BTreeSet<_> = nodes.filter(|node| !reached.contains(node)).collect();
    if !unreached.is_empty() {
        verify_where(keeper, |hold| unreached.contains(&node_of(core, hold)));
    }
}

fn verify_where(keeper: &Keeper, is_meant: impl Fn(&Hold) -> bool) {
    let mut holds = keeper.core.holds();
    holds.retain(|hold| hold.phase() == Phase::Held && is_meant(hold));
    want(keeper, &holds, true);
}

/// Has one hold asked for, soon.
pub(crate) fn verify(keeper: &Keeper, hold: &Arc<Hold>) {
    want(keeper, std::slice::from_ref(hold), true);
    keeper.core.look.notify_one();
}

fn want(keeper: &Keeper, holds: &[Arc<Hold>], again: bool) {
    let core = &keeper.core;
    let period = core.now() + core.plan.period();
    for batch in holds.chunks(BATCH) {
        // When the next renewal will be due, so that one that succeeds need not move the entries; the same
        // moment for all, so that they stay neighbours.
        let next = period.minus(core.jitter());
        let mut wards = keeper.wards.lock();
        for hold in batch {
            // One that was passed on is asked for, and not looked at.
            let end = hold.valid_until();
            if end > Moment::default() {
                let _ = core
                    .schedule
                    .no_later_than(hold, next.min(end.minus(EARLY)));
            }
            let ward = wards.of(node_of(core, hold), core);
            ward.asking.want(hold.number, Arc::clone(hold), again);
        }
    }
}

/// Makes the calls that may be made now. When there is one to make next.
pub(crate) fn ask(keeper: &Arc<Keeper>, chores: &mut JoinSet<()>) -> Moment {
    let now = keeper.core.now();
    let mut wards = keeper.wards.lock();
    let mut next = Moment::NEVER;
    for (node, Ward { asking, .. }) in &mut wards.nodes {
        while let Some(batch) = asking.take(now) {
            chores.spawn(renew_batch(Arc::clone(keeper), *node, batch));
        }
        next = next.min(asking.next(now));
    }
    // A node may have left.
    wards
        .nodes
        .retain(|_, ward| ward.unverified || !ward.asking.is_idle());
    next
}

/// An attempt or a release that is overdue. Callers have no timer for them: this is what ends their wait.
fn finish(core: &Core, hold: &Arc<Hold>) {
    let names = hold.kind.names();
    if let Some(command) = core.at(names, |gate, effects| gate.overdue(hold, effects)) {
        command.overdue();
    }
}

/// Asks for the holds of one batch.
async fn renew_batch(keeper: Arc<Keeper>, node: u32, batch: Batch<Arc<Hold>>) {
    let (answers, failure) = calls::ask_for(&keeper, batch).await;
    let (unverified, troubled) = {
        let mut wards = keeper.wards.lock();
        let ward = wards.of(node, &keeper.core);
        ward.asking.answered(answers.into_iter(), keeper.core.now());
        let works = !ward.asking.is_failing();
        let unverified = works && std::mem::take(&mut ward.unverified);
        (unverified, wards.is_troubled())
    };
    keeper.tell_trouble(troubled, failure);
    if unverified {
        verify_at(&keeper, &BTreeSet::from([node]));
    }
}

impl Keeper {
    /// Tells the beginning and the end of an outage, once each.
    fn tell_trouble(&self, troubled: bool, failure: Option<Failure>) {
        // The flag orders nothing: it is only ever changed here, on the keeper's thread.
        if self.renewals_failing.swap(troubled, Ordering::Relaxed) == troubled {
            return;
        }
        if troubled {
            let cause = failure.map(|failure| failure.to_string());
            let cause = cause.as_deref().unwrap_or("refused for single holds");
            tracing::warn!(cause, "renewals fail; repeated until the leases end");
        } else {
            tracing::info!("renewals work again");
        }
    }
}
