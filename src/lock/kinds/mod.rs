//! Kinds of lock as types: what a handle is generic over, and the commands of each kind.

pub(crate) mod fair;
pub(crate) mod fenced;
mod guard_of;
pub(in crate::lock) mod permits;
pub(crate) mod plain;
pub(in crate::lock) mod read_write;
pub(crate) mod simple;
pub(crate) mod spin;

pub use self::fair::Fair;
pub use self::fenced::Fenced;
pub use self::guard_of::GuardOf;
pub use self::permits::{Counting, Expirable, SemaphoreKind};
pub use self::plain::{Reentrant, ReentrantLock};
pub use self::read_write::{Read, Write};
pub use self::simple::Simple;
pub use self::spin::Spin;
#[cfg(feature = "blocking")]
pub(crate) use super::guard::HasLevel;
#[doc(hidden)]
pub use super::guard::IsGuard;
pub use super::handle::LockKind;
pub use super::multi::Several;
pub use super::quorum::AtQuorum;
