//! Several locks as one, through the public API.

#[path = "../common/mod.rs"]
mod common;

mod cancellation;
mod crowds;
mod guards;
mod losses;
mod sets;
mod taking;

use std::sync::Arc;

use watchlock::{Client, Lock, LockGuard, MultiLock, Owner};

/// The locks of these names as one.
pub(crate) fn multi(client: &Client, names: &[&str]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| client.get_lock(name))).expect("a set")
}

/// The same, for an owner.
pub(crate) fn owned(owner: &Owner, names: &[&str]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| owner.get_lock(name))).expect("a set")
}

/// Locks of several clients or kinds as one.
pub(crate) fn mixed(locks: impl IntoIterator<Item = Arc<dyn Lock>>) -> MultiLock {
    MultiLock::new(locks).expect("a set")
}

/// Gives it back, in order.
pub(crate) async fn end(guard: LockGuard) {
    guard.unlock().await.expect("held to the end");
}
