//! What a lock does, through the public API, as far as all kinds share the code: handles kept and sent, owners and
//! scopes, detached levels, bodies, the end of a client. `tests/kinds` has what each kind must do by itself.

#[path = "../common/mod.rs"]
mod common;

mod cancellation;
mod detached;
mod election;
mod forced;
mod guard_rails;
mod handles;
mod once;
mod orders;
mod owners;
mod places;
mod renewals;
mod scopes;
mod simple;
mod spin;
