//! Timers for what runs on a caller's runtime: calls, and the attempts to connect. They run on the keeper's runtime.
//!
//! A caller may poll a future of ours on one runtime, then on another, on none, on one without timers, or on one whose
//! clock is paused. Calls must end in time, and not before, and be safe to drop in each case (I6, I9). A timer of tokio
//! belongs to the runtime that made it, and panics without one. So timers are made on the keeper's runtime, which lives as
//! long as the client.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::RwLock;
use tokio::runtime::Handle;

/// The timers of one runtime.
#[derive(Clone)]
pub(crate) struct Timers {
    runtime: Handle,
    stopped: Arc<RwLock<bool>>,
}

impl Timers {
    pub(crate) fn of(runtime: &Handle) -> Self {
        Self {
            runtime: runtime.clone(),
            stopped: Arc::default(),
        }
    }

    /// Called before the runtime ends: polling one of its timers would panic from then on. Waits for those that are being
    /// polled.
    pub(crate) fn stop(&self) {
        *self.stopped.write() = true;
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
                // Held while it is polled, so that the runtime cannot end in the middle.
                let stopped = stopped.read();
                if *stopped {
                    return Poll::Ready(());
                }
                sleep.poll_unpin(context)
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
