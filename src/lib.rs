//! Distributed reentrant locks in Redis: a job can hold one for hours, nested code can enter it again, a loss is reported in
//! time, and Java services that use Redisson share it.
//!
//! ```no_run
//! use watchlock::Client;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), watchlock::Error> {
//!     let client = Client::connect("redis://127.0.0.1/").await?;
//!     let guard = client.get_lock("report:2026").lock().await?;
//!     println!("nobody else is here");
//!     guard.unlock().await
//! }
//! ```
//!
//! - [`Client`]: one per process, cheap to clone. [`Client::builder`] sets it up, [`Client::shutdown`] ends it.
//! - [`ReentrantLock`]: a handle by name, from [`Client::get_lock`] or [`Owner::get_lock`]. `lock`, `lock_with_lease`,
//!   `try_lock`, `run`. [`Lock`] is what every kind of lock can do, and [`LockExt`] gives each of them `run`.
//! - [`FencedLock`]: its holds have a [`FencingToken`], a number that grows from holder to holder; from
//!   [`Client::get_fenced_lock`] or [`Owner::get_fenced_lock`].
//! - [`FairLock`]: granted in the order of arrival, over all processes.
//! - [`SpinLock`]: the same lock, waiting by polls. [`SimpleLock`]: one string, shared with redsync, node-redlock and
//!   the like. Each kind has its `get_…` on [`Client`] and [`Owner`].
//! - [`Semaphore`], [`PermitExpirableSemaphore`]: a number of [`Permit`]s; those of a dead holder come back.
//! - [`CountDownLatch`]: wait for a number of tasks, wherever they run.
//! - [`MultiLock`]: several locks as one, of any kinds and clients.
//! - [`Quorum`]: locks that a majority of independent servers grants.
//! - [`Election`]: who holds a lock leads.
//! - [`LockGuard`]: one level of a hold. [`unlock`](LockGuard::unlock) returns whether the lock was held to
//!   the end; a drop releases it in the background; [`lost`](LockGuard::lost) resolves when it is lost;
//!   [`check`](LockGuard::check) asks the clock, [`verify`](LockGuard::verify) asks Redis.
//! - [`Owner`], [`Client::scope`]: who may enter again. Without one, every acquire stands for itself.
//! - [`Lease`]: kept alive by the watchdog, for ever or at most for a time, or fixed.
//! - [`Error`]: lost, not yours, unreachable, refused and denied are different things; busy is `None`.
//!
//! # What is guaranteed
//!
//! While Redis keeps its data and clocks run at about the same rate, a lock has at most one holder, and a
//! holder knows by its own clock when it has lost the lock. A failover to a replica that lacks the lock, an
//! eviction, a forced release, a stepped wall clock or a pause longer than the lease can let a second one
//! in: [Guarantees and limits](https://github.com/watchlock/watchlock/blob/v0.1.0/docs/guarantees.md) has the
//! list, and what to do about each. [Recipes](https://github.com/watchlock/watchlock/blob/v0.1.0/docs/recipes.md)
//! has what services need: shutdown on SIGTERM, a scope per HTTP request, blocking code, tests.
//!
//! # Cancel safety
//!
//! Every future of this crate can be dropped at any await. The client's background thread finishes and undoes what was in
//! flight.
//!
//! # Features
//!
//! - `blocking`: the module `blocking`, for code without `async`.
//! - `tls`: `rediss://` addresses, by rustls with the certificates of the system. Nothing is installed for the
//!   process. A client that the application made ([`Client::builder_from`]) has its own TLS and does not need it.
//!
//! - `metrics`: [instruments](https://github.com/watchlock/watchlock/blob/v0.1.0/docs/metrics.md) for a recorder of
//!   the facade [metrics](https://docs.rs/metrics). Without it [`Client::stats`] and [`ClientBuilder::on_lost`] remain.
//!
//! Everything runs on [tokio](https://docs.rs/tokio). Events and spans go to [tracing](https://docs.rs/tracing).

mod backend;
mod backoff;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod clock;
mod config;
mod engine;
mod error;
mod fencing;
mod host;
mod lease;
mod lock;
mod log;
mod names;
mod report;
mod script;
mod secrets;
mod slot;

pub use backoff::Backoff;
pub use client::{Client, ClientBuilder, Quorum, QuorumBuilder, ShutdownReport};
pub use clock::{Clock, ClockDriver};
pub use config::Publish;
pub use error::{Cause, ConfigError, Error, LeaseError, LostReason};
pub use error::{NotReplicated, QuorumError, SetError};
pub use fencing::FencingToken;
#[cfg(feature = "__simulation")]
#[doc(hidden)]
pub use host::simulated as __simulation;
pub use lease::Lease;
pub use lock::CountDownLatch;
pub use lock::{Election, Ended, FairLock, FencedGuard, FencedLock, SimpleLock, SpinLock};
pub use lock::{FencedQuorumLock, QuorumHandle, QuorumLock, QuorumOwner};
pub use lock::{GuardError, Handle, HoldView, Holder, Lock, LockGuard, Owner, ReentrantLock, Ttl};
pub use lock::{InvalidPermitId, Permit, PermitExpirableSemaphore, PermitId};
pub use lock::{LockExt, LockInfo, MultiLock, MultiLockBuilder, kinds as kind};
pub use lock::{ReadLock, ReadWriteLock, WriteGuard, WriteLock};
pub use lock::{Semaphore, SemaphoreHandle};
pub use report::{LostHold, Stats};
pub use secrets::{Secrets, Tls};

/// What [`ClientBuilder::pool`] takes, and more.
pub use deadpool_redis;
/// What [`Client::builder_from`] takes, and more.
pub use redis;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/porting-from-redisson.md")]
#[doc = include_str!("../docs/configuration.md")]
#[doc = include_str!("../docs/deployments.md")]
#[doc = include_str!("../docs/fencing.md")]
#[doc = include_str!("../docs/recipes.md")]
#[doc = include_str!("../docs/quorum.md")]
mod documents {}
