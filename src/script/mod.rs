//! The commands that are sent to Redis, and their replies.
//!
//! A [`Call`] is one command: a Lua script or a plain command, with its keys and arguments. It borrows them, and is
//! encoded where it is sent: as `EVALSHA`, or as `EVAL` when the server does not know the script. [`call`] embeds
//! the files under `lua/`, and has the table of what they answer. Every script is harmless when it runs twice; its header
//! says why.

#[cfg(test)]
pub(crate) mod any_reply_tests;
pub(crate) mod call;

pub(crate) use self::call::{Call, Encoded, HoldRef, Order, Reply, Startable, Turn};
