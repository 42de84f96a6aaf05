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
    downgrades: Vec<Arc<Hold>>,
}

/// What is left to do for somebody who has a keeper.
pub(crate) struct KeeperWork {
    /// Last releases that are left to it.
    pub(crate) releases: Vec<Arc<Hold>>,
    /// Holds that it is to look at in time, which may be sooner than before.
    pub(crate) looks: Vec<Arc<Hold>>,
    /// Holds that it is to downgrade into shared ones.
    pub(crate) downgrades: Vec<Arc<Hold>>,
}

impl Effects {
    /// Wake its task.
    pub(crate) fn wake(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    /// Lets `change` act on the state of `hold`; those who wait for a change of it are notify later.
    pub(crate) fn change<R>(
        &mut self,
        hold: &Arc<Hold>,
        change: impl FnOnce(&mut HoldState) -> R,
    ) -> R {
        let (result, notify) = hold.update(change);
        if notify {
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

    /// Leave it to the keeper to downgrade `hold` into a shared one.
    pub(crate) fn downgrade(&mut self, hold: &Arc<Hold>) {
        self.downgrades.push(Arc::clone(hold));
    }

    /// Wakes and tells.
    pub(crate) fn carry_out(self) -> KeeperWork {
        for waker in self.wakers {
            waker.wake();
        }
        for hold in self.changed {
            hold.notify();
        }
        KeeperWork {
            releases: self.releases,
            looks: self.looks,
            downgrades: self.downgrades,
        }
    }
}
