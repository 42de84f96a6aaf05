//! Whole clients in one thread, under simulated time and network, from a seed.
//!
//! A [`Plan`] says what a seed stands for; [`run`] runs it and judges what happened. The same seed gives the same run, byte
//! for byte.

mod faults;
mod guard;
mod locks;
mod owner;
mod plan;
mod process;
mod replica;
mod run;
mod shrink;
mod story;
mod trace;
mod world;

pub use plan::{Plan, Weather};
pub use run::{Outcome, Traced, run};
pub use shrink::shrink;
