//! What `run` takes and holds while its command runs: a lock, or a permit of a semaphore.

use std::sync::Arc;
use std::time::Duration;

use watchlock::{Error, Lease, Lock, LockGuard, LostReason, Permit, PermitExpirableSemaphore};

use crate::connect::Locks;
use crate::options::RunOptions;

pub(super) enum Wanted {
    Lock(Arc<dyn Lock>),
    Permit(PermitExpirableSemaphore),
}

impl Wanted {
    pub(super) fn of(options: &RunOptions, locks: &Locks) -> Self {
        let name = &options.name;
        let semaphore = options.permits.zip(locks.semaphore(name));
        match semaphore {
            Some((total, semaphore)) => Self::Permit(semaphore.with_permits(total)),
            None => Self::Lock(locks.get(options.kind, name)),
        }
    }

    /// Waits for so long, or for ever; None if it stayed busy.
    pub(super) async fn take(&self, wait: Option<Duration>) -> Result<Option<Taken>, Error> {
        // A wait without a limit ends all the same when Redis stays out of reach.
        match (self, wait) {
            (Self::Lock(lock), None) => lock.lock().await.map(|guard| Some(Taken::Lock(guard))),
            (Self::Lock(lock), Some(wait)) => {
                let guard = lock.try_lock(wait, Lease::Watchdog).await?;
                Ok(guard.map(Taken::Lock))
            }
            (Self::Permit(semaphore), None) => {
                let permit = semaphore.acquire().await?;
                Ok(Some(Taken::Permit(permit)))
            }
            (Self::Permit(semaphore), Some(wait)) => {
                let permit = semaphore.try_acquire(wait, Lease::Watchdog).await?;
                Ok(permit.map(Taken::Permit))
            }
        }
    }
}

pub(super) enum Taken {
    Lock(LockGuard),
    Permit(Permit),
}

impl Taken {
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.check(),
            Self::Permit(permit) => permit.check(),
        }
    }

    /// Why it is lost, if it is.
    pub(super) fn lost_reason(&self) -> Option<LostReason> {
        match self.check() {
            Err(Error::Lost { reason, .. }) => Some(reason),
            _ => None,
        }
    }

    pub(super) fn valid_for(&self) -> Duration {
        match self {
            Self::Lock(guard) => guard.valid_for(),
            Self::Permit(permit) => permit.valid_for(),
        }
    }

    /// Cancel safe.
    pub(super) async fn lost(&self) -> LostReason {
        match self {
            Self::Lock(guard) => guard.lost().await,
            Self::Permit(permit) => permit.lost().await,
        }
    }

    pub(super) fn token(&self) -> Option<String> {
        match self {
            Self::Lock(guard) => guard.fencing_token().map(|token| token.to_string()),
            Self::Permit(_) => None,
        }
    }

    /// The hold id, or the id of the permit.
    pub(super) fn id(&self) -> Option<String> {
        match self {
            Self::Lock(guard) => guard.hold_id().map(str::to_owned),
            Self::Permit(permit) => permit.ids().first().map(ToString::to_string),
        }
    }

    pub(super) async fn give_back(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock().await,
            Self::Permit(permit) => permit.release().await,
        }
    }
}
