//! Levels and leases: fixed ones are promises, the watchdog keeps what it must, nothing is ever cut short.

mod common;
mod levels_suite;
