//! Keeps holds alive, and reports their loss in time.
//!
//! 1. To renew a hold, the keeper asks Redis what a caller asks to verify it. The [`RenewalQueue`] of a node decides
//!    which hold is asked for when. The questions of a batch are one pipeline; what cannot be answered there is asked
//!    alone. Holds that are due within the next tenth of a period fill up the last batch.
//! 2. A question also asserts the hold (T5): it lengthens the TTL to what the client still vouches for, because a server
//!    whose clock is ahead ends leases early. The validity grows only by the watchdog's lease (T2: by what an answer
//!    acknowledged).
//! 3. After a failed renewal nobody knows whether the hold is there. The keeper repeats it until the validity is over,
//!    on a new connection after a silence. It still listens to a try that was not answered in time, for a lease: a hold
//!    id is never used again, so a late answer is as good as an early one, counted from its own send. Meanwhile the
//!    schedule has an entry no later than that end (I8: a loss is reported before the validity ends).
//! 4. In a cluster, the keeper keeps a connection to each node that has holds, to notice when such a node restarts
//!    empty. It verifies the holds of a node that it has no connection to, and that opens one.
//! 5. With the first renewal of each lease, and after a connection broke, the keeper asks the server for its role, in the
//!    same write: a master that became a replica and still takes writes refuses nothing.

mod renewal_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio::task::JoinSet;

pub(super) use self::renewal_queue::BATCH;
use self::renewal_queue::{RenewalBatch, RenewalOutcome, RenewalQueue};
use crate::backend::{Class, CommandResult, Failure, MIN_SILENCE, Pending, TimedReply};
use crate::clock::Moment;
use crate::config::Config;
use crate::engine::caller::acquire::ANSWER_SEEN_AFTER;
use crate::engine::core::{Core, Mail, RepliesTogether};
use crate::engine::gate::ticket::{GRACE, Patience, Ticket};
use crate::engine::hold::Hold;
use crate::engine::hold::state::{Due, EARLY, HoldState, Phase};
use crate::error::LostReason;
use crate::host::own;
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
    /// Renewals fail at the moment.
    failing: bool,
    /// That was logged, and no renewal was answered since.
    logged: bool,
    /// When to look again for nodes without a connection.
    connect_at: Moment,
    /// When to ask the one server for its role again.
    role_at: Moment,
}

struct NodeRenewals {
    queue: RenewalQueue,
    /// Verify all holds of the node once its renewals do not fail any more.
    unverified: bool,
}

impl NodeRenewals {
    /// Whether to verify all holds of the node now. Returns true once.
    fn verifies_all(&mut self) -> bool {
        !self.queue.is_failing() && std::mem::take(&mut self.unverified)
    }
}

impl ByNode {
    fn of(&mut self, node: u32, core: &Core) -> &mut NodeRenewals {
        self.nodes.entry(node).or_insert_with(|| {
            let config = &core.config;
            let longest = config.command_timeout;
            let shortest = longest.min(config.watchdog_lease / 4);
            NodeRenewals {
                queue: RenewalQueue::new(config.backoff, shortest..=longest, config.clock.clone()),
                unverified: false,
            }
        })
    }

    /// Reports whether renewals fail. Without a hold that cannot be renewed, none do.
    fn report(&mut self, core: &Core) {
        let failing = self.nodes.values().any(|node| node.queue.has_trouble());
        if failing != self.failing {
            core.report.renewals_fail(failing.then(|| core.now()));
        }
        self.failing = failing;
    }

    /// Logs the beginning and the end of an outage, once each. It does not end with the last hold that cannot be renewed,
    /// but with a renewal that was `answered`.
    fn log_outage(&mut self, core: &Core, failure: Option<Failure>, answered: bool) {
        self.report(core);
        let failing = self.failing;
        if failing && !std::mem::replace(&mut self.logged, true) {
            let cause = failure.map(|failure| failure.to_string());
            log(move || {
                let cause = cause.as_deref().unwrap_or("refused for single holds");
                tracing::warn!(cause, "cannot renew leases; retrying until they expire");
            });
        } else if answered && !failing && std::mem::take(&mut self.logged) {
            log(|| tracing::info!("renewals work again"));
        }
    }
}

