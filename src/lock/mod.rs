//! Locks: handles, guards and owners, the kinds of lock, and locks that are made of others. Nothing here waits or renews.
//!
//! From the ground up: a view of a hold ([`view`]), a level of it ([`guard`]), what every lock can do ([`object`]),
//! handles and the lock of a client ([`handle`]), who holds a lock and who waits ([`inspect`]), the [`kinds`], owners
//! ([`owner`]), elections ([`election`]). A level of a hold of [`several`] locks has a level of each, as in a [`multi`] lock
//! or at a [`quorum`]. A [`semaphore`] has permits instead, and a [`latch`] has nothing to hold.

mod election;
mod guard;
mod handle;
mod inspect;
pub mod kinds;
mod latch;
mod multi;
mod object;
mod owner;
pub(crate) mod quorum;
mod semaphore;
mod several;
mod view;

pub use self::election::Election;
pub use self::guard::{GuardError, LockGuard};
pub use self::handle::Handle;
pub use self::inspect::Holder;
#[cfg(feature = "blocking")]
pub(crate) use self::inspect::InspectTarget;
pub use self::kinds::ReentrantLock;
pub use self::kinds::fair::FairLock;
pub use self::kinds::fenced::{FencedGuard, FencedLock};
pub use self::kinds::permits::{InvalidPermitId, PermitId};
pub use self::kinds::read_write::{ReadLock, ReadWriteLock, WriteGuard, WriteLock};
pub use self::kinds::simple::SimpleLock;
pub use self::kinds::spin::SpinLock;
pub use self::latch::CountDownLatch;
pub use self::multi::{MultiLock, MultiLockBuilder};
#[cfg(feature = "blocking")]
pub(crate) use self::object::release_after_run;
pub use self::object::{Lock, LockExt, LockInfo, Ttl};
pub use self::owner::Owner;
pub use self::quorum::{FencedQuorumLock, QuorumHandle, QuorumLock, QuorumOwner};
pub use self::semaphore::{Permit, PermitExpirableSemaphore, Semaphore, SemaphoreHandle};
pub use self::view::HoldView;
pub use crate::engine::hold::state::Ended;
