//! What callers could not write, or wrote at the same time, of the levels of a hold: written until Redis has it as it is.

use std::sync::Arc;

use super::shared::Keeper;
use crate::engine::caller::count::{Writing, call, present, written};
use crate::engine::hold::Hold;
use crate::engine::hold::state::HoldState;
use crate::error::LostReason;

pub(super) async fn write(keeper: Arc<Keeper>, hold: Arc<Hold>) {
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
