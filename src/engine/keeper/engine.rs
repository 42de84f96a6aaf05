//! What keeps a client alive: clients, handles and guards hold an [`Engine`], and the last one to go ends the keeper.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;

use super::thread::Thread;
use crate::engine::core::{Core, Mail};

/// Keeps a client alive. Its drop ends the keeper.
pub(crate) struct Engine {
    pub(crate) core: Arc<Core>,
    keeper: Thread,
}

impl Engine {
    pub(crate) fn new(core: Arc<Core>, keeper: Thread) -> Self {
        Self { core, keeper }
    }

    /// Waits for `future`, for at most `limit` or until the keeper has ended. It uses the keeper's timers, so it works
    /// outside of a runtime.
    pub(crate) async fn within(&self, limit: Duration, future: impl Future) -> Option<()> {
        let over = select(Box::pin(future), Box::pin(self.joined()));
        let timers = self.core.backend.timers();
        timers.within(limit, over).await.map(drop)
    }

    /// Waits for the keeper's end.
    pub(crate) async fn joined(&self) {
        self.keeper.ended().await;
    }
}

/// A drop outside any runtime waits while the keeper completes what is under way: for a command time-out and this much
/// longer after the last answer.
const WAIT_FOR_KEEPER: Duration = Duration::from_millis(500);

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.post(Mail::Close);
        if tokio::runtime::Handle::try_current().is_err() {
            let limit = self.core.config.command_timeout + WAIT_FOR_KEEPER;
            while !self.keeper.wait(limit) && !self.core.keeper_fleet.is_silent_for(limit) {}
        }
    }
}
