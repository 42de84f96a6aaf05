//! What the engine must know of a kind of lock: its names and its commands.

use std::sync::Arc;

use crate::lease::LeaseMs;
use crate::names::Names;
use crate::script::{Acquired, Call, Released, Reply};

/// A lock of some kind, by name.
///
/// Every command must be harmless when it runs twice or late; replies are `None` when they are none
/// that the script gives.
pub(crate) trait Kind: Send + Sync {
    fn names(&self) -> &Arc<Names>;
    /// Starts a hold.
    fn acquire(&self, hold_id: &str, lease: LeaseMs) -> Call;
    fn acquired(&self, reply: &Reply) -> Option<Acquired>;
    /// Adds a level to a hold that is there.
    fn reenter(&self, hold_id: &str, count: u32, lease: LeaseMs) -> Call;
    /// Gives a level back; with none left the hold ends.
    fn release(&self, hold_id: &str, left: u32) -> Call;
    fn released(&self, reply: &Reply) -> Option<Released>;
}
