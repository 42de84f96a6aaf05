//! Waiting: woken by messages, by time and by polls; in order; bounded; and never for nothing.

mod common;
mod waiting_suite;
