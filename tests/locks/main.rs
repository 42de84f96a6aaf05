//! What a lock does, through the public API: who may enter it again and who may give it back, leases and levels, the
//! watchdog and who learns that he is not kept, futures dropped at any await, and what all of it costs.

#[path = "../common/mod.rs"]
mod common;

mod cancellation;
mod detached;
mod forced;
mod guard_rails;
mod handles;
mod leases;
mod orders;
mod owners;
mod places;
mod renewals;
mod scopes;
mod simple;
mod spin;
