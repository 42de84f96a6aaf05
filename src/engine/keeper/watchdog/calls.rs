//! Asking Redis for the holds of a batch: for each the question by which a caller verifies it. What is sent at once is one
//! write of the connection.
//!
//! What is asked for is asserted, too (T5): the TTL is lengthened to what the client still vouches for (a server whose
//! clock is ahead ends leases early). That raises no promise (T2): only the watchdog's lease, once it is acknowledged,
//! lengthens the validity.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::asking::{Batch, Outcome};
use crate::backend::{self, Class, Failure, MIN_SILENCE, Pending, TimedReply};
use crate::engine::hold::Hold;
use crate::engine::hold::state::Due;
use crate::engine::keeper::shared::Keeper;
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::script::Call;

/// A hold, and what came of asking for it.
pub(super) type Told = (u64, Arc<Hold>, Outcome);

/// Asks for a batch of holds: what came of each, and what failed, if anything did.
pub(super) async fn ask_for(
    keeper: &Keeper,
    batch: Batch<Arc<Hold>>,
) -> (Vec<Told>, Option<Failure>) {
    let Batch { holds, patience } = batch;
    let asked = holds.into_iter().map(async |(number, hold)| {
        let verified = verify(keeper, &hold, patience).await;
        (number, hold, verified)
    });
    let mut failure = None;
    let told = join_all(asked)
        .await
        .into_iter()
        .map(|(number, hold, verified)| {
            let outcome = verified.map_or_else(
                |failed| {
                    let outcome = of_failure(&failed, patience);
                    failure.get_or_insert(failed);
                    outcome
                },
                |()| Outcome::Known,
            );
            (number, hold, outcome)
        })
        .collect();
    (told, failure)
}

/// Asks whether a hold is there, and does what follows from the answer.
async fn verify(keeper: &Keeper, hold: &Arc<Hold>, patience: Duration) -> Result<(), Failure> {
    let Asserted { written, vouched } = lease_of(keeper, hold);
    let question = hold.kind.verify(&hold.id, written);
    let answer = match ask(keeper, question, patience).await {
        Err(failure) if failure.class == Class::Split => {
            verify_apart(keeper, hold, written, patience, failure).await
        }
        outcome => outcome,
    };
    heard(keeper, hold, vouched, &answer?)
}

/// Asks by calls with one key each, after a call with all keys failed: a migration may take longer than a lease.
async fn verify_apart(
    keeper: &Keeper,
    hold: &Hold,
    lease: LeaseMs,
    patience: Duration,
    split: Failure,
) -> backend::CommandResult {
    let Some(first) = hold.kind.verify_apart(&hold.id, lease, None) else {
        return Err(split);
    };
    let answer = ask(keeper, first, patience).await?;
    if let Some(rest) = hold.kind.verify_apart(&hold.id, lease, Some(&answer.reply)) {
        ask(keeper, rest, patience).await?;
    }
    Ok(answer)
}

async fn ask(keeper: &Keeper, question: Call<'_>, patience: Duration) -> backend::CommandResult {
    let fleet = &keeper.core.keeper_fleet;
    let telling = MIN_SILENCE + fleet.acknowledged_within();
    let asked = Pending::start(fleet, question);
    asked.within_one_try(patience, telling).await
}

/// What an answer says of a hold, and what that leads to.
fn heard(
    keeper: &Keeper,
    hold: &Arc<Hold>,
    vouched: Option<LeaseMs>,
    answer: &TimedReply,
) -> Result<(), Failure> {
    match hold.kind.found(&answer.reply) {
        Some(true) => keep(keeper, hold, vouched, answer),
        Some(false) => keeper.core.lose(hold, LostReason::Missing),
        None => return Err(Failure::strange_reply()),
    }
    Ok(())
}

/// What a question that failed says of its hold.
fn of_failure(failure: &Failure, patience: Duration) -> Outcome {
    let told = !failure.is_unanswered() || patience >= MIN_SILENCE;
    if failure.is_transient() && told {
        Outcome::Failed
    } else {
        Outcome::Refused
    }
}

/// The lease that is written for a hold.
struct Asserted {
    written: LeaseMs,
    /// What an answer adds to the validity: the watchdog's lease.
    vouched: Option<LeaseMs>,
}

fn lease_of(keeper: &Keeper, hold: &Hold) -> Asserted {
    let (watched, promised) = hold.with(|state| (state.is_watched(), state.lease_ends()));
    let vouched = watched.then_some(keeper.core.plan.lease);
    let left = LeaseMs::left(keeper.core.now().until(promised));
    let written = vouched.map_or(left, |lease| lease.max(left));
    Asserted { written, vouched }
}

/// The hold is there; with `lease`, it is for so long.
fn keep(keeper: &Keeper, hold: &Arc<Hold>, lease: Option<LeaseMs>, answer: &TimedReply) {
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
