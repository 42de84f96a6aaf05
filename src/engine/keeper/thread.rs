//! The keeper's thread: how it starts, how others wait for its end, and what happens if it panics.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, mpsc};

use super::run::run;
use crate::engine::core::{Core, Mail};
use crate::error::LostReason;
use crate::host::{background, is_simulated};
use crate::log::{hand_over, log};

/// The engine's handle to the thread.
pub(crate) struct Thread {
    ended: Arc<EndSignal>,
}

#[derive(Default)]
struct EndSignal {
    done: Mutex<bool>,
    for_threads: Condvar,
    for_tasks: Notify,
}

/// A thread with a runtime that waits for its client.
pub(crate) struct Starting {
    pub(crate) runtime: Handle,
    /// None where the thread is a task.
    begin: Option<std::sync::mpsc::Sender<(Arc<Core>, mpsc::UnboundedReceiver<Mail>)>>,
    ended: Arc<EndSignal>,
}

impl Starting {
    /// Starts the thread. It ends if this value is dropped before [`begin`](Self::begin).
    pub(crate) fn spawn() -> std::io::Result<Self> {
        let ended = Arc::<EndSignal>::default();
        if is_simulated() {
            return Ok(Self {
                runtime: Handle::current(),
                begin: None,
                ended,
            });
        }
        let ends = Arc::clone(&ended);
        let (begin, begun) = std::sync::mpsc::channel();
        let (made, runtime) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("watchlock-keeper".into())
            .spawn(move || {
                hand_over();
                let runtime = match Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(made.send(Err(error))),
                };
                let _ = made.send(Ok(runtime.handle().clone()));
                if let Ok((core, mailbox)) = begun.recv() {
                    runtime.block_on(keep(core, mailbox, ends));
                }
            })?;
        let runtime = runtime
            .recv()
            .unwrap_or_else(|_| Err(std::io::Error::other("the keeper did not start")))?;
        Ok(Self {
            runtime,
            begin: Some(begin),
            ended,
        })
    }

    /// Gives the thread its client.
    pub(crate) fn begin(self, core: Arc<Core>, mailbox: mpsc::UnboundedReceiver<Mail>) -> Thread {
        if let Some(begin) = self.begin {
            let _ = begin.send((core, mailbox));
        } else {
            let keeping = keep(core, mailbox, Arc::clone(&self.ended));
            self.runtime.spawn(background(keeping));
        }
        Thread { ended: self.ended }
    }
}

async fn keep(core: Arc<Core>, mailbox: mpsc::UnboundedReceiver<Mail>, ended: Arc<EndSignal>) {
    let mut thread_end = ThreadEnd {
        core: Arc::clone(&core),
        ended,
        in_order: false,
    };
    run(core, mailbox).await;
    thread_end.in_order = true;
}

impl Thread {
    /// Blocks until the keeper has ended, for at most `limit`. Returns whether it has.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let mut done = self.ended.done.lock();
        if !*done && !is_simulated() {
            self.ended.for_threads.wait_for(&mut done, limit);
        }
        *done
    }

    /// Resolves when the keeper has ended.
    pub(crate) async fn ended(&self) {
        let mut ended = std::pin::pin!(self.ended.for_tasks.notified());
        ended.as_mut().enable();
        if !*self.ended.done.lock() {
            ended.await;
        }
    }
}

/// Its drop marks the end of the thread, in order or by a panic.
struct ThreadEnd {
    core: Arc<Core>,
    ended: Arc<EndSignal>,
    in_order: bool,
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        if self.in_order {
            self.core.keeper_ended(LostReason::Shutdown);
        } else {
            log(|| {
                tracing::error!(
                    "the background thread ended unexpectedly: all holds are lost, the client is closed"
                );
            });
            self.core.keeper_ended(LostReason::BackgroundEnded);
        }
        *self.ended.done.lock() = true;
        self.ended.for_threads.notify_all();
        self.ended.for_tasks.notify_waiters();
    }
}
