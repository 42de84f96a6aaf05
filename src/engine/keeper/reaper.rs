//! Seeing last releases through: repeated until answered, or until the lease has ended by itself.
//!
//! A hold whose validity ended is left to the rest of its lease first: the drift is its holder's time to
//! stop, and not to be cut short by a release.
//!
//! A tainted hold came from an acquire that once went unanswered. A stalled server may still run that
//! old command, after any release: so the release is repeated for a while after the first answer.

use std::sync::Arc;
use std::time::Duration;

use super::job::policy::OUTAGE;
use super::shared::Keeper;
use crate::backend::Failure;
use crate::engine::caller::count::{Writing, call, present, written};
use crate::engine::caller::settle::{give_up_release, settle_release};
use crate::engine::gate::answers::SentAs;
use crate::engine::hold::Hold;
use crate::engine::hold::state::{HoldState, Phase};
use crate::error::LostReason;

/// The longest that releases of a tainted hold are repeated.
const GHOST: Duration = Duration::from_secs(60);

pub(super) async fn see_through(keeper: Arc<Keeper>, hold: Arc<Hold>) {
    let core = &keeper.core;
    let (phase, lease_ends) = hold.with(|state| (state.phase(), state.lease_ends()));
    let owed_until = hold.with(|state| state.owed_until());
    if phase == Phase::Lost(LostReason::Expired) {
        tokio::select! {
            () = tokio::time::sleep(core.now().until(owed_until)) => {}
            () = keeper.closing() => {}
        }
    }
    let give_up = lease_ends.max(core.now() + core.config.command_timeout + ghost_time(&hold));
    let mut delays = core.config.backoff.delays(hold.number);
    let mut ghost_until = None;
    loop {
        // Looked at before: what asks for a place may run behind this release, and be answered with it.
        let may_run_behind = hold.with(|state| state.is_tainted() | state.takes_place_back());
        let settled = send(&keeper, &hold).await;
        let now = core.now();
        let mut pause = delays.step();
        let done = match settled {
            Ok(()) if !may_run_behind && !hold.is_tainted() => true,
            Ok(()) if !hold.is_tainted() => false,
            Ok(()) => now >= *ghost_until.get_or_insert(now + ghost_time(&hold)),
            Err(failure) => {
                // Others wait for this lock.
                pause = pause.min(OUTAGE);
                let over = now >= give_up;
                if over {
                    give_up_release(core, &hold, failure);
                }
                over
            }
        };
        if done || keeper.is_closing() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = keeper.closing() => {}
        }
    }
}

/// Awaits the release that is in flight, or sends one.
async fn send(keeper: &Keeper, hold: &Arc<Hold>) -> Result<(), Failure> {
    let core = &keeper.core;
    let limit = core.config.command_timeout;
    let names = hold.kind.names();
    if let Some(command) = core.gates.with(names, |gate| gate.release_of(hold)) {
        let outcome = command.clone().within(limit).await;
        return settle_release(core, hold, &SentAs::Seat(&command), outcome);
    }
    let _turn = keeper.sending.acquire().await;
    let since = core.now();
    if hold.phase() == Phase::Ending {
        core.gates.with(names, |gate| gate.expect_echo(hold));
    }
    let outcome = core.ask(hold.kind.release(&hold.id, 0), limit).await;
    settle_release(core, hold, &SentAs::Keeper(since), outcome)
}

/// How long an old acquire may still be executed, and do harm. A hold ends with its lease; a place in a queue that
/// Redis keeps does not.
fn ghost_time(hold: &Hold) -> Duration {
    if hold.kind.has_queue() {
        return GHOST;
    }
    hold.lease.duration().min(GHOST)
}

pub(super) async fn write_count(keeper: Arc<Keeper>, hold: Arc<Hold>) {
    let core = &keeper.core;
    let mut delays = core.config.backoff.delays(hold.number);
    while hold.with(HoldState::still_needs_count) {
        let count = present(&hold);
        let writing = Writing::begin(core, &hold, count);
        let call = call(core, &hold, count);
        let answer = core.ask(call, core.config.command_timeout).await;
        match answer.map(|answer| (hold.kind.found(&answer.reply), answer.sent_at)) {
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
        if !hold.with(HoldState::still_needs_count) {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(delays.step()) => {}
            () = keeper.closing() => return,
        }
    }
}
