//! Decoding the reply to an attempt or a last release. The gate decides what it means for the name.
//!
//! Whoever sees a reply first settles it: its caller, the keeper's job, or the keeper's reaper. A second settlement
//! changes nothing.

use std::sync::Arc;

use crate::backend::{CommandResult, Failure, Pending};
use crate::engine::core::Core;
use crate::engine::gate::answers::{Answered, Grant, ReleaseAnswer, SentAs, Settled};
use crate::engine::hold::Hold;
use crate::error::{Error, LostReason};
use crate::script::{Acquired, Released};

/// Settles the attempt at `hold` that `command` was sent for.
pub(crate) fn settle_attempt(
    core: &Core,
    hold: &Arc<Hold>,
    command: &Pending,
    outcome: CommandResult,
) {
    let now = core.now();
    let next_is_ours = next_is_ours(hold, &outcome);
    let answered = answered(hold, outcome);
    let names = hold.kind.names();
    let settled = core.at(names, |gate, effects| {
        let settled = gate.answered(command, answered, now, core.rules(), effects);
        if let Some(ours) = next_is_ours {
            gate.set_next_is_ours(ours);
        }
        settled
    });
    let Some((hold, settled)) = settled else {
        return;
    };
    match settled {
        Settled::Held | Settled::Joined => core.look_in_time(&hold, now),
        Settled::Unwanted => {
            core.schedule.forget(&hold);
            tracing::debug!(name = names.name(), "abandoned attempt cleaned up");
        }
        Settled::Over => {
            core.schedule.forget(&hold);
            hold.end(Ok(()));
        }
        Settled::Unsettled => core.schedule.forget(&hold),
        Settled::Missing => core.lose(&hold, LostReason::Missing),
        Settled::NotJoined => {}
    }
}

/// Whether the place behind the hold is of this client, where Redis keeps a queue.
fn next_is_ours(hold: &Hold, outcome: &CommandResult) -> Option<bool> {
    let queue = hold.kind.commands.queue()?;
    queue.next_is_ours(&outcome.as_ref().ok()?.reply)
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

/// Settles a last release of `hold`. Returns the failure if the release has to be repeated.
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
            core.warn_wake_up_denied(hold.kind.names().name());
            ReleaseAnswer::Ended { heard_by: None }
        }
        Some(Released::Missing) => ReleaseAnswer::Missing,
        None => ReleaseAnswer::Rejected(Failure::strange_reply().into()),
    }
}

/// Gives up the last release of `hold`, and leaves its key to the lease.
pub(crate) fn give_up_release(core: &Core, hold: &Arc<Hold>, failure: Failure) {
    core.schedule.forget(hold);
    core.at(hold.kind.names(), |gate, effects| {
        gate.end_release(hold, Err(failure.into()), None, effects);
    });
}
