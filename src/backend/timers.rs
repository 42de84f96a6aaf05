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

use crate::clock::{Clock, Moment};

/// How many timers a time of running takes.
const PARTS: u32 = 8;

/// The timers of one runtime.
#[derive(Debug, Clone)]
pub(crate) struct Timers {
    runtime: Handle,
    clock: Clock,
    stopped: Arc<RwLock<bool>>,
}

impl Timers {
    pub(crate) fn of(runtime: &Handle, clock: Clock) -> Self {
        Self {
            runtime: runtime.clone(),
            clock,
            stopped: Arc::default(),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Called before the runtime ends: polling one of its timers would panic from then on. Waits for those that are being
    /// polled.
    pub(crate) fn stop(&self) {
        *self.stopped.write() = true;
    }

    /// Whether the runtime has ended.
    pub(crate) fn have_stopped(&self) -> bool {
        *self.stopped.read()
    }

    /// Resolves after `span` of real time, or at once when the runtime ends.
    pub(crate) fn timer(&self, span: Duration) -> impl Future<Output = ()> + Send + use<> {
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

    /// Resolves after `span`, or when the clock jumps beyond it.
    pub(crate) async fn sleep(&self, span: Duration) {
        self.sleep_until(self.clock.now() + span).await;
    }

    /// Resolves when a timer ends for the time until `moment`, or when the clock jumps beyond it.
    pub(crate) async fn sleep_until(&self, moment: Moment) {
        loop {
            // Taken before the clock is read, so that a later jump resolves it.
            let jumped = self.clock.jumped();
            let timer = self.timer(self.clock.now().until(moment));
            let Some(jumped) = jumped else {
                return timer.await;
            };
            tokio::select! {
                biased;
                () = timer => return,
                () = jumped => {}
            }
        }
    }

    /// The output of `future`; none if it is `moment` first, as with [`sleep_until`](Self::sleep_until).
    pub(crate) async fn until<F: Future>(&self, moment: Moment, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep_until(moment) => None,
        }
    }

    /// As [`within`](Self::within), by several timers, each of which counts as long as it was to be: a time in which the
    /// caller is not polled, or the process gets no CPU, is not the silence of a server.
    pub(crate) async fn within_run_time<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> Option<F::Output> {
        let mut future = pin!(future);
        for _ in 0..PARTS {
            let output = self.within(limit / PARTS, &mut future).await;
            if output.is_some() {
                return output;
            }
        }
        None
    }

    /// The output of `future`; none if `limit` of real time passes first.
    pub(crate) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let over = self.timer(limit);
        tokio::select! {
            biased;
            output = future => Some(output),
            () = over => None,
        }
    }
}
