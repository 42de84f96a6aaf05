//! What the reply to an attempt, or to a last release, says; the gate decides what it means.
//!
//! Whoever sees a reply first settles it: its caller, the keeper's job, or the keeper's reaper. Who comes
//! second changes nothing.

use std::sync::Arc;

use futures_util::FutureExt;

use super::core::Core;
use super::grant::Grant;
use super::hold::Hold;
use super::outcomes::{Answered, ReleaseAnswer, SentAs, Settled};
use super::ticket::Ticket;
use crate::backend::{CommandResult, Failure, Pending};
use crate::clock::Moment;
use crate::error::{Error, LostReason};
use crate::names::Names;
use crate::script::{Acquired, Released};

/// Settles the attempt at `hold` that `command` is of.
pub(crate) fn settle_attempt(
    core: &Core,
    hold: &Arc<Hold>,
    command: &Pending,
    outcome: CommandResult,
) {
    let now = core.now();
    let next_is_ours = next_is_ours(hold, &outcome);
    let handed_to = handed_to(hold, &outcome);
    let answered = answered(hold, outcome);
    let names = hold.kind.names();
    let settled = core.at(names, |gate, effects| {
        let settled = gate.answered(command, answered, now, core.rules(), effects);
        if let Some(ours) = next_is_ours {
            gate.wakeups.next_is_ours(ours);
        }
        settled
    });
    if let Some((hold, settled)) = settled {
        see_to(core, &hold, settled, now);
    }
    if let Some(number) = handed_to {
        give_back_place(core, names, |hold| hold.number == number);
    }
}

/// The lock was handed over to this hold, and it is not its turn here. What is sent from now on for the one whose turn it
/// is finds the lock given back.
pub(crate) fn give_back_place(core: &Core, names: &Arc<Names>, is_it: impl Fn(&Hold) -> bool) {
    let given_back = core.at(names, |gate, effects| gate.give_back_place(is_it, effects));
    if let Some(hold) = given_back {
        let release = hold.kind.release(&hold.id, 0).in_order();
        // The first poll sends it. The keeper sees to it that it is released, whatever comes of this.
        let _ = Pending::start(&core.keeper_fleet, release).now_or_never();
    }
}

/// What an attempt that was settled leads to.
fn see_to(core: &Core, hold: &Arc<Hold>, settled: Settled, now: Moment) {
    match settled {
        Settled::Held | Settled::Joined => core.look_in_time(hold, now),
        Settled::Unwanted => {
            core.schedule.forget(hold);
            let name = hold.kind.names().name();
            tracing::debug!(name, "abandoned attempt cleaned up");
        }
        Settled::Over => {
            core.schedule.forget(hold);
            hold.end(Ok(()));
        }
        Settled::Unsettled => core.schedule.forget(hold),
        Settled::Missing => core.lose(hold, LostReason::Missing),
        Settled::NotJoined => {}
    }
}

/// The lock was handed over to `hold`, by which `ticket` waits; false when that cannot have it now.
pub(crate) fn settle_hand_over(
    core: &Core,
    ticket: &Arc<Ticket>,
    hold: &Arc<Hold>,
    grant: Grant,
    next_is_ours: bool,
) -> bool {
    let now = core.now();
    let command = Pending::over(&core.keeper_fleet);
    let settled = core.at(hold.kind.names(), |gate, effects| {
        gate.call_up(ticket, now, |_| (Arc::clone(hold), command.clone()))
            .then(|| {
                let got = Answered::Got(grant);
                let settled = gate.answered(&command, got, now, core.rules(), effects);
                gate.wakeups.next_is_ours(next_is_ours);
                settled
            })
    });
    let Some(settled) = settled else {
        return false;
    };
    if let Some((hold, settled)) = settled {
        see_to(core, &hold, settled, now);
    }
    true
}

/// Whether the place behind the hold is of this client, where Redis keeps a queue.
fn next_is_ours(hold: &Hold, outcome: &CommandResult) -> Option<bool> {
    let queue = hold.kind.commands.queue()?;
    queue.next_is_ours(&outcome.as_ref().ok()?.reply)
}

/// The number of the hold of this client that the lock was handed over to, if it is another one.
fn handed_to(hold: &Hold, outcome: &CommandResult) -> Option<u64> {
    let queue = hold.kind.commands.queue()?;
    queue.handed_to(&outcome.as_ref().ok()?.reply)
}

fn answered(hold: &Hold, outcome: CommandResult) -> Answered {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(failure) if failure.is_transient() => return Answered::Failed(failure),
        Err(failure) => return Answered::Rejected(failure.into()),
    };
    match hold.kind.acquired(&answer.reply) {
        Some(Acquired::Got(token)) => Answered::Got(Grant {
            sent_at: answer.sent_at,
            lease: None,
            server_age: answer.server_age,
            token,
            open: hold.kind.is_open(&answer.reply),
        }),
        Some(Acquired::Missing) => Answered::Missing,
        Some(Acquired::Busy(ttl)) => Answered::Busy(ttl),
        Some(Acquired::WrongType) => Answered::Rejected(Error::wrong_type()),
        Some(Acquired::TokenTooLarge) => Answered::Rejected(Error::fencing_token_too_large()),
        None => Answered::Rejected(Failure::strange_reply().into()),
    }
}

/// Settles a last release of `hold`. The failure when it is to be repeated.
pub(crate) fn settle_release(
    core: &Core,
    hold: &Arc<Hold>,
    sent: &SentAs<'_, Pending>,
    outcome: CommandResult,
) -> Result<(), Failure> {
    let (now, names) = (core.now(), hold.kind.names());
    let answer = release_answer(core, hold, outcome);
    let failure = match &answer {
        ReleaseAnswer::Failed(failure) => Some(failure.clone()),
        _ => None,
    };
    let over = core.at(names, |gate, effects| {
        gate.release_answered(hold, sent, answer, now, core.rules(), effects)
    });
    if over {
        core.schedule.forget(hold);
    }
    failure.map_or(Ok(()), Err)
}

fn release_answer(core: &Core, hold: &Hold, outcome: CommandResult) -> ReleaseAnswer {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(failure) if failure.is_transient() => return ReleaseAnswer::Failed(failure),
        Err(failure) => return ReleaseAnswer::Rejected(failure.into()),
    };
    match hold.kind.released(&answer.reply) {
        Some(Released::Ended { heard_by }) => ReleaseAnswer::Ended { heard_by },
        Some(Released::Unheard) => {
            core.warn_unheard(hold.kind.names().name());
            ReleaseAnswer::Ended { heard_by: None }
        }
        Some(Released::Missing) => ReleaseAnswer::Missing,
        None => ReleaseAnswer::Rejected(Failure::strange_reply().into()),
    }
}

/// The last release of `hold` is given up: its key is left to its lease.
pub(crate) fn give_up_release(core: &Core, hold: &Arc<Hold>, failure: Failure) {
    core.schedule.forget(hold);
    core.at(hold.kind.names(), |gate, effects| {
        gate.end_release(hold, Err(failure.into()), None, effects);
    });
}
