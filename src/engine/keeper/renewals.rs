//! Keeping holds alive, and telling their holders when that failed.
//!
//! 1. Holds share a call; what is due within the next tenth of a period fills it up. Which hold is asked for
//!    when, and by how many calls, is [`asking`](super::asking)'s.
//! 2. A failed renewal is an unknown one: it is repeated until the validity is over, on a new connection
//!    after a silence. Whatever happens to it, the schedule has an entry not later than that end (I8).
//! 3. What is asked for is asserted, too (T5): the TTL is lengthened to what the client still vouches for
//!    (a server whose clock is ahead ends leases early). That raises no promise (T2): only the watchdog's lease,
//!    once it is acknowledged, lengthens the validity.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;

use super::Keeper;
use super::asking::{Asking, BATCH, Batch, Outcome};
use crate::backend::{Answer, Class, Failure};
use crate::clock::Moment;
use crate::engine::Core;
use crate::engine::hold::Hold;
use crate::engine::state::{Due, EARLY, Phase};
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::script::{Renewal, Renewed};
use crate::slot::{Slot, Target};

/// A silence that is shorter says nothing of the connection, nor of the server.
const TELLING: Duration = Duration::from_millis(100);

type Holds = Batch<Arc<Hold>>;

/// The holds of each node of a cluster, by its number; of the one server (0) otherwise. The trouble of one does not
/// delay the others.
#[derive(Default)]
pub(super) struct Wards(BTreeMap<u32, Ward>);

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
        self.0.entry(node).or_insert_with(|| Ward::new(core))
    }

    fn is_failing(&self, node: u32) -> bool {
        let ward = self.0.get(&node);
        ward.is_some_and(|ward| ward.asking.is_failing())
    }

    fn is_troubled(&self) -> bool {
        self.0.values().any(|ward| ward.asking.is_troubled())
    }
}

