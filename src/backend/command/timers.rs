//! Timers for futures of callers: those of the keeper's runtime.
//!
//! A caller may poll a future of ours on one runtime, and then on another, on none, or on one without timers;
//! I6 and I9 hold wherever that is. A timer belongs to the runtime on which it was made, and panics where there
//! is none; so all timers on a caller's way are made on the keeper's, which ends with the client.

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

    /// The runtime is about to end: no timer of it is to be polled any more, since that would panic.
    pub(crate) fn stop(&self) {
        // Set before the runtime ends. The end wakes whoever waits for a timer, and that poll acquires this store.
        self.stopped.store(true, Ordering::Release);
    }

    /// Resolves when `span` is over; at once when the runtime ends.
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
                // The runtime may end between the look and the poll.
                let polling = AssertUnwindSafe(|| sleep.poll_unpin(context));
                catch_unwind(polling).unwrap_or(Poll::Ready(()))
            })
            .await;
        }
    }

    /// What `future` comes to, unless `limit` is over first.
    pub(crate) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let over = self.sleep(limit);
        tokio::select! {
            biased;
            output = future => Some(output),
            () = over => None,
        }
    }
}
