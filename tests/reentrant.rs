//! Who may enter a lock again, and who may give it back.

mod common;
mod reentrant_suite;