/// The node that has a hold, as far as is known.
fn node_of(core: &Core, hold: &Hold) -> u32 {
    let cluster = core.backend.cluster();
    match hold.kind.names().target() {
        Target::Slot(slot) if cluster.is_joined() => {
            cluster.node_of(slot).map_or(0, |node| node.number)
        }
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
    let due = sort_out(keeper, core.schedule.take(due_by, soon, BATCH), now);
    want(keeper, &due, false);
}

/// Does what those need that were taken from the schedule; gives back which are to be renewed.
fn sort_out(keeper: &Keeper, holds: Vec<Arc<Hold>>, now: Moment) -> Vec<Arc<Hold>> {
    let core = &keeper.core;
    // An entry is up to a tenth of a period before its renewal; further only when an answer came late, and
    // then it is looked at again.
    let horizon = now + core.plan.period() / 5;
    let (mut due, mut lost) = (Vec::new(), Vec::new());
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
            (Due::Lose | Due::Nothing, Phase::Lost(reason)) => lost.push((hold, reason)),
            (Due::Lose | Due::Nothing, _) => {}
        }
    }
    // Their holders know by now; what else is to be done for one must not keep the next one waiting.
    for (hold, reason) in lost {
        core.bury(&hold, reason);
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
    for (node, Ward { asking, .. }) in &mut wards.0 {
        while let Some(batch) = asking.take(now) {
            chores.spawn(renew_batch(Arc::clone(keeper), *node, batch));
        }
        next = next.min(asking.next(now));
    }
    // A node may have left.
    wards
        .0
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

/// One batch: a call for each kind of lock in it; in a cluster for each slot.
async fn renew_batch(keeper: Arc<Keeper>, node: u32, batch: Holds) {
    let Batch { holds, patience } = batch;
    let joined = keeper.core.backend.cluster().is_joined();
    let by_slot = joined || keeper.by_slot.load(Ordering::Relaxed);
    let mut kinds = BTreeMap::<_, (Vec<_>, Vec<_>)>::new();
    for (number, hold) in holds {
        let target = by_slot.then(|| hold.kind.names().target());
        let (numbers, holds) = kinds
            .entry((hold.kind.commands.name(), target))
            .or_default();
        numbers.push(number);
        holds.push(hold);
    }
    let calls = kinds.into_values().map(async |(numbers, holds)| {
        let (outcomes, failure) = renew_kind(&keeper, &holds, patience).await;
        let answers = numbers.into_iter().zip(holds).zip(outcomes);
        let answers = answers.map(|((number, hold), outcome)| (number, hold, outcome));
        (answers, failure)
    });
    let (answers, failures): (Vec<_>, Vec<_>) = join_all(calls).await.into_iter().unzip();
    let (unverified, troubled) = {
        let mut wards = keeper.wards.lock();
        let ward = wards.of(node, &keeper.core);
        let answers = answers.into_iter().flatten();
        ward.asking.answered(answers, keeper.core.now());
        let works = !ward.asking.is_failing();
        let unverified = works && std::mem::take(&mut ward.unverified);
        (unverified, wards.is_troubled())
    };
    keeper.tell_trouble(troubled, failures.into_iter().flatten().next());
    if unverified {
        verify_at(&keeper, &BTreeSet::from([node]));
    }
}

/// One call; each for itself when it was refused as a whole: one bad name must not cost the others.
async fn renew_kind(
    keeper: &Keeper,
    holds: &[Arc<Hold>],
    patience: Duration,
) -> (Vec<Outcome>, Option<Failure>) {
    match call(keeper, holds, patience).await {
        Ok(outcomes) => (outcomes, None),
        Err(failure) if failure.class == Class::Split => {
            (apart(keeper, holds, patience).await, Some(failure))
        }
        Err(failure) if failure.is_transient() || holds.len() == 1 => {
            let outcome = of_failure(&failure, patience);
            (vec![outcome; holds.len()], Some(failure))
        }
        Err(failure) => {
            if failure.class == Class::CrossSlot {
                keeper.by_slot.store(true, Ordering::Relaxed);
            }
            (one_by_one(keeper, holds, patience).await, Some(failure))
        }
    }
}

/// Asks for each hold by itself. When that is refused for all of them, it is not for single ones.
async fn one_by_one(keeper: &Keeper, holds: &[Arc<Hold>], patience: Duration) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(holds.len());
    for hold in holds {
        let outcome = match call(keeper, std::slice::from_ref(hold), patience).await {
            Ok(outcome) => outcome.first().copied().unwrap_or(Outcome::Refused),
            Err(failure) => of_failure(&failure, patience),
        };
        outcomes.push(outcome);
    }
    if outcomes.iter().all(|outcome| *outcome == Outcome::Refused) {
        outcomes.fill(Outcome::Failed);
    }
    outcomes
}

/// Asks for each hold by calls with one key: while a slot migrates no node may have all of them, and that may take
/// longer than a lease.
async fn apart(keeper: &Keeper, holds: &[Arc<Hold>], patience: Duration) -> Vec<Outcome> {
    let outcomes = holds.iter().map(async |hold| {
        let outcome = renew_apart(keeper, hold, patience).await;
        outcome.unwrap_or_else(|failure| of_failure(&failure, patience))
    });
    join_all(outcomes).await
}

async fn renew_apart(
    keeper: &Keeper,
    hold: &Arc<Hold>,
    patience: Duration,
) -> Result<Outcome, Failure> {
    let core = &keeper.core;
    let (commands, lease) = (&hold.kind.commands, lease_of(keeper, hold, core.now()));
    let renewal = Renewal {
        names: hold.kind.names(),
        hold_id: &hold.id,
        lease: lease.written,
    };
    let Some(first) = commands.renew_apart(&renewal) else {
        return Ok(Outcome::Failed);
    };
    let answer = core.ask(first, patience).await?;
    if let Some(rest) = commands.renew_rest(&renewal, &answer.reply) {
        core.ask(rest, patience).await?;
    }
    let code = commands.renewed_apart(&answer.reply);
    let code = code.ok_or_else(Failure::strange_reply)?;
    Ok(heard(keeper, hold, code, &lease, &answer))
}