/// The node that has a hold, as far as is known.
pub(super) fn node_of(core: &Core, hold: &Hold) -> u32 {
    let cluster = &core.backend.cluster;
    match hold.kind.names.target() {
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
        let period = core.watchdog_lease.period();
        let (due_by, soon) = (now + period / 100, now + period / 10);
        let mut due = self.sort_out(core.schedule.take(due_by, soon, BATCH), now);
        if due.len() > BATCH && core.backend.cluster.is_joined() {
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
        let horizon = now + core.watchdog_lease.period() / 5;
        let mut due = Vec::new();
        for hold in holds {
            let (what, phase) = hold.with(|state| {
                let what = state.due(core.watchdog_lease, now, horizon, core.jitter());
                if what == Due::Lose {
                    state.lose(LostReason::Expired);
                }
                (what, state.phase())
            });
            match (what, phase) {
                (Due::Renew, _) => due.push(hold),
                (Due::Later(moment), _) => drop(core.schedule.no_later_than(&hold, moment)),
                // Behind the losses, a few at a time.
                (Due::Finish, _) => core.post(Mail::Finish(hold)),
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
    /// waits until it answers again, because its connections may break until then; or until none of the holds is left
    /// that could not be renewed, because then nobody asks whether it answers.
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
        self.verify_where(|hold| match hold.kind.names.target() {
            Target::Slot(slot) => slots.contains(&slot),
            _ => false,
        });
    }

    /// Verifies the holds of nodes that the keeper has no connection to (rule 4: that opens one).
    pub(super) fn connect_to_all(&self) {
        let core = &self.core;
        let cluster = &core.backend.cluster;
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
        let reached = core.backend.keepers.reached();
        let nodes = cluster.nodes().into_iter().map(|node| node.number);
        let unreached: BTreeSet<_> = nodes.filter(|node| !reached.contains(node)).collect();
        if !unreached.is_empty() {
            self.verify_where(|hold| unreached.contains(&node_of(core, hold)));
        }
    }

    /// An attempt may be answered later by the node that has lost it: it is verified once it is granted.
    fn verify_where(&self, is_meant: impl Fn(&Hold) -> bool) {
        let now = self.core.now();
        let mut holds = self.core.holds();
        holds.retain(|hold| is_meant(hold) && hold.doubt(now) == Phase::Held);
        self.want(&holds, true);
    }

    pub(super) fn verify(&self, hold: &Arc<Hold>) {
        self.want(std::slice::from_ref(hold), true);
        self.core.look.notify_one();
    }

    fn want(&self, holds: &[Arc<Hold>], again: bool) {
        let core = &self.core;
        let period = core.now() + core.watchdog_lease.period();
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
                } else if let Phase::Lost(reason) = hold.phase() {
                    // Its holder saw that after the keeper's look at it, so no other look comes.
                    core.post(Mail::Lost(Arc::clone(hold), reason));
                }
                let node = renewals.of(node_of(core, hold), core);
                node.queue.want(hold, again);
            }
        }
    }

    /// Starts the renewals that may start now. Returns when the next ones may.
    pub(super) fn renew(self: &Arc<Self>, tasks: &mut JoinSet<()>) -> Moment {
        let now = self.core.now();
        let mut renewals = self.renewals.lock();
        let ByNode { nodes, role_at, .. } = &mut *renewals;
        let mut next = Moment::NEVER;
        let mut unverified = BTreeSet::new();
        for (number, node) in nodes {
            while let Some(batch) = node.queue.take(now) {
                if *number == 0 && now >= *role_at {
                    *role_at = now + self.core.watchdog_lease.duration();
                    let core = Arc::clone(&self.core);
                    tasks.spawn(own(async move {
                        core.backend.check_roles().await;
                    }));
                }
                tasks.spawn(own(Arc::clone(self).renew_batch(*number, batch)));
            }
            next = next.min(node.queue.next(now));
            if node.verifies_all() {
                // Its outage ended with the last hold that could not be renewed.
                unverified.insert(*number);
            }
        }
        renewals.report(&self.core);
        // A node may have left the cluster.
        renewals
            .nodes
            .retain(|_, node| node.unverified || !node.queue.is_idle());
        drop(renewals);
        if !unverified.is_empty() {
            self.verify_at(&unverified);
            self.core.look.notify_one();
        }
        next
    }

    /// Asks Redis for the holds of one batch, and records the outcomes.
    async fn renew_batch(self: Arc<Self>, node: u32, batch: RenewalBatch) {
        let RenewalBatch { holds, timeout } = batch;
        let asking = Asking {
            core: &self.core,
            timeout,
            late: Mutex::default(),
        };
        let answers = asking.together(&holds).await;
        let alone = |(hold, answer): (Arc<Hold>, Option<Result<(), Failure>>)| {
            let asking = &asking;
            async move {
                let verified = match answer {
                    Some(verified) => verified,
                    None => asking.alone(&hold).await,
                };
                (hold, verified.err())
            }
        };
        let answers = join_all(holds.into_iter().zip(answers).map(alone)).await;
        for _ in answers.iter().filter(|(_, failure)| failure.is_some()) {
            self.core.config.metrics.renewal("failed");
        }
        let failure = answers.iter().find_map(|(_, failure)| failure.clone());
        let late = asking.late.into_inner();
        // That a hold is gone proves nothing: the script may return before the command that Redis refuses.
        let is_renewed = |hold: &Hold, failure: &Option<Failure>| {
            failure.is_none() && hold.phase() == Phase::Held
        };
        let mut outcomes = answers.iter();
        let answered = outcomes.any(|(hold, failure)| is_renewed(hold, failure));
        self.record(node, failure, answered, |queue| {
            for (hold, failure) in &answers {
                if failure.is_none() && self.is_due_again(hold) {
                    queue.want(hold, true);
                }
            }
            let outcomes = answers.into_iter().map(|(hold, failure)| {
                let outcome = failure.map_or(RenewalOutcome::Answered, |failure| {
                    outcome_of(&failure, timeout)
                });
                (hold, outcome)
            });
            queue.answered(outcomes, self.core.now());
        });
        let late = late.into_iter().map(|late| async {
            if late.await {
                self.record(node, None, true, RenewalQueue::answered_late);
            }
        });
        join_all(late).await;
    }

    /// Whether the answer for a hold took longer than a period, so that its next renewal is due.
    fn is_due_again(&self, hold: &Hold) -> bool {
        let now = self.core.now();
        let due =
            |state: &mut HoldState| state.due(self.core.watchdog_lease, now, now, Duration::ZERO);
        hold.with(due) == Due::Renew
    }

    /// Records what asking for holds of a node came to.
    fn record(
        &self,
        node: u32,
        failure: Option<Failure>,
        answered: bool,
        record: impl FnOnce(&mut RenewalQueue),
    ) {
        let verifies_all = {
            let mut renewals = self.renewals.lock();
            let node = renewals.of(node, &self.core);
            record(&mut node.queue);
            let verifies_all = node.verifies_all();
            renewals.log_outage(&self.core, failure, answered);
            verifies_all
        };
        if verifies_all {
            self.verify_at(&BTreeSet::from([node]));
        }
        // The next batch may be sent.
        self.core.look.notify_one();
    }
}

