//! What has to happen after a change at a gate, once the gate's lock is free again.
//!
//! A waker may run any code, even code that takes the same gate's lock. So nothing is woken under a lock: a change
//! collects its [`Effects`], and its caller carries them out after it has released the lock.

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

/// What is left for the keeper to do.
pub(crate) struct KeeperWork {
    /// Holds whose last release the keeper sends.
    pub(crate) releases: Vec<Arc<Hold>>,
    /// Holds that the keeper looks at in time, which may be sooner than it planned.
    pub(crate) looks: Vec<Arc<Hold>>,
    /// Exclusive holds that the keeper downgrades to shared holds.
    pub(crate) downgrades: Vec<Arc<Hold>>,
}

impl Effects {
    /// Wakes a task later.
    pub(crate) fn wake(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    /// Lets `change` act on the state of `hold`, and notifies those who wait for a change of it later.
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

    /// Leaves the last release of `hold` to the keeper. Returns false if the keeper has it already.
    pub(crate) fn release(&mut self, hold: &Arc<Hold>) -> bool {
        let first = self.change(hold, HoldState::claim_release);
        if first {
            self.releases.push(Arc::clone(hold));
        }
        first
    }

    /// Asks the keeper to look at `hold` in time: the hold is new, or the watchdog keeps it from now on.
    pub(crate) fn look(&mut self, hold: &Arc<Hold>) {
        self.looks.push(Arc::clone(hold));
    }

    /// Leaves it to the keeper to downgrade `hold` to a shared hold.
    pub(crate) fn downgrade(&mut self, hold: &Arc<Hold>) {
        self.downgrades.push(Arc::clone(hold));
    }

    /// Wakes and notifies everybody, and returns what is left for the keeper.
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
