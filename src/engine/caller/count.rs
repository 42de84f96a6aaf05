//! Writing the hold count, which others read in Redis, or the downgrade of an exclusive hold to a shared one.
//!
//! The keeper repeats a write that failed, or that overlapped another one.

use std::sync::Arc;

use crate::backend::Pending;
use crate::clock::Moment;
use crate::engine::core::{Core, Mail};
use crate::engine::hold::Hold;
use crate::engine::hold::state::HoldState;
use crate::script::Call;

/// A write of the hold count, or of a downgrade, that is under way. If it is dropped before it was acknowledged, the
/// count in Redis is uncertain.
pub(crate) struct Writing<'a> {
    core: &'a Core,
    hold: &'a Arc<Hold>,
    count: Option<u32>,
    acknowledged: bool,
    /// What was sent.
    command: Option<Pending>,
}

/// What has to be written of a hold with so many levels: their count, or `None` for the downgrade of a shared hold.
pub(crate) fn present(hold: &Hold, levels: u32) -> Option<u32> {
    let is_shared_hold = hold.shared_hold().is_none() && hold.kind.commands.has_reads();
    (!is_shared_hold).then_some(levels)
}

/// The call that writes it.
pub(crate) fn call<'a>(core: &Core, hold: &'a Hold, count: Option<u32>) -> Call<'a> {
    let kind = &hold.kind;
    let Some(count) = count else {
        let (_, lease) = core.vouched(hold);
        let call = kind.downgrade(&hold.id, lease);
        return call.unwrap_or_else(|| kind.verify(&hold.id, lease));
    };
    kind.release(&hold.id, count)
}

/// Records that Redis acknowledged a write that was sent at `sent_at`.
pub(crate) fn written(core: &Core, hold: &Arc<Hold>, count: Option<u32>, sent_at: Moment) {
    if count.is_none() {
        core.at(hold.kind.names(), core.now(), |gate, effects| {
            gate.downgraded(hold, sent_at, effects);
        });
    }
}

impl<'a> Writing<'a> {
    pub(crate) fn begin(core: &'a Core, hold: &'a Arc<Hold>, count: Option<u32>) -> Self {
        hold.with(HoldState::write_begins);
        Self::begun(core, hold, count)
    }

    /// Goes on with a write that has begun.
    pub(crate) fn begun(core: &'a Core, hold: &'a Arc<Hold>, count: Option<u32>) -> Self {
        Self {
            core,
            hold,
            count,
            acknowledged: false,
            command: None,
        }
    }

    pub(crate) fn sent(&mut self, command: &Pending) {
        self.command = Some(command.clone());
    }

    pub(crate) fn acknowledged(mut self) {
        self.acknowledged = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let (count, acknowledged) = (self.count, self.acknowledged);
        if let Some(command) = self.command.take().filter(|_| !acknowledged) {
            // It may run behind a write that the keeper sends now.
            command.take_back();
            let hold = Arc::clone(self.hold);
            self.core.post(Mail::WriteBehind(hold, count, command));
            return;
        }
        if self
            .hold
            .with(|state| state.write_ends(count, acknowledged))
        {
            let hold = Arc::clone(self.hold);
            self.core.post(Mail::Write(hold, Moment::default()));
        }
    }
}
