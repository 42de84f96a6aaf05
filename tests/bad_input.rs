//! Bad input: each a clear typed error, at once, with nothing left in Redis.

mod bad_input_suite;
mod common;
