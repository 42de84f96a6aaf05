//! The keeper: the client's own background thread.
//!
//! It has its own runtime and its own connection, because user code blocks runtimes and stops polling
//! futures. It runs a job for every name that somebody waits for ([`waiting`]), renews holds in time
//! ([`renewals`], [`asking`], [`calls`]), listens to wake-ups ([`hub`]) and sees releases through that nobody waits for
//! ([`reaper`]). It holds nothing that keeps the client alive, and ends with it.

mod cluster;
mod hub;
mod job;
mod masters;
mod reaper;
mod run;
mod shared;
mod thread;
mod watchdog;

pub(crate) use self::hub::{Hub, Route};
pub(crate) use self::thread::{Starting, Thread};
