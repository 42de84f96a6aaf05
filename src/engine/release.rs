//! Giving levels back, and ending a hold with the last one.
//!
//! 1. The last release is decided under the hold's lock: from then on no renewal is sent, nothing is
//!    lost, and whoever wants the name waits at the gate.
//! 2. The caller sends it; the keeper sees it through when the caller does not, and repeats it until it
//!    is answered or the validity is over.
//! 3. A repeat that finds nothing to end is a success if an earlier send went unanswered: that one was
//!    executed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::hold::Hold;
use super::state::{Left, Level, Phase};
use super::{Core, Mail};
use crate::backend::{Failure, Lane, Outcome, Pending};
use crate::clock::Moment;
use crate::error::{Error, LostReason};
use crate::script::Released;
use crate::script::lock::found;

/// Gives a level back; the last one ends the hold.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice"
)]
pub(crate) fn give_back(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    level: Level,
) -> impl Future<Output = Result<(), Error>> + Send {
    async move {
        if let Err(closed) = core.check_open() {
            return Err(why_closed(core, hold, closed));
        }
        let now = core.now();
        let left = leave(core, hold, level, now);
        let Ok(lane) = core.backend.callers_lane() else {
            // Where no connection can live the keeper does it.
            leave_to_keeper(core, hold, left, now);
            return match left {
                Left::Lost(reason) => Err(Error::lost(reason)),
                Left::Levels(_) => Ok(()),
                Left::Last => Box::pin(hold.ended()).await,
            };
        };
        match left {
            Left::Lost(reason) => Err(Error::lost(reason)),
            Left::Levels(count) => Box::pin(write_count(core, hold, count, lane)).await,
            Left::Last => {
                let sent = send_last(core, hold, &lane, now);
                drop(lane);
                answered(core, hold, sent, now + core.config.command_timeout).await
            }
        }
    }
}

/// What a closed client says of a hold: that it was lost, if it was.
fn why_closed(core: &Core, hold: &Hold, closed: Error) -> Error {
    if core.is_forked() {
        return closed;
    }
    match hold.lost_reason(core.now()) {
        Some(reason) => Error::lost(reason),
        None => closed,
    }
}

/// Gives a level back without waiting.
pub(crate) fn drop_level(core: &Core, hold: &Arc<Hold>, level: Level) {
    if core.check_open().is_err() {
        return;
    }
    let now = core.now();
    let left = leave(core, hold, level, now);
    leave_to_keeper(core, hold, left, now);
}

fn leave_to_keeper(core: &Core, hold: &Arc<Hold>, left: Left, now: Moment) {
    match left {
        Left::Lost(_) => {}
        Left::Levels(count) => core.post(Mail::Write(Arc::clone(hold), count)),
        Left::Last => {
            let hands_over = core.gates.with(hold.kind.names(), |gate| {
                let hands_over = gate.hand_over(hold, now);
                if !hands_over {
                    gate.release(hold, None, now);
                }
                hands_over
            });
            if hands_over {
                // When the job does not come to it in time, the schedule does.
                core.look_by(hold, now + core.config.command_timeout);
            } else {
                reap(core, hold);
            }
        }
    }
}

fn leave(core: &Core, hold: &Arc<Hold>, level: Level, now: Moment) -> Left {
    let (left, count) = hold.with(|state| {
        let left = state.leave(level, now);
        if left == Left::Last {
            state.finish_by = now + core.config.command_timeout;
        }
        (left, state.count())
    });
    if count == 0
        && let Some(owner) = hold.owner.as_ref().and_then(std::sync::Weak::upgrade)
    {
        owner.remove(hold);
    }
    left
}

/// Leaves the hold's release to the keeper.
pub(crate) fn reap(core: &Core, hold: &Arc<Hold>) {
    if hold.reap() {
        core.post(Mail::Reap(Arc::clone(hold)));
    }
}

/// Writes the number of levels left. Only readers need it: that it cannot be written fails nobody.
pub(crate) async fn write_count(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    count: u32,
    lane: Arc<Lane>,
) -> Result<(), Error> {
    let call = hold.kind.release(&hold.id, count);
    let pending = Pending::start(&lane, call);
    let outcome = pending.within(core.config.command_timeout).await;
    match outcome.map(|answer| found(&answer.reply)) {
        Ok(Some(false)) => core.lose(hold, LostReason::Missing),
        Ok(_) => {}
        Err(failure) => {
            let name = hold.kind.names().name();
            tracing::debug!(name, cause = %failure, "hold count not written");
        }
    }
    // Lost while the count was written is lost, too. An end that other levels brought is none.
    match hold.lost_reason(core.now()) {
        Some(reason) => Err(Error::lost(reason)),
        None => Ok(()),
    }
}

