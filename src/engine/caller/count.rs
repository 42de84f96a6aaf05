//! Writing the hold count, which others read in Redis; or that a hold is shared from now on. A write that failed, or
//! that others overlapped, is made good by the keeper.

use std::sync::Arc;

use crate::clock::Moment;
use crate::engine::core::{Core, Mail};
use crate::engine::hold::Hold;
use crate::lease::LeaseMs;
use crate::script::Call;

/// A write of the hold count that is under way; what was not acknowledged when it is dropped is not certain.
pub(crate) struct Writing<'a> {
    core: &'a Core,
    hold: &'a Arc<Hold>,
    count: Option<u32>,
    acknowledged: bool,
}

/// What Redis is to be told of a hold: the count of levels, or of a joint hold that it is shared from now on.
pub(crate) fn present(hold: &Hold) -> Option<u32> {
    let is_shared = hold.shared_hold().is_none() && hold.kind.commands.has_reads();
    (!is_shared).then(|| hold.count())
}

/// Tells it.
pub(crate) fn call<'a>(core: &Core, hold: &'a Hold, count: Option<u32>) -> Call<'a> {
    let kind = &hold.kind;
    let Some(count) = count else {
        let lease = lease_left(core, hold);
        let call = kind.commands.downgrade(kind.names(), &hold.id, lease);
        let call = call.map(Call::acknowledged);
        return call.unwrap_or_else(|| kind.verify(&hold.id, lease));
    };
    kind.release(&hold.id, count)
}

/// What the client vouches for, from now on.
fn lease_left(core: &Core, hold: &Hold) -> LeaseMs {
    let (watched, ends) = hold.with(|state| (state.is_watched(), state.lease_ends()));
    let left = LeaseMs::left(core.now().until(ends));
    if watched {
        left.max(core.config.watchdog_lease)
    } else {
        left
    }
}

/// Redis acknowledged a write that was sent at `sent_at`.
pub(crate) fn written(core: &Core, hold: &Arc<Hold>, count: Option<u32>, sent_at: Moment) {
    if count.is_none() {
        let rules = core.rules();
        core.at(hold.kind.names(), |gate, effects| {
            gate.turned(hold, sent_at, rules, effects);
        });
    }
}

impl<'a> Writing<'a> {
    pub(crate) fn begin(core: &'a Core, hold: &'a Arc<Hold>, count: Option<u32>) -> Self {
        hold.with(crate::engine::hold::state::HoldState::write_begins);
        Self {
            core,
            hold,
            count,
            acknowledged: false,
        }
    }

    pub(crate) fn acknowledged(mut self) {
        self.acknowledged = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let (count, acknowledged) = (self.count, self.acknowledged);
        if self
            .hold
            .with(|state| state.write_ends(count, acknowledged))
        {
            self.core.post(Mail::Write(Arc::clone(self.hold)));
        }
    }
}
