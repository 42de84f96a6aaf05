//! Test kit of watchlock, which integration tests, the fault campaign, benches and the demo use.
//!
//! - [`server`]: a private redis-server that can be killed, restarted, frozen and inspected
//! - [`sentinel`]: a master, its replicas and their sentinels
//! - [`cluster`]: a private cluster, whose slots can be moved and whose masters can fail
//! - [`proxy`]: a TCP proxy that understands whole commands and injects faults
//! - [`worker`]: client processes driven by JSON lines, killed and frozen
//! - [`history`]: what clients did and saw, line by line; [`checker`]: the invariants, proved or refuted from it;
//!   [`controls`]: clients that are wrong on purpose, to hold it against
//! - [`campaign`]: many workers, everything breaking, and a proof afterwards
//! - certificates, in [`mod@tls`]
//! - signals, in [`mod@process`]
//! - [`eventually`], [`wait_until`], [`now_ns`]: conditions with a deadline, the shared clock
//!
//! The crate `redis-test` can start servers as well, but cannot restart one on its port and directory, freeze it, or
//! end it when a test is killed with -9, and the tests here need mostly that.

pub mod campaign;
pub mod checker;
pub mod cluster;
pub mod controls;
pub mod history;
pub mod house;
mod port;
pub mod process;
pub mod proxy;
pub mod sentinel;
pub mod server;
pub mod tls;
mod wait;
pub mod worker;

pub use wait::{StallWatch, eventually, now_ns, wait_until};
