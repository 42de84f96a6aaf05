//! Distributed reentrant locks in Redis that a job can hold for hours, that nested code can enter again,
//! and that never lie: shared with Java services that use Redisson.

mod backend;
mod backoff;
mod client;
mod clock;
mod config;
mod engine;
mod error;
mod lease;
mod lock;
mod names;
mod script;

pub use backoff::Backoff;
pub use client::{Client, ClientBuilder};
pub use clock::{Clock, ClockDriver};
pub use error::{Cause, ConfigError, Error, LostReason};
pub use lease::Lease;
pub use lock::{Hold, Lock, LockGuard, Owner, OwnerLock, ReentrantLock, Ttl};
