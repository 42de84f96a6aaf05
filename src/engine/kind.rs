//! What the engine must know of a lock: its names, and what its kind says of it.
//!
//! The engine has no branch on a kind: whatever differs between kinds is asked here.

use std::sync::Arc;

use crate::lease::LeaseMs;
use crate::names::Names;
use crate::script::{Acquired, Call, Forced, Released, Renewal, Renewed, Reply};

/// What a kind of lock says.
///
/// Every command must be harmless when it runs twice or late (I2, I3); replies are `None` when they are none
/// that the script gives.
pub(crate) trait Commands: Send + Sync {
    /// What it is called. Renewals of one kind share their calls.
    fn name(&self) -> &'static str;

    /// Whether an acquire of the owner `asks` may enter the hold that the owner `holds` has, instead of waiting
    /// behind it. Exclusive kinds let an owner in to what it has.
    fn may_enter(&self, holds: Option<u64>, asks: Option<u64>) -> bool {
        holds.is_some() && holds == asks
    }

    /// Starts a hold.
    fn acquire(&self, names: &Names, hold_id: &str, lease: LeaseMs) -> Call;
    fn acquired(&self, reply: &Reply) -> Option<Acquired>;

    /// Adds a level to a hold that is there.
    fn reenter(&self, names: &Names, hold_id: &str, count: u32, lease: LeaseMs) -> Call;
    /// Asks whether a hold is there, by a write.
    fn verify(&self, names: &Names, hold_id: &str, lease: LeaseMs) -> Call;
    /// Gives a level back; with none left the hold ends.
    fn release(&self, names: &Names, hold_id: &str, left: u32) -> Call;
    /// What a last release was answered.
    fn released(&self, reply: &Reply) -> Option<Released>;
    /// Whether the hold was there, by the reply to any of the three.
    fn found(&self, reply: &Reply) -> Option<bool>;

    /// Lengthens the leases of many holds of this kind, each for itself.
    fn renew(&self, holds: &[Renewal<'_>]) -> Call;
    fn renewed(&self, reply: &Reply) -> Option<Vec<Renewed>>;

    /// Ends whoever holds the lock; `client` tells own holds from strangers'.
    fn force(&self, names: &Names, client: &str) -> Call;
    fn forced(&self, reply: &Reply) -> Option<Forced>;

    /// Asks whether anybody holds the lock.
    fn look(&self, names: &Names) -> Call;
    fn looked(&self, reply: &Reply) -> Option<bool>;
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

    pub(crate) fn found(&self, reply: &Reply) -> Option<bool> {
        self.commands.found(reply)
    }
}
