//! Keeping holds alive, and telling their holders when that failed.
//!
//! Holds share a call, up to [`BATCH`] of them; what is due within the next tenth of a period fills it up.
//! Many calls are in flight. A failed renewal is an unknown one: it is repeated with backoff, on a new
//! connection after each silence, until the validity is over; what is not answered within a period is asked
//! by one more call, and any answer serves. Whatever happens to a renewal, the schedule has an entry not
//! later than the end of the validity.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;

use super::Keeper;
use crate::backend::{Answer, Failure};
use crate::clock::Moment;
use crate::engine::hold::Hold;
use crate::engine::release;
use crate::engine::state::{Due, EARLY, Phase};
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::script::lock::{Renewed, renew, renewed};

/// How many holds one call renews.
const BATCH: usize = 100;

/// Does what is due now, and plans the rest.
pub(crate) fn look(keeper: &Arc<Keeper>, chores: &mut JoinSet<()>) {
    let core = &keeper.core;
    let now = core.now();
    if !core.schedule.is_due(now) {
        // What comes soon is left to share the call of the first that is due.
        return;
    }
    let period = core.plan.period();
    let (due_by, soon) = (now + period / 100, now + period / 10);
    // An entry is up to a tenth of a period before its renewal; further only when an answer came late, and
    // then it is looked at again.
    let horizon = now + period / 5;
    let mut due = Vec::new();
    for hold in core.schedule.take(due_by, soon, BATCH) {
        let (what, phase) = hold.with(|state| {
            let what = state.due(core.plan, now, horizon, core.jitter());
            (what, state.phase)
        });
        match what {
            Due::Renew => due.push(hold),
            Due::Later(moment) => drop(core.schedule.no_later_than(&hold, moment)),
            Due::Lose => core.lose(&hold, LostReason::Expired),
            Due::Finish => finish(keeper, &hold, phase),
            Due::Nothing => {
                if let Phase::Lost(reason) = phase {
                    core.bury(&hold, reason);
                }
            }
        }
    }
    spawn(keeper, chores, &due);
}

/// Asks for every hold whether it is still there: a connection was broken, Redis may have restarted.
pub(crate) fn verify_all(keeper: &Arc<Keeper>, chores: &mut JoinSet<()>) {
    let held = |hold: &Arc<Hold>| hold.with(|state| state.phase) == Phase::Held;
    let mut holds = keeper.core.holds();
    holds.retain(held);
    spawn(keeper, chores, &holds);
}

fn spawn(keeper: &Arc<Keeper>, chores: &mut JoinSet<()>, holds: &[Arc<Hold>]) {
    let core = &keeper.core;
    let again = core.now() + core.plan.period();
    for batch in holds.chunks(BATCH) {
        // When the next renewal will be due, so that one that succeeds need not move the entries; the same
        // moment for all, so that they stay neighbours.
        let next = again.minus(core.jitter());
        for hold in batch {
            let end = hold.valid_until().minus(EARLY);
            let _ = core.schedule.no_later_than(hold, next.min(end));
        }
        chores.spawn(renew_until_known(Arc::clone(keeper), batch.to_vec()));
    }
}

/// An attempt or a release that is overdue. Callers have no timer for them: this is what ends their wait.
fn finish(keeper: &Arc<Keeper>, hold: &Arc<Hold>, phase: Phase) {
    let core = &keeper.core;
    let pending = core
        .gates
        .with(hold.kind.names(), |gate| gate.command_of(hold));
    if let Some(pending) = pending {
        pending.overdue();
    }
    if phase == Phase::Ending {
        hold.release_unanswered.store(true, Ordering::Release);
        release::reap(core, hold);
    }
    core.serve(hold.kind.names(), true);
}

/// Asks for one hold, now.
pub(crate) async fn verify(keeper: &Arc<Keeper>, hold: &Arc<Hold>) {
    if let Err((failure, _)) = renew_once(keeper, std::slice::from_ref(hold)).await {
        tracing::debug!(cause = %failure, "a hold could not be verified");
    }
}

