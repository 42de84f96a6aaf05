//! Waiting (I5 and I6): woken by messages, by time and by polls; in order; bounded; never in vain; and whatever user
//! code does to runtimes and futures.

#[path = "../common/mod.rs"]
mod common;

mod bounds;
mod crowds;
mod grants;
mod handover;
mod passing;
mod starvation;
mod turns;
mod wakers;
mod wakeups;
