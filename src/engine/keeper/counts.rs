//! Hold counts that callers could not write, or wrote at the same time: written until Redis has the present one.

use std::sync::Arc;

use super::Keeper;
use crate::engine::count::Writing;
use crate::engine::hold::Hold;
use crate::engine::state::State;
use crate::error::LostReason;

pub(super) async fn write(keeper: Arc<Keeper>, hold: Arc<Hold>) {
    let core = &keeper.core;
    let mut delays = core.config.backoff.delays(hold.number);
    while hold.with(State::still_needs_count) {
        let count = hold.count();
        let writing = Writing::begin(core, &hold, count);
        let call = hold.kind.release(&hold.id, count);
        let answer = core.ask(call, core.config.command_timeout).await;
        match answer.map(|answer| hold.kind.found(&answer.reply)) {
            Ok(Some(true)) => writing.acknowledged(),
            Ok(Some(false)) => {
                drop(writing);
                core.lose(&hold, LostReason::Missing);
                return;
            }
            Ok(None) | Err(_) => drop(writing),
        }
        if !hold.with(State::still_needs_count) {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(delays.step()) => {}
            () = keeper.closing() => return,
        }
    }
}
