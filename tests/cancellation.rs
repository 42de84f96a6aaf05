//! Futures dropped at any await: the end is as if they had not been called.

mod cancellation_suite;
mod common;
