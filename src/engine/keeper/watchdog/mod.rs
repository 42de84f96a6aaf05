//! Keeps holds alive, and reports their loss in time.
//!
//! 1. To renew a hold, the keeper asks Redis what a caller asks to verify it. The [`RenewalQueue`] of a node decides
//!    which hold is asked for when. The questions of a batch are one pipeline; what cannot be answered there is asked
//!    alone. Holds that are due within the next tenth of a period fill up the last batch.
//! 2. A question also asserts the hold (T5): it lengthens the TTL to what the client still vouches for, because a server
//!    whose clock is ahead ends leases early. The validity grows only by the watchdog's lease (T2: by what an answer
//!    acknowledged).
//! 3. After a failed renewal nobody knows whether the hold is there. The keeper repeats it until the validity is over,
//!    on a new connection after a silence. Meanwhile the schedule has an entry no later than that end (I8: a loss is
//!    reported before the validity ends).
//! 4. In a cluster, the keeper keeps a connection to each node that has holds, to notice when such a node restarts
//!    empty. It verifies the holds of a node that it has no connection to, and that opens one.
//! 5. With the first renewal of each lease, and after a connection broke, the keeper asks the server for its role, in the
//!    same write: a master that became a replica and still takes writes refuses nothing.

mod renewal_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::task::JoinSet;

pub(super) use self::renewal_queue::BATCH;
use self::renewal_queue::{RenewalBatch, RenewalOutcome, RenewalQueue};
use crate::backend::{Class, CommandResult, Failure, MIN_SILENCE, Pending, TimedReply};
use crate::clock::Moment;
use crate::config::Config;
use crate::engine::core::{Core, Mail};
use crate::engine::gate::ticket::{Patience, Ticket};
use crate::engine::hold::Hold;
use crate::engine::hold::state::{Due, EARLY, Phase};
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::log::log;
use crate::script::Call;
use crate::slot::{Slot, Target};

/// How often the keeper looks for nodes that have holds and that it is not connected to.
const CONNECT_PERIOD: Duration = Duration::from_secs(1);

/// Renews all holds of a client.
pub(super) struct Watchdog {
    core: Arc<Core>,
    renewals: Mutex<ByNode>,
}

/// What is to be renewed, by the number of the node; 0 is the one server. The outage of one node does not delay the
/// holds of another.
#[derive(Default)]
struct ByNode {
    nodes: BTreeMap<u32, NodeRenewals>,
    /// Renewals fail at the moment, and that was logged.
    logged_failing: bool,
    /// When to look again for nodes without a connection.
    connect_at: Moment,
    /// When to ask the one server for its role again.
    role_at: Moment,
}

struct NodeRenewals {
    queue: RenewalQueue<Arc<Hold>>,
    /// Verify all holds of the node once it answers again.
    unverified: bool,
}

impl ByNode {
    fn of(&mut self, node: u32, core: &Core) -> &mut NodeRenewals {
        self.nodes.entry(node).or_insert_with(|| {
            let (config, clock) = (&core.config, core.config.clock.clone());
            let end = move |hold: &Arc<Hold>| hold.asked_until(|| clock.now());
            NodeRenewals {
                queue: RenewalQueue::new(config.backoff, config.command_timeout, end),
                unverified: false,
            }
        })
    }

    /// Logs the beginning and the end of an outage, once each.
    fn log_outage(&mut self, failure: Option<Failure>) {
        let failing = self.nodes.values().any(|node| node.queue.has_trouble());
        if std::mem::replace(&mut self.logged_failing, failing) == failing {
            return;
        }
        if failing {
            let cause = failure.map(|failure| failure.to_string());
            log(move || {
                let cause = cause.as_deref().unwrap_or("refused for single holds");
                tracing::warn!(cause, "cannot renew leases; retrying until they expire");
            });
        } else {
            log(|| tracing::info!("renewals work again"));
        }
    }
}

/// The node that has a hold, as far as is known.
pub(super) fn node_of(core: &Core, hold: &Hold) -> u32 {
    let cluster = core.backend.cluster();
    match hold.kind.names().target() {
        Target::Slot(slot) if cluster.is_joined() => cluster.number_of(slot).unwrap_or(0),
        _ => 0,
    }
}

