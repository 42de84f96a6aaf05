//! A Redis in memory, for tests of code that locks with watchlock.

pub mod core;
