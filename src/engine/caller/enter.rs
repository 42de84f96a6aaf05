//! Entering a hold again, and lengthening it: one round trip by the caller.
//!
//! A level counts from the moment it is sent until it is refused or given back, so the last release
//! cannot overtake it. Whatever comes of the command, it can only write the count of a hold that is
//! there and lengthen its lease. A level of those who read a hold is one more read of it.

use std::sync::Arc;
use std::time::Duration;

use super::count::Writing;
use super::release::{drop_level, give_back};
use crate::backend::{Failure, Outcome, Pending};
use crate::clock::Moment;
use crate::engine::core::Core;
use crate::engine::gate::ticket::{Patience, Request};
use crate::engine::hold::Hold;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::HeldLevel;
use crate::engine::hold::state::{Level, NoEntry};
use crate::error::{Error, LostReason};
use crate::lease::{LeaseMs, Term};
use crate::script::Entered;

/// A level that is given back unless it is kept.
struct NewLevel<'a> {
    core: &'a Arc<Core>,
    entered: Option<HeldLevel>,
}

impl Drop for NewLevel<'_> {
    fn drop(&mut self) {
        if let Some(entered) = self.entered.take() {
            drop_level(self.core, &entered);
        }
    }
}

/// Adds a level to its hold, as a lock of `kind` does. `None` when the last release of that is on the way: the gate is
/// the place to wait.
pub(crate) async fn enter(
    core: &Arc<Core>,
    entered: HeldLevel,
    kind: &Kind,
    lease: LeaseMs,
    patience: Patience,
) -> Result<Option<HeldLevel>, Error> {
    core.check_open()?;
    let hold = Arc::clone(&entered.hold);
    let level = entered.level;
    if hold.kind.commands.is_shared() {
        let request = Request {
            kind: kind.clone(),
            owner: entered.owner,
            lease,
            level,
            patience,
            since: core.now(),
        };
        return enter_beside(core, &hold, &request).await;
    }
    let count = match add_level(core, &hold, level) {
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

fn add_level(core: &Core, hold: &Arc<Hold>, level: Level) -> Result<u32, NoEntry> {
    let now = core.now();
    if hold.shared_hold().is_none() {
        return hold.with(|state| state.enter(level, now));
    }
    core.at(hold.kind.names(), |gate, effects| {
        gate.enter_share(hold, level, now, effects)
    })
}

/// How many levels the holder of `hold` has.
pub(crate) fn levels(core: &Core, hold: &Arc<Hold>) -> u32 {
    if !hold.kind.commands.is_shared() {
        return hold.count();
    }
    let (names, now) = (hold.kind.names(), core.now());
    core.gates.with(names, |gate| gate.levels_of(hold, now))
}

/// A read beside `own`, which its holder has of the same hold, as `request` asks: one of those who read it, so Redis
/// is told nothing while the hold there is promised for long enough. `None` when the last release is on the way.
pub(crate) async fn enter_beside(
    core: &Arc<Core>,
    own: &Arc<Hold>,
    request: &Request,
) -> Result<Option<HeldLevel>, Error> {
    core.check_open()?;
    let (number, now) = (core.number(), core.now());
    let term = request.lease.term(now);
    let read = core.at(own.kind.names(), |gate, effects| {
        gate.share_beside(own, request, number, term, now, effects)
    });
    let Some(read) = read else {
        let lost = own.lost_reason(core.now());
        return lost.map_or(Ok(None), |reason| Err(Error::lost(reason)));
    };
    let mut new_level = NewLevel {
        core,
        entered: Some(request.entered(Arc::clone(&read))),
    };
    let (level, lease) = (request.level, request.lease);
    let shared = read.in_redis();
    let promised = shared.with(|state| state.covers(level, term, core.plan, now));
    if !promised {
        let count = 0;
        write(core, &read, &request.kind, count, lease, request.patience).await?;
    }
    Ok(new_level.entered.take())
}

/// Gives a level back of who has the lock alone, and keeps one of those who read it, without a moment in between.
pub(crate) async fn downgrade(core: &Arc<Core>, entered: &HeldLevel) -> Result<HeldLevel, Error> {
    let shared = keep_shared(core, entered);
    let mut new_level = NewLevel {
        core,
        entered: shared,
    };
    give_back(core, entered).await?;
    let hold = &entered.hold;
    let lost = || Error::lost(hold.lost_reason(core.now()).unwrap_or(LostReason::Missing));
    new_level.entered.take().ok_or_else(lost)
}

/// A level of those who read the hold, with the lease of `entered`.
fn keep_shared(core: &Core, entered: &HeldLevel) -> Option<HeldLevel> {
    let HeldLevel {
        hold, level, owner, ..
    } = entered;
    let (names, now) = (hold.kind.names(), core.now());
    let (valid_until, ends_at) = hold.with(|state| (state.vouched_until(), state.lease_ends()));
    let term = Term {
        sent_at: now,
        valid_until,
        ends_at,
    };
    let request = Request {
        kind: Kind {
            names: Arc::clone(names),
            commands: hold.kind.commands.downgraded()?,
        },
        owner: owner.clone(),
        lease: hold.lease,
        level: *level,
        patience: Patience::Once,
        since: now,
    };
    let number = core.number();
    let read = core.at(names, |gate, effects| {
        gate.share_beside(hold, &request, number, term, now, effects)
    });
    read.map(|read| request.entered(read))
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
    // Of the levels of those who read it Redis knows nothing.
    let counted = !hold.kind.commands.is_shared();
    let writing = counted.then(|| Writing::begin(core, hold, Some(count)));
    loop {
        let failure = match send(core, hold, kind, (count, lease), (started, end)).await {
            Ok(()) => {
                if let Some(writing) = writing {
                    writing.acknowledged();
                }
                return Ok(());
            }
            Err(ReenterError::Final(error)) => return Err(error),
            Err(ReenterError::Transient(failure)) => failure,
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
fn missing(core: &Core, hold: &Arc<Hold>) -> Error {
    core.lose(hold, LostReason::Missing);
    let reason = hold.lost_reason(core.now());
    Error::lost(reason.unwrap_or(LostReason::Missing))
}

enum ReenterError {
    Final(Error),
    Transient(Failure),
}

async fn send(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    kind: &Kind,
    (count, lease): (u32, LeaseMs),
    (started, end): (Moment, Moment),
) -> Result<(), ReenterError> {
    let fleet = core.backend.callers_fleet().map_err(ReenterError::Final)?;
    let call = kind.reenter(&hold.id, hold.token(), count, lease);
    let pending = Pending::start(&fleet, call);
    let last = end.max(started + core.config.command_timeout);
    let limit = core.config.command_timeout.min(core.now().until(last));
    let outcome = pending.within(limit).await;
    let answer = outcome.map_err(|failure| {
        if failure.is_transient() {
            ReenterError::Transient(failure)
        } else {
            ReenterError::Final(failure.into())
        }
    })?;
    match kind.entered(&answer.reply) {
        Some(Entered::In(token)) => {
            if let Some(token) = token {
                hold.keep_token(token);
            }
            prolong(core, hold, lease.term(answer.sent_at));
            hold.lost_reason(core.now()).map_or(Ok(()), |reason| {
                Err(ReenterError::Final(Error::lost(reason)))
            })
        }
        Some(Entered::Missing) => Err(ReenterError::Final(missing(core, hold))),
        Some(Entered::WrongType) => Err(ReenterError::Final(Error::wrong_type())),
        Some(Entered::TokenTooLarge) => Err(ReenterError::Final(Error::fencing_token_too_large())),
        None => Err(ReenterError::Final(Failure::strange_reply().into())),
    }
}

/// An acknowledged lease: the client vouches for it, and the keeper's next look may come earlier than
/// planned, since the hold may be watched only now.
pub(crate) fn prolong(core: &Core, hold: &Arc<Hold>, term: Term) {
    let now = core.now();
    hold.with(|state| state.prolong(term, now));
    core.look_in_time(hold, now);
    if let Some(shared) = hold.shared_hold() {
        shared.with(|state| state.prolong(term, now));
        core.look_in_time(shared, now);
    }
}

/// Asks once, and once more if the connection was cut, within a command time-out.
pub(crate) async fn verify(core: &Arc<Core>, hold: &Arc<Hold>) -> Result<(), Error> {
    let hold = hold.in_redis();
    let end = core.now() + core.config.command_timeout;
    let (mut lease, mut outcome) = ask_once(core, hold, end).await?;
    if matches!(&outcome, Err(failure) if failure.is_of_connection()) && core.now() < end {
        (lease, outcome) = ask_once(core, hold, end).await?;
    }
    let answer = outcome?;
    match hold.kind.found(&answer.reply) {
        Some(true) => {
            prolong(core, hold, lease.term(answer.sent_at));
            match hold.lost_reason(core.now()) {
                Some(reason) => Err(Error::lost(reason)),
                None => Ok(()),
            }
        }
        Some(false) => Err(missing(core, hold)),
        None => Err(Failure::strange_reply().into()),
    }
}

async fn ask_once(core: &Core, hold: &Hold, end: Moment) -> Result<(LeaseMs, Outcome), Error> {
    let fleet = core.backend.callers_fleet()?;
    let now = core.now();
    let (watched, ends) = hold.with(|state| (state.is_watched(), state.lease_ends()));
    let lease = if watched {
        core.config.watchdog_lease
    } else {
        LeaseMs::left(now.until(ends))
    };
    let pending = Pending::start(&fleet, hold.kind.verify(&hold.id, lease));
    Ok((lease, pending.within(now.until(end)).await))
}
