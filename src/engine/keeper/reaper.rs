//! Seeing last releases through: repeated until answered, or until the lease has ended by itself.
//!
//! A hold whose validity ended is left to the rest of its lease first: the drift is its holder's time to
//! stop, and not to be cut short by a release.
//!
//! A tainted hold came from an acquire that once went unanswered. A stalled server may still run that
//! old command, after any release: so the release is repeated for a while after the first answer.

use std::sync::Arc;
use std::time::Duration;

use super::Keeper;
use crate::engine::hold::Hold;
use crate::engine::release;
use crate::engine::state::Phase;
use crate::error::LostReason;

/// The longest that releases of a tainted hold are repeated.
const GHOST: Duration = Duration::from_secs(60);

pub(crate) async fn reap(keeper: Arc<Keeper>, hold: Arc<Hold>) {
    let core = &keeper.core;
    let command = core.config.command_timeout;
    let (phase, lease_ends) = hold.with(|state| (state.phase, state.lease_ends));
    if phase == Phase::Lost(LostReason::Expired) {
        tokio::select! {
            () = tokio::time::sleep(core.now().until(lease_ends)) => {}
            () = keeper.closing() => {}
        }
    }
    let give_up = lease_ends.max(core.now() + command + ghost_time(&hold));
    let mut delays = core.config.backoff.delays(hold.number);
    let mut ghost_until = None;
    loop {
        if hold.with(|state| state.phase) == Phase::Ending {
            core.gates
                .with(hold.kind.names(), |gate| gate.wakeups.expect_echo(&hold));
        }
        let outcome = core.ask(hold.kind.release(&hold.id, 0), command).await;
        let settled = release::settle(core, &hold, outcome);
        let now = core.now();
        let done = match settled {
            Ok(()) if !hold.is_tainted() => true,
            Ok(()) => now >= *ghost_until.get_or_insert(now + ghost_time(&hold)),
            Err(failure) => {
                let over = now >= give_up;
                if over {
                    release::finish(core, &hold, Err(failure.into()), None);
                }
                over
            }
        };
        if done || keeper.is_closing() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(delays.step()) => {}
            () = keeper.closing() => {}
        }
    }
}

/// How long an old acquire may still be executed.
fn ghost_time(hold: &Hold) -> Duration {
    hold.lease.duration().min(GHOST)
}