impl Watchdog {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            renewals: Mutex::default(),
        }
    }

    /// Handles the holds that are due now, and queues their renewals.
    pub(super) fn look(&self) {
        let core = &self.core;
        let now = core.now();
        if !core.schedule.is_due(now) {
            // A hold that is due soon waits, to share the batch of the first that is due.
            return;
        }
        let due = self.sort_out(core.schedule.take(now, now, BATCH), now);
        if due.is_empty() {
            // Thousands of holds may expire at about the same time, so no renewal is moved forward here.
            return;
        }
        for hold in &due {
            let _ = core.schedule.no_later_than(hold, now);
        }
        let period = core.plan.period();
        let (due_by, soon) = (now + period / 100, now + period / 10);
        let mut due = self.sort_out(core.schedule.take(due_by, soon, BATCH), now);
        if due.len() > BATCH && core.backend.cluster().is_joined() {
            // Holds that are renewed together stay together from now on, so each batch has holds of one node.
            due.sort_by_cached_key(|hold| node_of(core, hold));
        }
        self.want(&due, false);
    }

    /// Handles the holds that were taken from the schedule. Returns those to renew.
    fn sort_out(&self, holds: Vec<Arc<Hold>>, now: Moment) -> Vec<Arc<Hold>> {
        let core = &self.core;
        // An entry comes up to a tenth of a period before its renewal. One that comes earlier was late in moving, and
        // is planned again.
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
                // The holder knows by now. The clean-up waits, because the next of thousands of holders must learn of
                // its loss in time.
                (Due::Lose | Due::Nothing, Phase::Lost(reason)) => {
                    core.post(Mail::Lost(hold, reason));
                }
                (Due::Lose | Due::Nothing, _) => {}
            }
        }
        due
    }

    /// Verifies every hold at these nodes: a connection broke, so Redis may have restarted. A node whose renewals fail
    /// waits until it answers again, because its connections may break until then.
    pub(super) fn verify_at(&self, nodes: &BTreeSet<u32>) {
        let core = &self.core;
        let mut nodes = nodes.clone();
        {
            let mut renewals = self.renewals.lock();
            renewals.role_at = Moment::default();
            nodes.retain(|node| {
                let node = renewals.of(*node, core);
                let failing = node.queue.is_failing();
                node.unverified |= failing;
                !failing
            });
        }
        self.verify_where(|hold| nodes.contains(&node_of(core, hold)));
    }

    /// Verifies every hold of these slots: they moved to another node, which may not have all keys.
    pub(super) fn verify_in(&self, slots: &BTreeSet<Slot>) {
        self.verify_where(|hold| match hold.kind.names().target() {
            Target::Slot(slot) => slots.contains(&slot),
            _ => false,
        });
    }

    /// Verifies the holds of nodes that the keeper has no connection to (rule 4: that opens one).
    pub(super) fn connect_to_all(&self) {
        let core = &self.core;
        let cluster = core.backend.cluster();
        if core.schedule.is_empty() || !cluster.is_joined() {
            return;
        }
        let now = core.now();
        {
            let mut renewals = self.renewals.lock();
            if now < renewals.connect_at {
                return;
            }
            renewals.connect_at = now + CONNECT_PERIOD;
        }
        let reached = core.keeper_fleet.reached();
        let nodes = cluster.nodes().into_iter().map(|node| node.number());
        let unreached: BTreeSet<_> = nodes.filter(|node| !reached.contains(node)).collect();
        if !unreached.is_empty() {
            self.verify_where(|hold| unreached.contains(&node_of(core, hold)));
        }
    }

    fn verify_where(&self, is_meant: impl Fn(&Hold) -> bool) {
        let mut holds = self.core.holds();
        holds.retain(|hold| hold.phase() == Phase::Held && is_meant(hold));
        self.want(&holds, true);
    }

    /// Verifies one hold soon.
    pub(super) fn verify(&self, hold: &Arc<Hold>) {
        self.want(std::slice::from_ref(hold), true);
        self.core.look.notify_one();
    }

    fn want(&self, holds: &[Arc<Hold>], again: bool) {
        let core = &self.core;
        let period = core.now() + core.plan.period();
        for batch in holds.chunks(BATCH) {
            // When the next renewal is due, so that a renewal that succeeds need not move its entry. It is the same
            // moment for the whole batch, so that its holds stay together.
            let next = period.minus(core.jitter());
            let mut renewals = self.renewals.lock();
            for hold in batch {
                // A hold that was passed on has no validity: it is asked for but not scheduled.
                let end = hold.valid_until();
                if end > Moment::default() {
                    let look = next.min(end.minus(EARLY));
                    let _ = core.schedule.no_later_than(hold, look);
                }
                let node = renewals.of(node_of(core, hold), core);
                node.queue.want(hold.number, Arc::clone(hold), again);
            }
        }
    }

    /// Starts the renewals that may start now. Returns when the next ones may.
    pub(super) fn renew(self: &Arc<Self>, tasks: &mut JoinSet<()>) -> Moment {
        let now = self.core.now();
        let mut renewals = self.renewals.lock();
        let ByNode { nodes, role_at, .. } = &mut *renewals;
        let mut next = Moment::NEVER;
        for (node, NodeRenewals { queue, .. }) in nodes {
            while let Some(batch) = queue.take(now) {
                if *node == 0 && now >= *role_at {
                    *role_at = now + self.core.plan.lease.duration();
                    let core = Arc::clone(&self.core);
                    tasks.spawn(async move { core.backend.check_roles(&core.keeper_fleet).await });
                }
                tasks.spawn(Arc::clone(self).renew_batch(*node, batch));
            }
            next = next.min(queue.next(now));
        }
        // A node may have left the cluster.
        renewals
            .nodes
            .retain(|_, node| node.unverified || !node.queue.is_idle());
        next
    }

    /// Asks for the holds of one batch.
    async fn renew_batch(self: Arc<Self>, node: u32, batch: RenewalBatch<Arc<Hold>>) {
        let RenewalBatch { holds, timeout } = batch;
        let core = &self.core;
        let answers = ask_together(core, &holds, timeout).await;
        let alone = |(number, hold, answer): (u64, Arc<Hold>, Option<Result<(), Failure>>)| async move {
            let verified = match answer {
                Some(verified) => verified,
                None => ask_for(core, &hold, timeout).await,
            };
            (number, hold, verified.err())
        };
        let answered = holds.into_iter().zip(answers);
        let answers =
            join_all(answered.map(|((number, hold), answer)| alone((number, hold, answer)))).await;
        let failure = answers.iter().find_map(|(.., failure)| failure.clone());
        let outcomes = answers.into_iter().map(|(number, hold, failure)| {
            let outcome = failure.map_or(RenewalOutcome::Answered, |failure| {
                outcome_of(&failure, timeout)
            });
            (number, hold, outcome)
        });
        let verifies_all = {
            let mut renewals = self.renewals.lock();
            let node = renewals.of(node, &self.core);
            node.queue.answered(outcomes, self.core.now());
            let verifies_all = !node.queue.is_failing() && std::mem::take(&mut node.unverified);
            renewals.log_outage(failure);
            verifies_all
        };
        if verifies_all {
            self.verify_at(&BTreeSet::from([node]));
        }
    }
}

