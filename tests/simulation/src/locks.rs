//! Clients, owners and locks of each kind, and semaphores.

use std::sync::Arc;
use std::time::Duration;

use watchlock::{Client, Error, Lease, Lock, MultiLock, Owner, Permit, PermitExpirableSemaphore};
use watchlock::{Quorum, QuorumOwner, Semaphore, ShutdownReport, WriteLock};
use watchlock_support::history::LockKind;

use crate::plan::{MEMBERS, Plan};

/// A lock of one server, of a client or of an owner.
macro_rules! of_one {
    ($from:expr, $kind:expr, $name:expr) => {
        match $kind {
            LockKind::Fair => Arc::new($from.get_fair_lock($name)) as Arc<dyn Lock>,
            LockKind::Read => Arc::new($from.get_read_write_lock($name).read_lock()),
            LockKind::Write => Arc::new($from.get_read_write_lock($name).write_lock()),
            LockKind::Fenced => Arc::new($from.get_fenced_lock($name)),
            LockKind::Spin => Arc::new($from.get_spin_lock($name)),
            LockKind::Simple => Arc::new($from.get_simple_lock($name)),
            LockKind::Multi => {
                let locks = $kind.names($name).map(|name| match member(name) {
                    LockKind::Fenced => Arc::new($from.get_fenced_lock(name)) as Arc<dyn Lock>,
                    _ => Arc::new($from.get_lock(name)),
                });
                Arc::new(MultiLock::new(locks).expect("different names"))
            }
            _ => Arc::new($from.get_lock($name)),
        }
    };
}

/// The kind of a member of several locks as one.
fn member(name: &str) -> LockKind {
    let number = name.strip_prefix("name:");
    let number = number.and_then(|number| number.parse::<usize>().ok());
    let kind = number.and_then(|number| MEMBERS.get(number));
    kind.copied().unwrap_or_default()
}

/// A lock of a quorum.
macro_rules! of_quorum {
    ($from:expr, $kind:expr, $name:expr) => {
        if $kind == LockKind::RedFenced {
            Arc::new($from.get_fenced_lock($name)) as Arc<dyn Lock>
        } else {
            Arc::new($from.get_lock($name))
        }
    };
}

/// A client of one server, or of a quorum.
#[derive(Clone)]
pub enum AnyClient {
    One(Client),
    Quorum(Quorum),
}

/// An owner of either.
pub enum AnyOwner {
    One(Owner),
    Quorum(QuorumOwner),
}

/// A semaphore of either kind.
pub enum AnySemaphore {
    Plain(Semaphore),
    WithIds(PermitExpirableSemaphore),
}

impl AnySemaphore {
    pub async fn take(
        &self,
        count: u32,
        wait: Duration,
        lease: Lease,
    ) -> Result<Option<Permit>, Error> {
        match self {
            Self::Plain(semaphore) => semaphore.try_acquire_many(count, wait, lease).await,
            Self::WithIds(semaphore) => semaphore.try_acquire_many(count, wait, lease).await,
        }
    }

    pub async fn run<T>(&self, body: impl AsyncFnOnce(&Permit) -> T) -> Result<T, Error> {
        match self {
            Self::Plain(semaphore) => semaphore.run(body).await,
            Self::WithIds(semaphore) => semaphore.run(body).await,
        }
    }

    pub async fn available_permits(&self) -> Result<i64, Error> {
        match self {
            Self::Plain(semaphore) => semaphore.available_permits().await,
            Self::WithIds(semaphore) => semaphore.available_permits().await,
        }
    }

    pub async fn delete(&self) -> Result<bool, Error> {
        match self {
            Self::Plain(semaphore) => semaphore.delete().await,
            Self::WithIds(semaphore) => semaphore.delete().await,
        }
    }
}

impl AnyClient {
    /// The semaphore of a name; none in a quorum.
    pub fn semaphore(&self, plan: &Plan, name: usize) -> Option<AnySemaphore> {
        let Self::One(client) = self else {
            return None;
        };
        let called = format!("name:{name}");
        Some(if plan.has_ids(name) {
            let semaphore = client.get_permit_expirable_semaphore(called);
            AnySemaphore::WithIds(semaphore.with_permits(plan.permits))
        } else {
            let semaphore = client.get_semaphore(called);
            AnySemaphore::Plain(semaphore.with_permits(plan.permits))
        })
    }

    pub fn new_owner(&self) -> AnyOwner {
        match self {
            Self::One(client) => AnyOwner::One(client.new_owner()),
            Self::Quorum(quorum) => AnyOwner::Quorum(quorum.new_owner()),
        }
    }

    /// A lock that acts for the owner in whose scope it is used.
    pub fn lock_of(&self, kind: LockKind, name: &str) -> Arc<dyn Lock> {
        match self {
            Self::One(client) => of_one!(client, kind, name),
            Self::Quorum(quorum) => of_quorum!(quorum, kind, name),
        }
    }

    /// Releases a lock, whoever holds it.
    pub async fn force_unlock(&self, kind: LockKind, name: &str) -> Result<bool, Error> {
        let mut was_held = self.lock_of(kind, name).force_unlock().await?;
        if kind == LockKind::Read {
            // Each side releases its own holders alone.
            was_held |= self.lock_of(LockKind::Write, name).force_unlock().await?;
        }
        Ok(was_held)
    }

    /// The first half of each field that it writes.
    pub fn id(&self) -> String {
        match self {
            Self::One(client) => client.id().to_string(),
            Self::Quorum(quorum) => quorum.id().to_string(),
        }
    }

    pub async fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        match self {
            Self::One(client) => client.shutdown(timeout).await,
            Self::Quorum(quorum) => quorum.shutdown(timeout).await,
        }
    }
}

impl AnyOwner {
    pub fn lock_of(&self, kind: LockKind, name: &str) -> Arc<dyn Lock> {
        match self {
            Self::One(owner) => of_one!(owner, kind, name),
            Self::Quorum(owner) => of_quorum!(owner, kind, name),
        }
    }

    /// A lock that can be downgraded; none in a quorum.
    pub fn write_lock(&self, name: &str) -> Option<WriteLock> {
        match self {
            Self::One(owner) => Some(owner.get_read_write_lock(name).write_lock()),
            Self::Quorum(_) => None,
        }
    }

    /// Runs a future for this owner.
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        match self {
            Self::One(owner) => owner.scope(future).await,
            Self::Quorum(owner) => owner.scope(future).await,
        }
    }
}