async fn renew_until_known(keeper: Arc<Keeper>, mut holds: Vec<Arc<Hold>>) {
    let core = &keeper.core;
    let backoff = core.config.backoff;
    let mut delays = backoff.delays(fastrand::u64(..));
    loop {
        let (unknown, failure) = match renew_once(&keeper, &holds).await {
            Ok(unknown) => (unknown, None),
            Err((failure, singly)) if singly && holds.len() > 1 => {
                // Refused as a whole: one bad name must not cost the others.
                let mut unknown = Vec::new();
                for hold in &holds {
                    match renew_once(&keeper, std::slice::from_ref(hold)).await {
                        Ok(rest) => unknown.extend(rest),
                        Err(_) => unknown.push(Arc::clone(hold)),
                    }
                }
                (unknown, Some(failure))
            }
            Err((failure, _)) => (std::mem::take(&mut holds), Some(failure)),
        };
        keeper.tell_trouble(failure, unknown.len());
        holds = unknown;
        holds.retain(|hold| core.now() < hold.valid_until());
        let Some(shortest) = holds.iter().map(|hold| hold.valid_until()).min() else {
            return;
        };
        let left = core.now().until(shortest);
        tokio::time::sleep(delays.step().min(left / 4).max(Duration::from_millis(1))).await;
    }
}

/// One call. Those whose answer is unknown; or why there is no answer, and whether to ask singly.
async fn renew_once(
    keeper: &Arc<Keeper>,
    holds: &[Arc<Hold>],
) -> Result<Vec<Arc<Hold>>, (Failure, bool)> {
    let core = &keeper.core;
    let leases: Vec<Option<LeaseMs>> = holds
        .iter()
        .map(|hold| {
            let watched = hold.with(|state| state.is_watched());
            watched.then_some(core.plan.lease)
        })
        .collect();
    let named = holds.iter().zip(&leases).map(|(hold, lease)| {
        let key = hold.kind.names().key();
        (key, &*hold.id, *lease)
    });
    let limit = patience(core.config.command_timeout, core.now(), holds);
    let generation = core.keeper_lane.generation();
    let outcome = core.ask(renew(named), limit).await;
    let answer = outcome.map_err(|failure| {
        if failure.is_unanswered() {
            // Silence: the next try shall be on another connection, while there is time.
            if let Some(generation) = generation {
                core.keeper_lane.replace(generation);
            }
        }
        let singly = !failure.is_transient();
        (failure, singly)
    })?;
    let codes = renewed(&answer.reply).filter(|codes| codes.len() == holds.len());
    let codes = codes.ok_or_else(|| (Failure::strange_reply(), false))?;
    let mut unknown = Vec::new();
    for ((hold, lease), code) in holds.iter().zip(leases).zip(codes) {
        match code {
            Renewed::Held => keep(keeper, hold, lease, &answer),
            Renewed::Missing => core.lose(hold, LostReason::Missing),
            Renewed::Unknown => unknown.push(Arc::clone(hold)),
        }
    }
    Ok(unknown)
}

/// How long an answer is waited for: so that a second connection can be tried within the lease.
fn patience(command_timeout: Duration, now: Moment, holds: &[Arc<Hold>]) -> Duration {
    let shortest = holds.iter().map(|hold| now.until(hold.valid_until())).min();
    let third = shortest.unwrap_or_default() / 3;
    command_timeout.min(third).max(Duration::from_millis(10))
}

fn keep(keeper: &Arc<Keeper>, hold: &Arc<Hold>, lease: Option<LeaseMs>, answer: &Answer) {
    let core = &keeper.core;
    let now = core.now();
    let due = hold.with(|state| {
        if let Some(lease) = lease {
            state.prolong(lease.term(answer.sent_at), now);
        }
        state.due(core.plan, now, now, Duration::ZERO)
    });
    if let Due::Later(moment) = due {
        let _ = core.schedule.no_later_than(hold, moment);
    }
}

impl Keeper {
    /// Tells the beginning and the end of an outage, once each.
    fn tell_trouble(&self, failure: Option<Failure>, unknown: usize) {
        if unknown > 0 && !self.trouble.swap(true, Ordering::AcqRel) {
            let cause = failure.map(|failure| failure.to_string());
            let cause = cause.as_deref().unwrap_or("refused for single holds");
            tracing::warn!(cause, "renewals fail; repeated until the leases end");
        }
        if unknown == 0 && self.trouble.swap(false, Ordering::AcqRel) {
            tracing::info!("renewals work again");
        }
    }
}
