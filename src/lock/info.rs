//! What a lock says of itself to the one that it is a part of.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::names::Names;

/// What a lock says of itself to a [`MultiLock`](crate::MultiLock) that it is to be a part of: which it is, and
/// whether Redis keeps a queue for it.
///
/// Only the locks of this crate have something to say. A [`Lock`](crate::Lock) that wraps another passes on what that
/// says; with the default a multi-lock cannot tell that it has the same lock twice, and a hold of that would wait for
/// itself.
///
/// ```no_run
/// # fn example(lock: &dyn watchlock::Lock) {
/// if lock.info().has_queue() {
///     println!("first come, first served");
/// }
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct LockInfo {
    /// Which locks it takes.
    pub(super) locks: Vec<Identity>,
    pub(super) has_queue: bool,
    /// The longest command time-out of its clients.
    pub(super) command_timeout: Duration,
}

/// A lock, as a client sees it: a key, since kinds that share one exclude each other. Who has two clients of one server
/// has two identities of each lock.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    client: Uuid,
    names: Arc<Names>,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        (self.client, self.names.key()) == (other.client, other.names.key())
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.client, self.names.key()).hash(state);
    }
}

impl LockInfo {
    /// Of the lock `names` of `client`.
    pub(super) fn of(client: Uuid, names: &Arc<Names>) -> Self {
        let names = Arc::clone(names);
        Self {
            locks: vec![Identity { client, names }],
            ..Self::default()
        }
    }

    /// Whether Redis keeps a queue for the lock, so that who waits for it has a place.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        self.has_queue
    }
}

impl Identity {
    pub(super) fn name(&self) -> &str {
        self.names.name()
    }
}
