//! Writing the hold count, which others read in Redis. A write that failed, or that others overlapped, is made
//! good by the keeper.

use std::sync::Arc;

use super::core::{Core, Mail};
use super::hold::Hold;

/// A write of the hold count that is under way; what was not acknowledged when it is dropped is not certain.
pub(crate) struct Writing<'a> {
    core: &'a Core,
    hold: &'a Arc<Hold>,
    count: u32,
    acknowledged: bool,
}

impl<'a> Writing<'a> {
    pub(crate) fn begin(core: &'a Core, hold: &'a Arc<Hold>, count: u32) -> Self {
        hold.with(super::state::State::write_begins);
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
