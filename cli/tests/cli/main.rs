//! The program as people use it, on real servers.
//!
//! Programs run without a terminal (`setsid`), whatever the tests themselves have, except where a test says otherwise.

mod faults;
mod job;
mod run;
mod signals;
mod statuses;
