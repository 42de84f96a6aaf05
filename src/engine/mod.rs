//! The engine: what makes any kind of lock wait, last and end.
//!
//! Fast things are done by the caller on the caller's own runtime, one round trip each: the first try
//! ([`attempt`]), re-entry and giving back ([`release`]). Everything that waits, repeats or cleans up is
//! done by the [`keeper`], on a thread of its own, because user code blocks runtimes and stops polling
//! futures. The [`gate`] of each name makes the two safe together.

pub(crate) mod attempt;
pub(crate) mod core;
pub(crate) mod count;
pub(crate) mod effects;
pub(crate) mod gate;
pub(crate) mod gates;
pub(crate) mod grant;
pub(crate) mod hold;
pub(crate) mod joining;
pub(crate) mod joint;
pub(crate) mod keep_alive;
pub(crate) mod keeper;
pub(crate) mod kind;
pub(crate) mod known;
pub(crate) mod outcomes;
pub(crate) mod owner;
pub(crate) mod passing;
pub(crate) mod places;
pub(crate) mod queue;
pub(crate) mod reentry;
pub(crate) mod release;
pub(crate) mod row;
pub(crate) mod schedule;
pub(crate) mod seat;
pub(crate) mod settle;
pub(crate) mod shares;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod ticket;
pub(crate) mod verify;
pub(crate) mod wakeups;
pub(crate) mod written;

pub(crate) use self::core::{Core, Mail};
pub(crate) use self::keep_alive::Engine;

#[cfg(test)]
mod made_tests;
#[cfg(test)]
mod model_tests;
