//! The calls by which holds are asked for: one for up to [`LONGEST`] holds of one kind of lock, in a cluster of one slot;
//! those for one node go together.
//!
//! 1. What is asked for is asserted, too (T5): the TTL is lengthened to what the client still vouches for
//!    (a server whose clock is ahead ends leases early). That raises no promise (T2): only the watchdog's lease,
//!    once it is acknowledged, lengthens the validity.
//! 2. A call that was refused as a whole is repeated for each of its holds: one bad name must not cost the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::Keeper;
use super::asking::{Batch, Outcome};
use crate::backend::{self, Answer, Class, Failure, TELLING};
use crate::clock::Moment;
use crate::engine::hold::Hold;
use crate::engine::state::Due;
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::script::{Call, Renewal, Renewed};

/// How many holds one call asks for: the server does nothing else meanwhile.
const LONGEST: usize = 100;

/// A hold, and what came of asking for it.
pub(super) type Told = (u64, Arc<Hold>, Outcome);

/// The holds of one call.
type Part<'a> = &'a [Asked];

/// A hold that is asked for.
struct Asked {
    number: u64,
    hold: Arc<Hold>,
    lease: Asserted,
}

impl Asked {
    fn of(number: u64, hold: Arc<Hold>, keeper: &Keeper, now: Moment) -> Self {
        let lease = lease_of(keeper, &hold, now);
        Self {
            number,
            hold,
            lease,
        }
    }

    /// The same, for a call that is made now.
    fn anew(&self, keeper: &Keeper, now: Moment) -> Self {
        Self::of(self.number, Arc::clone(&self.hold), keeper, now)
    }

    fn renewal(&self) -> Renewal<'_> {
        Renewal {
            names: self.hold.kind.names(),
            hold_id: &self.hold.id,
            lease: self.lease.written,
        }
    }

    /// Holds for which this is the same may share a call.
    fn call(&self, by_slot: bool) -> impl Ord + use<> {
        let target = by_slot.then(|| self.hold.kind.names().target());
        (target, self.hold.kind.commands.name())
    }

    fn told(&self, outcome: Outcome) -> Told {
        (self.number, Arc::clone(&self.hold), outcome)
    }
}

/// What calls were answered.
#[derive(Default)]
struct Answers {
    told: Vec<Told>,
    /// Which calls failed.
    failed: Vec<(usize, Failure)>,
}

/// Asks for a batch of holds: what came of each, and what failed, if anything did.
pub(super) async fn ask_for(
    keeper: &Keeper,
    batch: Batch<Arc<Hold>>,
) -> (Vec<Told>, Option<Failure>) {
    let Batch { holds, patience } = batch;
    let joined = keeper.core.backend.cluster().is_joined();
    let by_slot = joined || keeper.by_slot.load(Ordering::Relaxed);
    let now = keeper.core.now();
    let asked = holds.into_iter();
    let mut asked: Vec<Asked> = asked
        .map(|(number, hold)| Asked::of(number, hold, keeper, now))
        .collect();
    asked.sort_by_key(|asked| asked.call(by_slot));
    let parts = asked.chunk_by(|one, next| one.call(by_slot) == next.call(by_slot));
    let parts: Vec<Part> = parts.flat_map(|part| part.chunks(LONGEST)).collect();
    let Answers { mut told, failed } = together(keeper, &parts, patience).await;
    let failure = failed.first().map(|(_, failure)| failure.clone());
    let again = failed
        .into_iter()
        .map(|(index, failure)| again(keeper, parts[index], failure, patience));
    for more in join_all(again).await {
        told.extend(more);
    }
    (told, failure)
}

