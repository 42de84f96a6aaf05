//! A Redis without I/O: bytes in, bytes out, and a time that its owner sets.
//!
//! [`Store`] is one server. A session is one connection to it: [`Store::push`] gives it the bytes that arrived,
//! [`Store::run_next`] runs one command of them, and [`Store::take_output`] takes the bytes that it has to send.
//! Nothing happens by itself: time is what [`Store::set_time`] says, and randomness comes from a seed, so the same calls
//! give the same bytes.
//!
//! ```
//! use watchlock_test::core::{Options, Store};
//!
//! let mut store = Store::new(Options::default());
//! let session = store.connect();
//! store.push(session, b"*3\r\n$3\r\nSET\r\n$4\r\nname\r\n$5\r\nvalue\r\n");
//! let ran = store.run_next(session).expect("a whole command arrived");
//! assert_eq!(ran.command, "set");
//! assert_eq!(store.take_output(session), b"+OK\r\n");
//! ```
//!
#![doc = include_str!("left_out.md")]

mod acl;
mod call;
mod commands;
mod dispatch;
mod dump;
mod failure;
mod glob;
mod hub;
mod keyspace;
mod lua;
mod number;
mod random;
mod reply;
mod request;
mod runner;
mod script_call;
mod session;
mod settings;
mod state;
mod statistics;
mod store;
#[cfg(test)]
mod store_tests;
mod value;

pub use reply::Reply;
pub use session::SessionId;
pub use store::{Options, Ran, Store};

/// Any bytes: keys, values and arguments need not be text.
pub type Bytes = Vec<u8>;