/// What a code says of a hold, and what that leads to.
fn heard(
    keeper: &Keeper,
    hold: &Arc<Hold>,
    code: Renewed,
    lease: &Asserted,
    answer: &Answer,
) -> Outcome {
    match code {
        Renewed::Held => {
            keep(keeper, hold, lease.vouched, answer);
            Outcome::Known
        }
        Renewed::Missing => {
            keeper.core.lose(hold, LostReason::Missing);
            Outcome::Known
        }
        Renewed::Unknown => Outcome::Refused,
    }
}

/// What a call that failed says of its holds.
fn of_failure(failure: &Failure, patience: Duration) -> Outcome {
    let told = !failure.is_unanswered() || patience >= TELLING;
    if failure.is_transient() && told {
        Outcome::Failed
    } else {
        Outcome::Refused
    }
}

/// One call, for holds of one kind.
async fn call(
    keeper: &Keeper,
    holds: &[Arc<Hold>],
    patience: Duration,
) -> Result<Vec<Outcome>, Failure> {
    let core = &keeper.core;
    let now = core.now();
    let leases: Vec<_> = holds
        .iter()
        .map(|hold| lease_of(keeper, hold, now))
        .collect();
    let Some(commands) = holds.first().map(|hold| &hold.kind.commands) else {
        return Ok(Vec::new());
    };
    let renewals = holds.iter().zip(&leases).map(|(hold, lease)| Renewal {
        names: hold.kind.names(),
        hold_id: &hold.id,
        lease: lease.written,
    });
    let renewals: Vec<_> = renewals.collect();
    let target = holds.first().map(|hold| hold.kind.names().target());
    let lane = core.keeper_fleet.lane(target.unwrap_or(Target::Any))?;
    let generation = lane.generation();
    let renewal = commands.renew(&renewals).acknowledged();
    let outcome = core.ask(renewal, patience).await;
    let answer = outcome.inspect_err(|failure| {
        // The next try shall be on another connection, while there is time for one.
        let silent = patience >= TELLING && lane.is_silent_for(patience);
        if let Some(generation) = generation.filter(|_| failure.is_unanswered() && silent) {
            lane.replace(generation);
        }
    })?;
    let codes = commands
        .renewed(&answer.reply)
        .filter(|codes| codes.len() == holds.len());
    let codes = codes.ok_or_else(Failure::strange_reply)?;
    let outcomes = holds.iter().zip(leases).zip(codes);
    let outcomes = outcomes.map(|((hold, lease), code)| heard(keeper, hold, code, &lease, &answer));
    Ok(outcomes.collect())
}

/// The lease that is written for a hold.
struct Asserted {
    written: Option<LeaseMs>,
    /// What an answer adds to the validity: the watchdog's lease.
    vouched: Option<LeaseMs>,
}

fn lease_of(keeper: &Keeper, hold: &Hold, now: Moment) -> Asserted {
    let (watched, promised) = hold.with(|state| (state.is_watched(), state.lease_ends()));
    let vouched = watched.then_some(keeper.core.plan.lease);
    let written = vouched.max(LeaseMs::covering(now.until(promised)));
    Asserted { written, vouched }
}

/// The hold is there; with `lease`, it is for so long.
fn keep(keeper: &Keeper, hold: &Arc<Hold>, lease: Option<LeaseMs>, answer: &Answer) {
    let core = &keeper.core;
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

impl Keeper {
    /// Tells the beginning and the end of an outage, once each.
    fn tell_trouble(&self, troubled: bool, failure: Option<Failure>) {
        // The flag orders nothing: it is only ever changed here, on the keeper's thread.
        if self.trouble.swap(troubled, Ordering::Relaxed) == troubled {
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
