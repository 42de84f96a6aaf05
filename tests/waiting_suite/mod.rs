//! I5 and I6, with polls so rare that they cannot be what helped.

mod bounds;
mod crowds;
mod handover;
mod runtimes;
mod unpolled;
mod wakeups;