/// A call for each part.
async fn together(keeper: &Keeper, parts: &[Part<'_>], patience: Duration) -> Answers {
    let answers = Mutex::new(Answers::default());
    let tell = |index: usize, outcome: backend::Outcome| {
        let Answers { told, failed } = &mut *answers.lock();
        let heard = outcome.and_then(|answer| heard_all(keeper, parts[index], &answer, told));
        if let Err(failure) = heard {
            failed.push((index, failure));
        }
    };
    let mut renewals = Vec::new();
    // No part is empty.
    let calls = parts.iter().filter_map(|part| {
        renewals.clear();
        renewals.extend(part.iter().map(Asked::renewal));
        let commands = &part.first()?.hold.kind.commands;
        Some(commands.renew(&renewals).acknowledged())
    });
    let calls: Vec<Call> = calls.collect();
    keeper.core.ask_together(&calls, patience, &tell).await;
    answers.into_inner()
}

/// What an answer says of the holds of a call.
fn heard_all(
    keeper: &Keeper,
    part: Part<'_>,
    answer: &Answer,
    told: &mut Vec<Told>,
) -> Result<(), Failure> {
    let codes = part.first().and_then(|asked| {
        let codes = asked.hold.kind.commands.renewed(&answer.reply);
        codes.filter(|codes| codes.len() == part.len())
    });
    let codes = codes.ok_or_else(Failure::strange_reply)?;
    let heard = part
        .iter()
        .zip(codes)
        .map(|(asked, code)| asked.told(heard(keeper, asked, code, answer)));
    told.extend(heard);
    Ok(())
}

/// What a code says of a hold, and what that leads to.
fn heard(keeper: &Keeper, asked: &Asked, code: Renewed, answer: &Answer) -> Outcome {
    match code {
        Renewed::Held => {
            keep(keeper, &asked.hold, asked.lease.vouched, answer);
            Outcome::Known
        }
        Renewed::Missing => {
            keeper.core.lose(&asked.hold, LostReason::Missing);
            Outcome::Known
        }
        Renewed::Unknown => Outcome::Refused,
    }
}

/// What becomes of the holds of a call that failed.
async fn again(keeper: &Keeper, part: Part<'_>, failure: Failure, patience: Duration) -> Vec<Told> {
    if failure.class == Class::Split {
        return apart(keeper, part, patience).await;
    }
    if failure.is_transient() || part.len() == 1 {
        let outcome = of_failure(&failure, patience);
        return part.iter().map(|asked| asked.told(outcome)).collect();
    }
    if failure.class == Class::CrossSlot {
        keeper.by_slot.store(true, Ordering::Relaxed);
    }
    one_by_one(keeper, part, patience).await
}

/// Asks for each hold by a call of its own. When that is refused for all of them, it is not for single ones.
async fn one_by_one(keeper: &Keeper, part: Part<'_>, patience: Duration) -> Vec<Told> {
    let now = keeper.core.now();
    let asked: Vec<Asked> = part.iter().map(|asked| asked.anew(keeper, now)).collect();
    let singles: Vec<Part> = asked.chunks(1).collect();
    let Answers { mut told, failed } = together(keeper, &singles, patience).await;
    for (index, failure) in failed {
        let outcome = of_failure(&failure, patience);
        told.extend(singles[index].iter().map(|asked| asked.told(outcome)));
    }
    if told
        .iter()
        .all(|(_, _, outcome)| *outcome == Outcome::Refused)
    {
        for (_, _, outcome) in &mut told {
            *outcome = Outcome::Failed;
        }
    }
    told
}

/// Asks for each hold by calls with one key: while a slot migrates no node may have all of them, and that may take
/// longer than a lease.
async fn apart(keeper: &Keeper, part: Part<'_>, patience: Duration) -> Vec<Told> {
    let told = part.iter().map(async |asked| {
        let asked = asked.anew(keeper, keeper.core.now());
        let outcome = renew_apart(keeper, &asked, patience).await;
        asked.told(outcome.unwrap_or_else(|failure| of_failure(&failure, patience)))
    });
    join_all(told).await
}

async fn renew_apart(
    keeper: &Keeper,
    asked: &Asked,
    patience: Duration,
) -> Result<Outcome, Failure> {
    let core = &keeper.core;
    let (commands, renewal) = (&asked.hold.kind.commands, asked.renewal());
    let Some(first) = commands.renew_apart(&renewal) else {
        return Ok(Outcome::Failed);
    };
    let answer = core.ask(first, patience).await?;
    if let Some(rest) = commands.renew_rest(&renewal, &answer.reply) {
        core.ask(rest, patience).await?;
    }
    let code = commands.renewed_apart(&answer.reply);
    let code = code.ok_or_else(Failure::strange_reply)?;
    Ok(heard(keeper, asked, code, &answer))
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
