//! The keeper: the client's own background thread.
//!
//! It has its own runtime and its own connections, because user code blocks runtimes and stops polling futures. It runs
//! a job for every name that somebody waits for ([`job`]), renews holds in time ([`watchdog`]), subscribes to wake-ups
//! ([`hub`]), completes releases that no caller completes ([`reaper`]), and follows fail-overs ([`masters`]) and slots
//! that move ([`cluster`]), and shows who the client is ([`label`]). It holds nothing that keeps the client alive, and ends with the last [`Engine`].

mod cluster;
mod hub;
mod job;
mod label;
mod masters;
mod reaper;
mod release_queue;
mod shared;
mod thread;
mod watchdog;

pub(crate) use self::hub::{Hub, Route};
pub(crate) use self::thread::{Engine, Starting, start_thread};