/// Ends an attempt or a release that is overdue. Its caller has no timer of its own.
fn finish(core: &Core, hold: &Arc<Hold>) {
    let names = hold.kind.names();
    let attempt = core.gates.with(names, |gate| gate.attempt_at(hold));
    let now = core.now();
    if let Some((command, ticket)) = attempt {
        let due = overdue_from(core, &command, &ticket);
        if due > now && ticket.is_waiting() {
            hold.with(|state| state.finish_later(due));
            return core.look_by(hold, due);
        }
    }
    if let Some(command) = core.at(names, |gate, effects| gate.overdue(hold, effects)) {
        command.overdue();
    }
}

/// From when an attempt is overdue: a command time-out after its command was handed over to a connection, and at the end
/// of its caller's wait. A caller that waits for ever does so until nothing was heard for
/// [`unavailable_after`](crate::ClientBuilder::unavailable_after), if its command was not handed over.
fn overdue_from(core: &Core, command: &Pending, ticket: &Ticket) -> Moment {
    let Config {
        command_timeout,
        unavailable_after,
        ..
    } = core.config;
    let request = &ticket.request;
    let handed_over_at = command.handed_over_at();
    let is_unsent = handed_over_at == Moment::NEVER;
    let end = match request.patience {
        Patience::Forever if is_unsent => request.since.max(command.heard_at()) + unavailable_after,
        _ => request.returns_by(command_timeout),
    };
    let from = if is_unsent {
        core.now()
    } else {
        handed_over_at
    };
    end.min(from + command_timeout)
}

