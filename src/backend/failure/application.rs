//! Functions of the application that run here: its address map, its providers of credentials, the manager of its pool.
//! A function that panics has failed; it ends neither the keeper nor a lane.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;

use super::cause::Failure;
use crate::log::log;

/// What `function` returns; none if it panics.
pub(crate) fn call<T>(function: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(function)).ok()
}

/// The same for a future.
pub(crate) async fn run<T>(future: impl Future<Output = T>) -> Option<T> {
    AssertUnwindSafe(future).catch_unwind().await.ok()
}

/// A function panicked while connecting. Logged `once`.
pub(crate) fn panicked(once: &AtomicBool) -> Failure {
    // Relaxed: the flag guards no other data.
    if !once.swap(true, Ordering::Relaxed) {
        log(|| tracing::error!("connecting to Redis panicked; retrying"));
    }
    Failure::panic()
}
