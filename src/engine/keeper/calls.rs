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
use smallvec::SmallVec;

use super::Keeper;
use super::asking::{Batch, Outcome};
use crate::backend::{self, Answer, Calls, Class, Failure, TELLING};
use crate::clock::Moment;
use crate::engine::hold::Hold;
use crate::engine::kind::Commands;
use crate::engine::state::Due;
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::script::{Call, Renewal, Renewed};
use crate::slot::Target;

/// How many holds one call asks for: the server does nothing else meanwhile.
const LONGEST: usize = 100;

/// A hold, and what came of asking for it.
pub(super) type Told = (u64, Arc<Hold>, Outcome);

/// The holds of one call.
struct Part<'a> {
    commands: &'a dyn Commands,
    asked: &'a [Asked],
}

impl<'a> Part<'a> {
    /// Nothing for no hold.
    fn of(asked: &'a [Asked]) -> Option<Self> {
        let commands = &*asked.first()?.hold.kind.commands;
        Some(Self { commands, asked })
    }
}

/// Holds for which this is the same may share a call.
type Shared = (Option<Target>, &'static str);

/// A hold that is asked for.
struct Asked {
    number: u64,
    hold: Arc<Hold>,
    lease: Asserted,
    shared: Shared,
}

impl Asked {
    fn of((number, hold): (u64, Arc<Hold>), by_slot: bool, keeper: &Keeper, now: Moment) -> Self {
        let target = by_slot.then(|| hold.kind.names().target());
        Self {
            number,
            lease: lease_of(keeper, &hold, now),
            shared: (target, hold.kind.commands.name()),
            hold,
        }
    }

    /// The same, for a call that is made now.
    fn anew(&self, keeper: &Keeper, now: Moment) -> Self {
        Self {
            number: self.number,
            lease: lease_of(keeper, &self.hold, now),
            shared: self.shared,
            hold: Arc::clone(&self.hold),
        }
    }

    fn renewal(&self) -> Renewal<'_> {
        Renewal {
            names: self.hold.kind.names(),
            hold_id: &self.hold.id,
            lease: self.lease.written,
        }
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
        .map(|hold| Asked::of(hold, by_slot, keeper, now))
        .collect();
    asked.sort_unstable_by_key(|asked| asked.shared);
    let parts = asked.chunk_by(|one, next| one.shared == next.shared);
    let parts = parts.flat_map(|part| part.chunks(LONGEST));
    let mut parts: Vec<Part> = parts.filter_map(Part::of).collect();
    // Holds whose numbers are close were made one after the other, and are near each other in memory.
    parts.sort_unstable_by_key(|part| part.asked.first().map(|asked| asked.number));
    let Answers { mut told, failed } = together(keeper, &parts, patience).await;
    let failure = failed.first().map(|(_, failure)| failure.clone());
    let again = failed
        .into_iter()
        .map(|(index, failure)| again(keeper, parts[index].asked, failure, patience));
    for more in join_all(again).await {
        told.extend(more);
    }
    (told, failure)
}

/// A call for each part.
async fn together(keeper: &Keeper, parts: &[Part<'_>], patience: Duration) -> Answers {
    let asking = Asking {
        keeper,
        parts,
        answers: Mutex::default(),
    };
    keeper.core.ask_together(&asking, patience).await;
    asking.answers.into_inner()
}

/// A call for each part, and what they were answered so far.
struct Asking<'a> {
    keeper: &'a Keeper,
    parts: &'a [Part<'a>],
    answers: Mutex<Answers>,
}

impl Calls for Asking<'_> {
    fn count(&self) -> usize {
        self.parts.len()
    }

    fn call(&self, index: usize) -> Call<'_> {
        let Part { commands, asked } = &self.parts[index];
        let renewals: SmallVec<[Renewal; 1]> = asked.iter().map(Asked::renewal).collect();
        commands.renew(&renewals).acknowledged()
    }

    fn tell(&self, index: usize, outcome: backend::Outcome) {
        let Answers { told, failed } = &mut *self.answers.lock();
        let part = &self.parts[index];
        let heard = outcome.and_then(|answer| heard_all(self.keeper, part, &answer, told));
        if let Err(failure) = heard {
            failed.push((index, failure));
        }
    }
}

/// What an answer says of the holds of a call.
fn heard_all(
    keeper: &Keeper,
    part: &Part,
    answer: &Answer,
    told: &mut Vec<Told>,
) -> Result<(), Failure> {
    let codes = part.commands.renewed(&answer.reply);
    let codes = codes.filter(|codes| codes.len() == part.asked.len());
    let codes = codes.ok_or_else(Failure::strange_reply)?;
    let asked = part.asked.iter();
    let heard = asked
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
async fn again(
    keeper: &Keeper,
    asked: &[Asked],
    failure: Failure,
    patience: Duration,
) -> Vec<Told> {
    if failure.class == Class::Split {
        return apart(keeper, asked, patience).await;
    }
    if failure.is_transient() || asked.len() == 1 {
        let outcome = of_failure(&failure, patience);
        return asked.iter().map(|asked| asked.told(outcome)).collect();
    }
    if failure.class == Class::CrossSlot {
        keeper.by_slot.store(true, Ordering::Relaxed);
    }
    one_by_one(keeper, asked, patience).await
}

/// Asks for each hold by a call of its own. When that is refused for all of them, it is not for single ones.
async fn one_by_one(keeper: &Keeper, asked: &[Asked], patience: Duration) -> Vec<Told> {
    let now = keeper.core.now();
    let asked: Vec<Asked> = asked.iter().map(|asked| asked.anew(keeper, now)).collect();
    let singles: Vec<Part> = asked.chunks(1).filter_map(Part::of).collect();
    let Answers { mut told, failed } = together(keeper, &singles, patience).await;
    for (index, failure) in failed {
        let outcome = of_failure(&failure, patience);
        told.extend(singles[index].asked.iter().map(|asked| asked.told(outcome)));
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
async fn apart(keeper: &Keeper, asked: &[Asked], patience: Duration) -> Vec<Told> {
    let told = asked.iter().map(async |asked| {
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
