//! What the engine must know of a lock: its names, and the commands of its kind.

use std::sync::Arc;

use crate::lease::LeaseMs;
use crate::names::Names;
use crate::script::{Acquired, Call, Released, Reply};

/// The commands of a kind of lock.
///
/// Every command must be harmless when it runs twice or late; replies are `None` when they are none
/// that the script gives.
pub(crate) trait Commands: Send + Sync {
    /// Starts a hold.
    fn acquire(&self, names: &Names, hold_id: &str, lease: LeaseMs) -> Call;
    fn acquired(&self, reply: &Reply) -> Option<Acquired>;
    /// Adds a level to a hold that is there.
    fn reenter(&self, names: &Names, hold_id: &str, count: u32, lease: LeaseMs) -> Call;
    /// Asks whether a hold is there, by a write.
    fn verify(&self, names: &Names, hold_id: &str, lease: LeaseMs) -> Call;
    /// Gives a level back; with none left the hold ends.
    fn release(&self, names: &Names, hold_id: &str, left: u32) -> Call;
    fn released(&self, reply: &Reply) -> Option<Released>;
}

/// A lock of some kind, by name. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Kind {
    pub(crate) names: Arc<Names>,
    pub(crate) commands: &'static dyn Commands,
}

impl Kind {
    pub(crate) fn names(&self) -> &Arc<Names> {
        &self.names
    }

    pub(crate) fn acquire(&self, hold_id: &str, lease: LeaseMs) -> Call {
        self.commands.acquire(&self.names, hold_id, lease)
    }

    pub(crate) fn acquired(&self, reply: &Reply) -> Option<Acquired> {
        self.commands.acquired(reply)
    }

    pub(crate) fn reenter(&self, hold_id: &str, count: u32, lease: LeaseMs) -> Call {
        self.commands.reenter(&self.names, hold_id, count, lease)
    }

    pub(crate) fn verify(&self, hold_id: &str, lease: LeaseMs) -> Call {
        self.commands.verify(&self.names, hold_id, lease)
    }

    pub(crate) fn release(&self, hold_id: &str, left: u32) -> Call {
        self.commands.release(&self.names, hold_id, left)
    }

    pub(crate) fn released(&self, reply: &Reply) -> Option<Released> {
        self.commands.released(reply)
    }
}