/// Ends an attempt or a release that is overdue, and an attempt that was answered and whose caller is not polled. Callers
/// have no timers of their own.
pub(super) fn finish(core: &Core, hold: &Arc<Hold>) {
    let names = &hold.kind.names;
    let attempt = core.gates.with(names, |gate| gate.attempt_at(hold));
    let now = core.now();
    let tried = attempt.as_ref().map(|(command, _)| command.clone());
    if let Some((command, ticket)) = attempt {
        let due = overdue_from(core, &command, &ticket);
        // What was sent may be granted though its caller is gone: to end it would leave that unknown.
        let sent_at = Some(command.submitted_at()).filter(|at| *at != Moment::NEVER);
        let goes_on = ticket.is_waiting() || sent_at.is_some();
        if due > now && goes_on && !command.is_answered() {
            // So the answer is seen after twice the time that it took, however slow the server is.
            let since = sent_at.unwrap_or(ticket.request.since);
            let mut due = due.min(now + since.until(now).max(ANSWER_SEEN_AFTER));
            // Its caller may wait for less.
            let end = ticket.request.returns_by(core.config.command_timeout) + GRACE;
            if sent_at.is_some() && end > now {
                due = due.min(end);
            } else if sent_at.is_some() {
                let since = since.max(core.runs_since());
                core.at(names, now, |gate, effects| {
                    gate.end_wait(&ticket, since, effects);
                });
            }
            hold.with(|state| state.finish_later(due));
            return core.look_by(hold, due);
        }
    }
    let ended = core.at(names, now, |gate, effects| {
        // By now its caller may have the answer, and a release may be under way.
        let same = gate.attempt_at(hold).map(|(command, _)| command) == tried;
        let due = tried.is_some() || now >= effects.change(hold, |state| state.finish_by());
        (same && due).then(|| gate.overdue(hold, effects)).flatten()
    });
    match (ended, tried) {
        (Some(command), Some(_)) => command.overdue(),
        // The keeper completes a release.
        (Some(command), None) => command.times_out_caller(),
        (None, _) => {}
    }
}