/// What a question that failed says about its hold.
fn outcome_of(failure: &Failure, timeout: Duration) -> RenewalOutcome {
    let waited = !failure.is_unanswered() || timeout >= MIN_SILENCE;
    if failure.is_transient() && waited {
        RenewalOutcome::Failed
    } else {
        RenewalOutcome::Refused
    }
}

/// A question whether a hold is there.
struct RenewalQuestion {
    /// By how much the answer prolongs the hold, if it is under the watchdog.
    renewed: Option<LeaseMs>,
    /// What is left in Redis at least.
    written: LeaseMs,
}

impl RenewalQuestion {
    fn about(core: &Core, hold: &Hold) -> Self {
        let (watched, lease_ends) = hold.with(|state| (state.is_watched(), state.lease_ends()));
        let renewed = watched.then_some(core.plan.lease);
        let left = LeaseMs::left(core.now().until(lease_ends));
        Self {
            renewed,
            written: renewed.map_or(left, |lease| lease.max(left)),
        }
    }

    /// Acts on the answer.
    fn answered(&self, core: &Core, hold: &Arc<Hold>, answer: &TimedReply) -> Result<(), Failure> {
        match hold.kind.found(&answer.reply) {
            Some(true) => renewed_for(core, hold, self.renewed, answer),
            Some(false) => core.lose(hold, LostReason::Missing),
            None => return Err(Failure::strange_reply()),
        }
        Ok(())
    }
}

/// Asks for many holds in one pipeline, and acts on the answers. A hold without a result must be asked for alone.
async fn ask_together(
    core: &Core,
    holds: &[(u64, Arc<Hold>)],
    timeout: Duration,
) -> Vec<Option<Result<(), Failure>>> {
    if core.keeper_fleet.acknowledges() {
        return vec![None; holds.len()];
    }
    let questions: Vec<_> = holds
        .iter()
        .map(|(_, hold)| RenewalQuestion::about(core, hold))
        .collect();
    let asked = holds.iter().zip(&questions);
    let calls =
        asked.map(|((_, hold), question)| (&**hold, hold.kind.verify(&hold.id, question.written)));
    let answers = core.ask_together(calls, timeout).await;
    let asked = holds.iter().zip(&questions).zip(answers);
    asked
        .map(|(((_, hold), question), answer)| {
            let answer = answer?;
            Some(answer.and_then(|answer| question.answered(core, hold, &answer)))
        })
        .collect()
}

/// Asks whether a hold is there, and acts on the answer.
async fn ask_for(core: &Core, hold: &Arc<Hold>, timeout: Duration) -> Result<(), Failure> {
    let question = RenewalQuestion::about(core, hold);
    let written = question.written;
    let answer = match send(core, hold.kind.verify(&hold.id, written), timeout).await {
        Err(failure) if failure.class == Class::Split => {
            ask_key_by_key(core, hold, written, timeout, failure).await
        }
        result => result,
    }?;
    question.answered(core, hold, &answer)
}

/// Asks by calls with one key each, after a call with all keys failed: the migration of their slot may take longer than
/// a lease.
async fn ask_key_by_key(
    core: &Core,
    hold: &Hold,
    lease: LeaseMs,
    timeout: Duration,
    split: Failure,
) -> CommandResult {
    let Some(first) = hold.kind.verify_apart(&hold.id, lease, None) else {
        return Err(split);
    };
    let answer = send(core, first, timeout).await?;
    if let Some(rest) = hold.kind.verify_apart(&hold.id, lease, Some(&answer.reply)) {
        send(core, rest, timeout).await?;
    }
    Ok(answer)
}

async fn send(core: &Core, question: Call<'_>, timeout: Duration) -> CommandResult {
    let fleet = &core.keeper_fleet;
    let min_silence = MIN_SILENCE + fleet.acknowledged_within();
    let sent = Pending::start(fleet, question);
    sent.within_one_try(timeout, min_silence).await
}

/// Redis has the hold, and with `lease` it has it for that long.
fn renewed_for(core: &Core, hold: &Arc<Hold>, lease: Option<LeaseMs>, answer: &TimedReply) {
    let now = core.now();
    let due = hold.with(|state| {
        match lease {
            Some(lease) => state.prolong(lease.term(answer.sent_at), now),
            None => state.asserted(answer.sent_at, now),
        }
        state.due(core.plan, now, now, Duration::ZERO)
    });
    if let Due::Later(moment) = due {
        let _ = core.schedule.no_later_than(hold, moment);
    }
}
