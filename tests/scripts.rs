//! The Lua scripts, called directly: reply, keys, leases and messages, each run twice.

mod common;
mod scripts_suite;
