//! A body under a lock: what `run` and `try_run` do once they have the guard.
//!
//! 1. The body is polled only while the hold is valid by the clock.
//! 2. What the release finds counts: the lock was lost before the body ended if the clock says so, which
//!    the release asks once more, or Redis.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tracing::Instrument;

use super::kind::IsGuard;
use crate::error::Error;

/// Runs `body` while `guard` is valid, and gives the guard back.
pub(super) async fn run_under<G: IsGuard, T>(
    guard: G,
    body: impl AsyncFnOnce(&G) -> T,
) -> Result<T, Error> {
    let value = while_valid(&guard, body).await?;
    let guard = guard.into_level();
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
    // An announcement of a shutdown does not cancel the body.
    let mut lost = pin!(level.lost_for_good());
    poll_fn(|context| {
        // By the clock first: a runtime that was blocked has not heard yet what was told.
        level.check()?;
        if let Poll::Ready(reason) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(Error::lost(reason)));
        }
        body.as_mut().poll(context).map(Ok)
    })
    .await
}