/// When an attempt is overdue: a command time-out after its command was submitted to a connection, counted anew after
/// a pause of the process. Before the submission, when its caller's wait ends; a wait without a limit ends when nothing was
/// heard for [`unavailable_after`](crate::ClientBuilder::unavailable_after), but not before a single try would.
fn overdue_from(core: &Core, command: &Pending, ticket: &Ticket) -> Moment {
    let Config {
        command_timeout,
        unavailable_after,
        ..
    } = core.config;
    let request = &ticket.request;
    let submitted_at = command.submitted_at();
    if submitted_at != Moment::NEVER {
        return submitted_at.max(core.runs_since()) + command_timeout;
    }
    let end = match request.patience {
        Patience::Forever => {
            let silent_since = command.silent_from(request.since);
            silent_since.max(core.runs_since()) + unavailable_after.max(command_timeout)
        }
        _ => request.returns_by(command_timeout),
    };
    end.min(core.now() + command_timeout)
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
    hold: Arc<Hold>,
    /// By how much the answer prolongs the hold, if it is under the watchdog.
    renewed: Option<LeaseMs>,
    /// What is left in Redis at least.
    written: LeaseMs,
}

impl RenewalQuestion {
    fn about(core: &Core, hold: &Arc<Hold>) -> Self {
        let (renewed, written) = core.vouched(hold);
        Self {
            hold: Arc::clone(hold),
            renewed,
            written,
        }
    }

    fn call(&self) -> Call<'_> {
        self.hold.kind.verify(&self.hold.id, self.written)
    }

    fn answered(&self, core: &Core, answer: &TimedReply) -> Result<(), Failure> {
        match answer.reply.found() {
            Some(true) => {
                core.config.metrics.renewal("held");
                renewed_for(core, &self.hold, self.renewed, answer);
            }
            Some(false) => {
                core.config.metrics.renewal("missing");
                core.lose(&self.hold, LostReason::Missing);
            }
            None => return Err(Failure::strange_reply()),
        }
        Ok(())
    }
}

/// Asks for the holds of one batch. A hold whose answer does not come within `timeout` counts as unanswered for now.
struct Asking<'a> {
    core: &'a Arc<Core>,
    timeout: Duration,
    /// They listen for the answers that did not come in time. Each returns whether its answer came.
    late: Mutex<Vec<BoxFuture<'static, bool>>>,
}

