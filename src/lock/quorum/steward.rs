//! The steward: a quorum's own background thread. It makes the rounds of those who wait, hears late answers, asks
//! silent nodes, and repairs holds. Each node's client has its keeper besides, which renews.

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::backend::{Failure, Timers};

/// The way to the steward. Cheap to clone; does not keep it alive.
#[derive(Clone)]
pub(crate) struct Steward {
    runtime: Handle,
    pub(super) timers: Timers,
}

/// Keeps the steward alive: it ends with this, and with it all that it does.
pub(crate) struct Alive {
    _until: mpsc::Sender<()>,
}

impl Steward {
    /// Starts the thread.
    pub(crate) fn start() -> Result<(Self, Alive), Failure> {
        let (made, runtime) = std::sync::mpsc::channel();
        let (until, mut ended) = mpsc::channel::<()>(1);
        let thread = std::thread::Builder::new().name("watchlock-quorum".into());
        let started =
            thread.spawn(
                move || match Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => {
                        let timers = Timers::of(runtime.handle());
                        let _ = made.send(Ok((runtime.handle().clone(), timers.clone())));
                        runtime.block_on(ended.recv());
                        timers.stop();
                    }
                    Err(error) => drop(made.send(Err(error))),
                },
            );
        let silent = || Err(std::io::Error::other("the steward did not start"));
        let (runtime, timers) = started
            .and_then(|_| runtime.recv().unwrap_or_else(|_| silent()))
            .map_err(Failure::starting)?;
        Ok((Self { runtime, timers }, Alive { _until: until }))
    }

    /// Runs a task. It ends with the steward at the latest.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(task)
    }
}
