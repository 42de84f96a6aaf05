//! What a change at a gate leads to, once the gate's lock is free again.
//!
//! A waker may run any code, also code that comes back to the same gate; so nothing is woken under a lock.

use std::sync::Arc;
use std::task::Waker;

use super::state::HoldState;
use crate::engine::hold::Hold;

/// Collected under a gate's lock, carried out after it.
#[derive(Default)]
#[must_use]
pub(crate) struct Effects {
    wakers: Vec<Waker>,
    changed: Vec<Arc<Hold>>,
    releases: Vec<Arc<Hold>>,
    looks: Vec<Arc<Hold>>,
    turns: Vec<Arc<Hold>>,
}

/// What is left to do for somebody who has a keeper.
pub(crate) struct Rest {
    /// Last releases that are left to it.
    pub(crate) releases: Vec<Arc<Hold>>,
    /// Holds that it is to look at in time, which may be sooner than before.
    pub(crate) looks: Vec<Arc<Hold>>,
    /// Holds that it is to turn into shared ones.
    pub(crate) turns: Vec<Arc<Hold>>,
}

impl Effects {
    /// Wake its task.
    pub(crate) fn wake(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    /// Lets `change` act on the state of `hold`; those who wait for a change of it are told later.
    pub(crate) fn change<R>(
        &mut self,
        hold: &Arc<Hold>,
        change: impl FnOnce(&mut HoldState) -> R,
    ) -> R {
        let (result, told) = hold.update(change);
        if told {
            self.changed.push(Arc::clone(hold));
        }
        result
    }

    /// Leave the last release of `hold` to the keeper. False when the keeper has it already.
    pub(crate) fn release(&mut self, hold: &Arc<Hold>) -> bool {
        let first = self.change(hold, HoldState::claim_release);
        if first {
            self.releases.push(Arc::clone(hold));
        }
        first
    }

    /// The keeper has to look at `hold` in time: it is new, or watched only now.
    pub(crate) fn look(&mut self, hold: &Arc<Hold>) {
        self.looks.push(Arc::clone(hold));
    }

    /// Leave it to the keeper to turn `hold` into a shared one.
    pub(crate) fn turn(&mut self, hold: &Arc<Hold>) {
        self.turns.push(Arc::clone(hold));
    }

    /// Wakes and tells.
    pub(crate) fn carry_out(self) -> Rest {
        for waker in self.wakers {
            waker.wake();
        }
        for hold in self.changed {
            hold.tell();
        }
        Rest {
            releases: self.releases,
            looks: self.looks,
            turns: self.turns,
        }
    }
}
