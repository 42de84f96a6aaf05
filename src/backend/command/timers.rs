//! Timers for the futures of callers, which run on the keeper's runtime.
//!
//! A caller may poll a future of ours on one runtime, then on another, on none, or on one without timers. Calls must end
//! in time and be safe to drop in each case (I6, I9). A timer of tokio belongs to the runtime that made it, and panics
//! without one. So timers of callers are made on the keeper's runtime, which lives as long as the client.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;

/// The timers of one runtime.
#[derive(Clone)]
pub(crate) struct Timers {
    runtime: Handle,
    stopped: Arc<AtomicBool>,
}

impl Timers {
    pub(crate) fn of(runtime: &Handle) -> Self {
        Self {
            runtime: runtime.clone(),
            stopped: Arc::default(),
        }
    }

    /// Called before the runtime ends: polling one of its timers would panic from then on.
    pub(crate) fn stop(&self) {
        // Stored before the runtime ends. Its end wakes all timers, and their polls acquire this store.
        self.stopped.store(true, Ordering::Release);
    }

    /// Resolves after `span`, or at once when the runtime ends.
    pub(crate) fn sleep(&self, span: Duration) -> impl Future<Output = ()> + Send + use<> {
        let stopped = Arc::clone(&self.stopped);
        let sleep = {
            let _on_it = self.runtime.enter();
            tokio::time::sleep(span)
        };
        async move {
            let mut sleep = pin!(sleep);
            std::future::poll_fn(move |context| {
                if stopped.load(Ordering::Acquire) {
                    return Poll::Ready(());
                }
                // The runtime may end between the load and the poll.
                let polling = AssertUnwindSafe(|| sleep.poll_unpin(context));
                catch_unwind(polling).unwrap_or(Poll::Ready(()))
            })
            .await;
        }
    }

    /// The output of `future`; none if `limit` passes first.
    pub(crate) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let over = self.sleep(limit);
        tokio::select! {
            biased;
            output = future => Some(output),
            () = over => None,
        }
    }
}
