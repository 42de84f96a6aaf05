//! Running code under a lock: [`LockExt`], and what the handles that return a guard of their own do.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use super::guard::{IsGuard, LockGuard};
use super::object::Lock;
use crate::error::Error;
use crate::lease::Lease;

/// `run` and `try_run` for every [`Lock`], `dyn Lock` too.
///
/// A [`Handle`](crate::Handle) has both without this trait, and hands its own kind of guard to the body.
///
/// ```no_run
/// use watchlock::{Error, Lock, LockExt};
///
/// async fn nightly(lock: &dyn Lock) -> Result<u32, Error> {
///     lock.run(async |guard| {
///         println!("nobody else is at {}", guard.name());
///         42
///     })
///     .await
/// }
/// ```
pub trait LockExt: Lock {
    /// Runs `body` under the lock, and cancels it when the hold is lost: [`Handle::run`](crate::Handle::run).
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), and [`Error::Lost`] as [`Handle::run`](crate::Handle::run).
    ///
    /// # Cancel safety
    ///
    /// As [`Handle::run`](crate::Handle::run).
    fn run<T>(
        &self,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> impl Future<Output = Result<T, Error>>;

    /// As [`run`](Self::run), with [`try_lock`](Lock::try_lock). `None` when the lock stayed busy.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Lock::try_lock), and [`Error::Lost`] as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    fn try_run<T>(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> impl Future<Output = Result<Option<T>, Error>>;
}

impl<L: Lock + ?Sized> LockExt for L {
    async fn run<T>(&self, body: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, Error> {
        run_under(self.lock().await?, body).await
    }

    async fn try_run<T>(
        &self,
        wait: Duration,
        lease: impl Into<Lease>,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<Option<T>, Error> {
        match self.try_lock(wait, lease.into()).await? {
            Some(guard) => run_under(guard, body).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Runs `body` while `guard` is valid, and gives the guard back: what `run` and `try_run` do once they have the guard.
///
/// 1. The body is polled only while the hold is valid by the clock.
/// 2. The hold counts as lost before the body ended if the clock or Redis shows that at the release.
pub(super) async fn run_under<G: IsGuard, T>(
    guard: G,
    body: impl AsyncFnOnce(&G) -> T,
) -> Result<T, Error> {
    let value = while_valid(&guard, body).await?;
    let guard: LockGuard = guard.into();
    let name = guard.name().to_owned();
    match guard.unlock().await {
        Err(lost) if lost.is_lost() => Err(lost),
        Err(error) => {
            tracing::warn!(name, %error, "the release after a run failed");
            Ok(value)
        }
        Ok(()) => Ok(value),
    }
}

async fn while_valid<G: IsGuard, T>(
    guard: &G,
    body: impl AsyncFnOnce(&G) -> T,
) -> Result<T, Error> {
    let level = guard.level();
    let span = tracing::debug_span!("run", name = level.name());
    let mut body = pin!(body(guard).instrument(span));
    let hold = level.hold();
    let mut lost = pin!(hold.lost());
    poll_fn(|context| {
        // The clock first: after the runtime was blocked, the loss may not have been reported yet.
        level.check()?;
        if let Poll::Ready(reason) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(Error::lost(reason)));
        }
        body.as_mut().poll(context).map(Ok)
    })
    .await
}
