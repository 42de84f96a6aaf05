//! What a lock does, through the public API, as far as it is the same code for all kinds: handles kept and sent, owners
//! and scopes, detached levels, bodies, the end of a client. What each kind must do by itself is in `tests/kinds`.

#[path = "../common/mod.rs"]
mod common;

mod cancellation;
mod detached;
mod forced;
mod guard_rails;
mod handles;
mod orders;
mod owners;
mod places;
mod renewals;
mod scopes;
mod simple;
mod spin;
