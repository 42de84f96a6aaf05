//! Completing what callers could not: last releases, and writes of the hold count.
//!
//! 1. A last release is repeated until it is answered. It is given up when all acknowledged leases have ended by themselves
//!    and the longest one that was only asked for has had its time, a minute at most.
//! 2. An expired hold keeps the rest of its lease before it is released: the clock drift that the client allows for is
//!    its holder's time to stop, and a release must not shorten it. So does a writer's that goes on for its reads before
//!    it is downgraded.
//! 3. A tainted hold comes from an acquire that went unanswered. A stalled server may run that acquire after any
//!    release, so the release is repeated for a while after its first answer. Each pause is as long as all before it: a
//!    server that stalled may leave thousands of tainted holds, and an old acquire most often runs soon if it ever does.
//! 4. While the client closes, a release is repeated as long as the keeper lives, and that of a tainted hold for
//!    [`GHOST_AT_END`].
//! 5. A count whose write failed, or overlapped another write, is written until Redis certainly has the present one.

use std::sync::Arc;
use std::time::Duration;

use scopeguard::guard;

use super::Keeper;
use crate::backend::{Failure, Pending};
use crate::backoff::OUTAGE;
use crate::clock::Moment;
use crate::engine::caller::release::{Writing, written};
use crate::engine::core::{give_up_release, settle_release};
use crate::engine::gate::answers::SentAs;
use crate::engine::hold::Hold;
use crate::engine::hold::state::{HoldState, Phase};
use crate::error::LostReason;

/// The longest time for which releases of a tainted hold are repeated.
const GHOST: Duration = Duration::from_secs(60);

/// The same while the client closes, from the first answer on.
const GHOST_AT_END: Duration = Duration::from_millis(400);

pub(super) async fn complete_release(keeper: Arc<Keeper>, hold: Arc<Hold>) {
    let core = &keeper.core;
    // If the client ends before it is answered, the report of the shutdown has its name.
    let mut is_answered = guard(false, |is_answered| {
        if !is_answered && keeper.is_closing() {
            keeper.core.report.leaves(hold.kind.names.name());
        }
    });
    let (phase, lease_ends, owed_until) =
        hold.with(|state| (state.phase(), state.lease_ends(), state.owed_until()));
    if phase == Phase::Lost(LostReason::Expired) && !keeper.is_closing() {
        keeper.pause(core.now().until(owed_until)).await;
    }
    let give_up = lease_ends.max(core.now() + core.config.command_timeout + ghost_time(&hold));
    let mut delays = core.config.backoff.at_most(OUTAGE).delays(hold.number);
    let (mut answered_since, mut unreleased) = (None, None);
    loop {
        // Read before the send: a request for a place may run after this release, and its answer may arrive with that
        // of the release.
        let may_run_behind = hold.with(|state| state.is_tainted() | state.takes_place_back());
        let settled = send(&keeper, &hold).await;
        let is_ok = settled.is_ok();
        // For a hold that was granted, the repeats only make sure. The acquire of an attempt may still run after this answer.
        *is_answered |= is_ok && lease_ends != Moment::default();
        let now = core.now();
        let mut pause = delays.step();
        let done = match settled {
            Ok(()) if !may_run_behind && !hold.is_tainted() => true,
            Ok(()) if !hold.is_tainted() => false,
            Ok(()) => {
                let since = *answered_since.get_or_insert(now);
                let most = if keeper.is_closing() {
                    GHOST_AT_END
                } else {
                    GHOST
                };
                let left = now.until(since + ghost_time(&hold).min(most));
                pause = pause.max(since.until(now)).min(left);
                left.is_zero()
            }
            Err(failure) => {
                if answered_since.is_none() {
                    unreleased.get_or_insert_with(|| core.report.is_unreleased());
                }
                let over = now >= give_up;
                if over {
                    give_up_release(core, &hold, failure);
                }
                over
            }
        };
        if done {
            *is_answered = is_ok || answered_since.is_some();
            return;
        }
        keeper.pause(pause).await;
    }
}

/// Awaits the release that is in flight, or sends one.
async fn send(keeper: &Keeper, hold: &Arc<Hold>) -> Result<(), Failure> {
    let core = &keeper.core;
    let names = &hold.kind.names;
    if let Some(command) = core.gates.with(names, |gate| gate.release_of(hold)) {
        let limit = core.config.command_timeout;
        let outcome = command.clone().within_of(core.now(), limit).await;
        return settle_release(core, hold, &SentAs::Seat(&command), outcome);
    }
    if hold.phase() == Phase::Ending {
        core.gates.with(names, |gate| gate.expect_echo(hold));
    }
    let (since, outcome) = keeper.releases.send(core, hold).await;
    settle_release(core, hold, &SentAs::Keeper(since), outcome)
}

/// For how long an old acquire or re-entry may still run and do harm. A hold that it starts or keeps ends with its lease;
/// a place in a queue that Redis keeps does not.
fn ghost_time(hold: &Hold) -> Duration {
    if hold.kind.has_queue() {
        return GHOST;
    }
    let asked = hold.with(|state| state.longest_asked());
    hold.lease.duration().max(asked).min(GHOST)
}

/// Waits until `command`, a write of `count` that its caller dropped, runs no more, and then writes what is true.
pub(super) async fn write_behind(
    keeper: Arc<Keeper>,
    hold: Arc<Hold>,
    count: Option<u32>,
    command: Pending,
) {
    let _ = command.within(keeper.core.config.command_timeout).await;
    if hold.with(|state| state.write_ends(count, false)) {
        write_count(keeper, hold, Moment::default()).await;
    }
}

/// Writes the count, or the downgrade, of `hold` until Redis has it: from `moment` on, when the writer's lease ends (2).
pub(super) async fn write_count(keeper: Arc<Keeper>, hold: Arc<Hold>, moment: Moment) {
    let core = &keeper.core;
    let left = core.now().until(moment);
    if !left.is_zero() && !keeper.is_closing() {
        keeper.pause(left).await;
    }
    let mut delays = core.config.backoff.at_most(OUTAGE).delays(hold.number);
    while let Some(levels) = hold.with(HoldState::begins_needed_count) {
        let count = present(&hold, levels);
        let writing = Writing::begun(core, &hold, count);
        let answer = core.ask(writing.call()).await;
        match answer.map(|answer| (answer.reply.found(), answer.sent_at)) {
            Ok((Some(true), sent_at)) => {
                writing.acknowledged();
                written(core, &hold, count, sent_at);
            }
            Ok((Some(false), _)) => {
                drop(writing);
                core.lose(&hold, LostReason::Missing);
                return;
            }
            Ok((None, _)) | Err(_) => drop(writing),
        }
        if hold.with(HoldState::still_needs_count).is_none() {
            return;
        }
        keeper.pause(delays.step()).await;
        if keeper.is_closing() {
            return;
        }
    }
}

/// What has to be written of a hold with so many levels: their count, or `None` for the downgrade of a shared hold.
fn present(hold: &Hold, levels: u32) -> Option<u32> {
    let is_shared_hold = hold.shared_hold().is_none() && hold.kind.commands.has_reads();
    (!is_shared_hold).then_some(levels)
}