/// Leaves the release to the keeper if its caller goes away before it is answered.
struct Unanswered<'a> {
    core: &'a Core,
    hold: &'a Arc<Hold>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.core.is_forked() && self.hold.with(|state| state.phase) == Phase::Ending {
            // What this caller sent may be executed without anybody hearing of it.
            self.hold.release_unanswered.store(true, Ordering::Release);
            reap(self.core, self.hold);
        }
    }
}

/// Makes the last release, unless the job of its name does: when others wait here and nobody elsewhere, it
/// sends the next try with it. The schedule sees to both.
fn send_last(core: &Core, hold: &Arc<Hold>, lane: &Arc<Lane>, now: Moment) -> Option<Pending> {
    let pending = core.gates.with(hold.kind.names(), |gate| {
        if gate.hand_over(hold, now) {
            return None;
        }
        let pending = Pending::start(lane, hold.kind.release(&hold.id, 0));
        gate.wakeups.expect_echo(hold);
        gate.release(hold, Some(pending.clone()), now);
        Some(pending)
    });
    core.look_by(hold, now + core.config.command_timeout);
    pending
}

/// Waits for the answer to the last release. It has no timer: the keeper ends one that is overdue.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice"
)]
fn answered(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    sent: Option<Pending>,
    deadline: Moment,
) -> impl Future<Output = Result<(), Error>> + Send {
    async move {
        let failure = match sent {
            Some(pending) => {
                let unanswered = Unanswered { core, hold };
                let outcome = pending.await;
                let Err(failure) = settle(core, hold, outcome) else {
                    return hold.outcome();
                };
                drop(unanswered);
                failure
            }
            None => Failure::no_reply(),
        };
        Box::pin(repeated(core, hold, failure, deadline)).await
    }
}

/// The keeper sends the release, or goes on with one that failed; within the time there is, its answer is the caller's.
async fn repeated(
    core: &Core,
    hold: &Hold,
    failure: Failure,
    deadline: Moment,
) -> Result<(), Error> {
    let left = core.now().until(deadline);
    let ended = core.backend.timers().within(left, hold.ended()).await;
    ended.unwrap_or_else(|| Err(failure.into()))
}

/// What the answer to a last release means; the failure when it is to be repeated.
pub(crate) fn settle(core: &Core, hold: &Arc<Hold>, outcome: Outcome) -> Result<(), Failure> {
    let released = outcome.and_then(|answer| {
        let released = hold.kind.released(&answer.reply);
        released.ok_or_else(Failure::strange_reply)
    });
    let told = match released {
        Ok(Released::Ended { heard_by }) => Some(heard_by),
        _ => None,
    };
    let result = match released {
        Ok(Released::Ended { .. }) => Ok(()),
        Ok(Released::Unheard) => {
            core.warn_unheard(hold.kind.names().name());
            Ok(())
        }
        Ok(Released::Missing) if hold.release_unanswered.load(Ordering::Acquire) => Ok(()),
        Ok(Released::Missing) => Err(Error::lost(LostReason::Missing)),
        Err(failure) if failure.is_transient() => {
            if failure.is_unanswered() {
                hold.release_unanswered.store(true, Ordering::Release);
            }
            let names = hold.kind.names();
            core.gates
                .with(names, |gate| gate.wakeups.release_answered(hold, told));
            return Err(failure);
        }
        Err(failure) => Err(failure.into()),
    };
    finish(core, hold, result, told);
    Ok(())
}

/// The hold is over: the name is free for the next one here. `told`: so many clients, when it was published.
pub(crate) fn finish(core: &Core, hold: &Arc<Hold>, result: Result<(), Error>, told: Option<u32>) {
    core.schedule.forget(hold);
    hold.end(result);
    core.gates.with(hold.kind.names(), |gate| {
        gate.wakeups.release_answered(hold, told);
        gate.vacate(hold);
    });
    if hold.is_tainted() {
        reap(core, hold);
    }
}

/// The hold ended without a release: its key is left to its lease.
pub(crate) fn let_go(core: &Core, hold: &Arc<Hold>) {
    core.schedule.forget(hold);
    if let Some(owner) = hold.owner.as_ref().and_then(std::sync::Weak::upgrade) {
        owner.remove(hold);
    }
    hold.end(Ok(()));
    core.gates.with(hold.kind.names(), |gate| gate.vacate(hold));
}

impl Core {
    pub(crate) fn warn_unheard(&self, name: &str) {
        if self.first_unheard() {
            tracing::warn!(
                name,
                "the wake-up of a release was denied: waiters come by their polls only; \
                 allow the channel in the ACL"
            );
        }
    }
}
