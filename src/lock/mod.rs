//! Kinds of lock: names, scripts and replies; nothing about waiting or renewing. The verbs are the same for all.

mod acting;
mod by_now;
mod composite;
pub(crate) mod fair;
pub(crate) mod fenced;
mod guard;
mod handle;
mod info;
pub mod kind;
mod multi;
mod object;
mod owner;
mod pauses;
pub(crate) mod plain;
pub(crate) mod quorum;
mod read_write;
mod run;
mod scope;
pub(crate) mod simple;
mod single;
pub(crate) mod spin;
mod view;

use std::time::Duration;

pub use self::fair::FairLock;
pub use self::fenced::{FencedGuard, FencedLock};
pub use self::guard::{GuardError, LockGuard};
pub use self::handle::Handle;
pub use self::info::LockInfo;
pub use self::kind::ReentrantLock;
pub use self::multi::MultiLock;
pub use self::object::Lock;
pub use self::owner::Owner;
pub use self::quorum::{FencedQuorumLock, QuorumHandle, QuorumLock, QuorumOwner};
pub use self::read_write::{ReadLock, ReadWriteLock, WriteGuard, WriteLock};
pub use self::simple::SimpleLock;
pub use self::spin::SpinLock;
pub use self::view::HoldView;

/// How much longer Redis keeps a lock.
///
/// ```no_run
/// # async fn example(lock: watchlock::ReentrantLock) -> Result<(), watchlock::Error> {
/// use watchlock::Ttl;
///
/// match lock.remain_time_to_live().await? {
///     Ttl::Free => println!("free"),
///     Ttl::Left(left) => println!("held, for {left:?} at least unless it is given back"),
///     _ => println!("held for ever: somebody must look at it"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ttl {
    /// Nobody holds the lock.
    Free,
    /// The key has no expiry. No lock of this crate is ever like that: somebody wrote it by hand, removed its
    /// expiry, or locked with Redisson for a lease that Redis cannot count.
    NoExpiry,
    /// Held. Redis keeps it for so long, unless it is renewed or given back.
    Left(Duration),
}
