//! What a person on call reads in the log: each event once, and no secrets.

mod common;
mod observability_suite;
