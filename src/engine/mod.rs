//! The engine: what makes any kind of lock wait, last and end.
//!
//! Fast things are done by the caller on the caller's own runtime, one round trip each: the first try
//! ([`attempt`]), re-entry and giving back ([`release`]). Everything that waits, repeats or cleans up is
//! done by the [`keeper`], on a thread of its own, because user code blocks runtimes and stops polling
//! futures. The [`gate`] of each name makes the two safe together.

pub(crate) mod caller;
pub(crate) mod core;
pub(crate) mod gate;
pub(crate) mod hold;
pub(crate) mod keep_alive;
pub(crate) mod keeper;

#[cfg(test)]
mod made_tests;
