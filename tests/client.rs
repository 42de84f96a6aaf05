//! The client: how it connects, what it uses, how it ends.

mod client_suite;
mod common;
