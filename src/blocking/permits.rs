//! Semaphores and permits for code without `async`.

use std::time::Duration;

use super::{Blocking, run_under, wait};
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::kinds::SemaphoreKind;
use crate::lock::{Holder, Permit, PermitExpirableSemaphore, PermitId, SemaphoreHandle};

impl<K: SemaphoreKind> Blocking<SemaphoreHandle<K>> {
    /// As [`SemaphoreHandle::with_permits`](crate::SemaphoreHandle::with_permits).
    pub fn with_permits(self, permits: u32) -> Self {
        Self(self.0.with_permits(permits))
    }

    /// As [`SemaphoreHandle::acquire`](crate::SemaphoreHandle::acquire).
    pub fn acquire(&self) -> Result<Blocking<Permit>, Error> {
        wait(self.0.acquire()).map(Blocking)
    }

    /// As [`SemaphoreHandle::acquire_many`](crate::SemaphoreHandle::acquire_many).
    pub fn acquire_many(&self, permits: u32) -> Result<Blocking<Permit>, Error> {
        wait(self.0.acquire_many(permits)).map(Blocking)
    }

    /// As [`SemaphoreHandle::holders`](crate::SemaphoreHandle::holders).
    pub fn holders(&self) -> Result<Vec<Holder>, Error> {
        wait(self.0.holders())
    }

    /// As [`SemaphoreHandle::waiters`](crate::SemaphoreHandle::waiters).
    pub fn waiters(&self) -> Result<u64, Error> {
        wait(self.0.waiters())
    }

    /// As [`SemaphoreHandle::try_acquire`](crate::SemaphoreHandle::try_acquire).
    pub fn try_acquire(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<Blocking<Permit>>, Error> {
        let got = super::wait(self.0.try_acquire(wait, lease))?;
        Ok(got.map(Blocking))
    }

    /// As [`SemaphoreHandle::try_acquire_many`](crate::SemaphoreHandle::try_acquire_many).
    pub fn try_acquire_many(
        &self,
        permits: u32,
        wait: Duration,
        lease: impl Into<Lease>,
    ) -> Result<Option<Blocking<Permit>>, Error> {
        let got = super::wait(self.0.try_acquire_many(permits, wait, lease))?;
        Ok(got.map(Blocking))
    }

    /// Runs `body` with a permit. A body that blocks cannot be cancelled: it has to [`check`](crate::Permit::check) before
    /// what needs the permit.
    ///
    /// # Errors
    ///
    /// As [`SemaphoreHandle::run`](crate::SemaphoreHandle::run): [`Error::Lost`] also when the permit was lost while the
    /// body ran.
    pub fn run<T>(&self, body: impl FnOnce(&Blocking<Permit>) -> T) -> Result<T, Error> {
        run_under(self.acquire()?, body)
    }

    /// As [`SemaphoreHandle::available_permits`](crate::SemaphoreHandle::available_permits).
    pub fn available_permits(&self) -> Result<i64, Error> {
        wait(self.0.available_permits())
    }

    /// As [`SemaphoreHandle::try_set_permits`](crate::SemaphoreHandle::try_set_permits).
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        wait(self.0.try_set_permits(permits))
    }

    /// As [`SemaphoreHandle::add_permits`](crate::SemaphoreHandle::add_permits).
    pub fn add_permits(&self, permits: i32) -> Result<(), Error> {
        wait(self.0.add_permits(permits))
    }

    /// As [`SemaphoreHandle::delete`](crate::SemaphoreHandle::delete).
    pub fn delete(&self) -> Result<bool, Error> {
        wait(self.0.delete())
    }
}

impl Blocking<PermitExpirableSemaphore> {
    /// As [`PermitExpirableSemaphore::total_permits`](crate::PermitExpirableSemaphore::total_permits).
    pub fn total_permits(&self) -> Result<i64, Error> {
        wait(self.0.total_permits())
    }

    /// As [`PermitExpirableSemaphore::acquired_permits`](crate::PermitExpirableSemaphore::acquired_permits).
    pub fn acquired_permits(&self) -> Result<u64, Error> {
        wait(self.0.acquired_permits())
    }

    /// As [`PermitExpirableSemaphore::set_permits`](crate::PermitExpirableSemaphore::set_permits).
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        wait(self.0.set_permits(permits))
    }

    /// As [`PermitExpirableSemaphore::release_permit`](crate::PermitExpirableSemaphore::release_permit).
    pub fn release_permit(&self, id: PermitId) -> Result<bool, Error> {
        wait(self.0.release_permit(id))
    }
}

impl Blocking<Permit> {
    /// As [`Permit::release`](crate::Permit::release).
    pub fn release(self) -> Result<(), Error> {
        wait(self.0.release())
    }

    /// As [`Permit::forget`](crate::Permit::forget).
    pub fn forget(self) -> Result<(), Error> {
        wait(self.0.forget())
    }
}
