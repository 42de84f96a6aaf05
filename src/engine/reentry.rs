//! Entering a hold again, and lengthening it: one round trip by the caller.
//!
//! A level counts from the moment it is sent until it is refused or given back, so the last release
//! cannot overtake it. Whatever comes of the command, it can only write the count of a hold that is
//! there and lengthen its lease.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::count::Writing;
use super::hold::Hold;
use super::kind::Kind;
use super::owner;
use super::release::drop_level;
use super::state::NoEntry;
use super::ticket::Patience;
use crate::backend::{Failure, Pending};
use crate::clock::Moment;
use crate::error::{Error, LostReason};
use crate::lease::{LeaseMs, Term};
use crate::script::Entered;

/// A level that is given back unless it is kept.
struct NewLevel<'a> {
    core: &'a Arc<Core>,
    entered: Option<owner::Entered>,
}

impl Drop for NewLevel<'_> {
    fn drop(&mut self) {
        if let Some(entered) = self.entered.take() {
            drop_level(self.core, &entered);
        }
    }
}

/// Adds a level to its hold, as a lock of `kind` does. `None` when the last release of that is on the way: the gate is the place to wait.
pub(crate) async fn enter(
    core: &Arc<Core>,
    entered: owner::Entered,
    kind: &Kind,
    lease: LeaseMs,
    patience: Patience,
) -> Result<Option<owner::Entered>, Error> {
    core.check_open()?;
    let hold = Arc::clone(&entered.hold);
    let count = match hold.with(|state| state.enter(entered.level, core.now())) {
        Ok(count) => count,
        Err(NoEntry::Lost(reason)) => return Err(Error::lost(reason)),
        Err(NoEntry::Over) => return Ok(None),
    };
    let mut new_level = NewLevel {
        core,
        entered: Some(entered),
    };
    write(core, &hold, kind, count, lease, patience).await?;
    Ok(new_level.entered.take())
}

/// Writes the hold count and lengthens the lease, repeated while `patience` lasts.
pub(crate) async fn write(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    kind: &Kind,
    count: u32,
    lease: LeaseMs,
    patience: Patience,
) -> Result<(), Error> {
    let started = core.now();
    let end = match patience {
        Patience::Once => started + core.config.command_timeout / 2,
        Patience::Until(end) => end.max(started + core.config.command_timeout / 2),
        Patience::Forever => started + core.config.unavailable_after,
    };
    let mut delays = core.config.backoff.delays(hold.number);
    let writing = Writing::begin(core, hold, count);
    loop {
        let failure = match send(core, hold, kind, (count, lease), (started, end)).await {
            Ok(()) => {
                writing.acknowledged();
                return Ok(());
            }
            Err(Wrong::Final(error)) => return Err(error),
            Err(Wrong::Passing(failure)) => failure,
        };
        let left = core.now().until(end);
        if left == Duration::ZERO {
            return Err(failure.into());
        }
        let timers = core.backend.timers();
        timers.sleep(delays.step().min(left)).await;
        if let Some(reason) = hold.lost_reason(core.now()) {
            return Err(Error::lost(reason));
        }
    }
}

/// Redis does not have the hold any more, unless it was lost, or given up, for another reason before.
pub(crate) fn missing(core: &Core, hold: &Arc<Hold>) -> Error {
    core.lose(hold, LostReason::Missing);
    let reason = hold.lost_reason(core.now());
    Error::lost(reason.unwrap_or(LostReason::Missing))
}

enum Wrong {
    Final(Error),
    Passing(Failure),
}

async fn send(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    kind: &Kind,
    (count, lease): (u32, LeaseMs),
    (started, end): (Moment, Moment),
) -> Result<(), Wrong> {
    let lane = core.backend.callers_lane().map_err(Wrong::Final)?;
    let call = kind.reenter(&hold.id, hold.token(), count, lease);
    let pending = Pending::start(&lane, call);
    let last = end.max(started + core.config.command_timeout);
    let limit = core.config.command_timeout.min(core.now().until(last));
    let outcome = pending.within(limit).await;
    let answer = outcome.map_err(|failure| {
        if failure.is_transient() {
            Wrong::Passing(failure)
        } else {
            Wrong::Final(failure.into())
        }
    })?;
    match kind.entered(&answer.reply) {
        Some(Entered::In(token)) => {
            if let Some(token) = token {
                hold.keep_token(token);
            }
            prolong(core, hold, lease.term(answer.sent_at));
            hold.lost_reason(core.now())
                .map_or(Ok(()), |reason| Err(Wrong::Final(Error::lost(reason))))
        }
        Some(Entered::Missing) => Err(Wrong::Final(missing(core, hold))),
        Some(Entered::WrongType) => Err(Wrong::Final(Error::wrong_type())),
        Some(Entered::TokenTooLarge) => Err(Wrong::Final(Error::fencing_token_too_large())),
        None => Err(Wrong::Final(Failure::strange_reply().into())),
    }
}

/// An acknowledged lease: the client vouches for it, and the keeper's next look may come earlier than
/// planned, since the hold may be watched only now.
pub(crate) fn prolong(core: &Core, hold: &Arc<Hold>, term: Term) {
    let now = core.now();
    hold.with(|state| state.prolong(term, now));
    core.look_in_time(hold, now);
}
