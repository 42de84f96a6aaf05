//! Kinds of lock as types: what a handle is generic over.

use super::LockGuard;
pub use super::fair::Fair;
pub use super::fenced::Fenced;
use super::handle::Handle;
pub use super::read_write::{Read, Write};
pub use super::simple::Simple;
pub use super::spin::Spin;
use crate::error::Error;

/// A kind of lock: the type parameter of its [`Handle`]. Only this crate has kinds.
pub trait LockKind: sealed::Sealed + Send + Sync + 'static {
    /// What its handles are called.
    #[doc(hidden)]
    const HANDLE: &'static str;

    /// Whether its holds have a fencing token.
    #[doc(hidden)]
    const FENCED: bool = false;

    /// What an acquire gives: a [`LockGuard`](crate::LockGuard), or what is more than one.
    type Guard: IsGuard;
}

/// One level of a hold of some kind.
#[doc(hidden)]
pub trait IsGuard: sealed::Sealed + Sized + Send + Sync + 'static {
    /// The level as this guard. It fails when the level has not what this guard promises.
    fn of(level: LockGuard) -> Result<Self, Error>;
    fn level(&self) -> &LockGuard;
    fn into_level(self) -> LockGuard;
}

pub(super) mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for LockGuard {}

impl IsGuard for LockGuard {
    fn of(level: LockGuard) -> Result<Self, Error> {
        Ok(level)
    }

    fn level(&self) -> &LockGuard {
        self
    }

    fn into_level(self) -> LockGuard {
        self
    }
}

/// The kind of [`ReentrantLock`].
#[derive(Debug)]
pub enum Reentrant {}

impl sealed::Sealed for Reentrant {}

impl LockKind for Reentrant {
    const HANDLE: &'static str = "ReentrantLock";
    type Guard = LockGuard;
}

/// A reentrant lock by name: what Redisson calls an `RLock`.
///
/// From [`Client::get_lock`](crate::Client::get_lock) or [`Owner::get_lock`](crate::Owner::get_lock). Exclusive;
/// its hash and its channel are Redisson's.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let lock: watchlock::ReentrantLock = client.get_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … nobody else is here …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RLock")]
pub type ReentrantLock = Handle<Reentrant>;