impl Asking<'_> {
    /// Asks for many holds in one pipeline, and acts on the answers. A hold without a result must be asked for alone: it
    /// is at another node, or its slot migrates and its keys are at two nodes.
    async fn together(&self, holds: &[Arc<Hold>]) -> Vec<Option<Result<(), Failure>>> {
        let asked = holds
            .iter()
            .map(|hold| RenewalQuestion::about(self.core, hold));
        let questions: Vec<_> = asked.collect();
        let calls = questions.iter().map(|asked| (&*asked.hold, asked.call()));
        let may = self.core.config.acks.is_none();
        let sent = may.then(|| self.core.start_together(calls)).flatten();
        let Some((sent, mut replies)) = sent else {
            return vec![None; holds.len()];
        };
        match sent.within_one_try(self.timeout).await {
            Ok(Ok(_)) => act_on_all(self.core, &questions, &mut replies),
            Ok(Err(failure)) => vec![Some(Err(failure)); holds.len()],
            Err(late) => {
                self.listen(late, move |core, _| {
                    // What failed is asked for once more in any case.
                    let _ = act_on_all(core, &questions, &mut replies);
                });
                vec![Some(Err(Failure::no_reply())); holds.len()]
            }
        }
    }

    /// Asks whether a hold is there, and acts on the answer.
    async fn alone(&self, hold: &Arc<Hold>) -> Result<(), Failure> {
        let question = RenewalQuestion::about(self.core, hold);
        let sent = Pending::start(&self.core.backend.keepers, question.call());
        let answer = match sent.within_one_try(self.timeout).await {
            Ok(Err(failure)) if failure.class == Class::Split => {
                self.key_by_key(hold, question.written, failure).await
            }
            Ok(result) => result,
            Err(late) => {
                self.listen(late, move |core, answer| {
                    let _ = question.answered(core, answer);
                });
                return Err(Failure::no_reply());
            }
        }?;
        question.answered(self.core, &answer)
    }

    /// Asks by calls with one key each, after a call with all keys failed: the migration of their slot may take longer
    /// than a lease.
    async fn key_by_key(&self, hold: &Hold, lease: LeaseMs, split: Failure) -> CommandResult {
        let Some(first) = hold.kind.verify_apart(&hold.id, lease, None) else {
            return Err(split);
        };
        let answer = self.one_key(first).await?;
        if let Some(rest) = hold.kind.verify_apart(&hold.id, lease, Some(answer.reply)) {
            self.one_key(rest).await?;
        }
        Ok(answer)
    }

    async fn one_key(&self, question: Call<'_>) -> CommandResult {
        let sent = Pending::start(&self.core.backend.keepers, question);
        let answered = sent.within_one_try(self.timeout).await;
        // Alone it says too little to be listened to later.
        answered.unwrap_or_else(|_| Err(Failure::no_reply()))
    }

    /// Goes on listening to a try, and acts on its answer.
    fn listen(&self, late: Pending, act: impl FnOnce(&Core, &TimedReply) + Send + 'static) {
        let core = Arc::clone(self.core);
        let listening = async move {
            let answer = late.however_late(core.watchdog_lease.duration()).await;
            if let Ok(answer) = &answer {
                act(&core, answer);
            }
            answer.is_ok()
        };
        self.late.lock().push(listening.boxed());
    }
}

/// Acts on the answers to many questions. A hold without a result must be asked for alone.
fn act_on_all(
    core: &Core,
    questions: &[RenewalQuestion],
    replies: &mut RepliesTogether,
) -> Vec<Option<Result<(), Failure>>> {
    let replies = replies.try_recv().unwrap_or_default().into_iter();
    let answered = questions.iter().zip(replies.chain(repeat(None)));
    answered
        .map(|(question, reply)| Some(reply?.and_then(|answer| question.answered(core, &answer))))
        .collect()
}

/// Redis has the hold, and with `lease` it has it for that long.
fn renewed_for(core: &Core, hold: &Arc<Hold>, lease: Option<LeaseMs>, answer: &TimedReply) {
    let now = core.now();
    if let Some(lease) = lease
        && hold.phase() == Phase::Held
    {
        let left = now.until(hold.valid_until());
        core.config.metrics.slack(left, lease.duration());
    }
    let due = hold.with(|state| {
        state.found(lease, answer.sent_at, now);
        state.due(core.watchdog_lease, now, now, Duration::ZERO)
    });
    if let Due::Later(moment) = due {
        let _ = core.schedule.no_later_than(hold, moment);
    }
}
