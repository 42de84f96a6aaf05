//! What a client gets from the machine that it runs on: tasks, connections, random ids, and background threads.
//!
//! With the feature `__simulation`, which only the project's own tests use, several clients run in one thread, each as a
//! process of a simulated world, and all of this comes from that world. Without the feature each function here is an
//! identity, or what the standard library and tokio have.

#[cfg(feature = "__simulation")]
pub mod simulated;

#[cfg(feature = "__simulation")]
pub(crate) use simulated::{
    FixedState as RandomState, HostStream, background, connect, is_simulated, now, own, uuid,
};

#[cfg(not(feature = "__simulation"))]
pub(crate) use real::{HostStream, RandomState, background, is_simulated, own, uuid};

#[cfg(not(feature = "__simulation"))]
mod real {
    /// The future as a task of this process; or as a background thread, where [`is_simulated`] is true: never.
    pub(crate) use std::convert::{identity as own, identity as background};
    pub(crate) use std::hash::RandomState;
    pub(crate) use tokio::net::TcpStream as HostStream;
    pub(crate) use uuid::Uuid;

    /// Whether this thread is a simulated world, in which background threads are tasks.
    pub(crate) const fn is_simulated() -> bool {
        false
    }

    pub(crate) fn uuid() -> Uuid {
        Uuid::new_v4()
    }
}
