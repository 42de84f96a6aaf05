//! The program as people use it, on real servers.
//!
//! Programs run without a terminal (`setsid`), whatever the tests themselves have, except where a test says otherwise.

mod deployments;
mod doctor;
mod faults;
mod help;
mod job;
mod looking;
mod output;
mod permits;
mod run;
mod signals;
mod snapshot;
mod statuses;
