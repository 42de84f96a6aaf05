//! The engine: how any kind of lock waits, is held, and ends.
//!
//! Whatever takes one round trip runs in the [`caller`], on its own runtime: the first try, re-entry, verification,
//! giving a level back. Whatever waits, repeats or cleans up runs in the [`keeper`], on a thread of its own, because
//! user code blocks runtimes and stops polling futures. Both change a [`hold`] only through the [`gate`] of its name,
//! so they can work on it at the same time. [`core`] is what the two share. Who waits for a
//! latch ([`latches`]) waits for no hold.

pub(crate) mod caller;
pub(crate) mod core;
pub(crate) mod gate;
pub(crate) mod hold;
pub(crate) mod keeper;
pub(crate) mod latches;

#[cfg(test)]
mod made_tests;
