//! The watchdog: who is kept, and who learns that he is not.

mod common;
mod watchdog_suite;
