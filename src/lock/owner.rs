//! An owner as a value.

use std::sync::Arc;

use super::{OwnerLock, ReentrantLock};
use crate::engine::owner::OwnerState;
use crate::engine::{Engine, release};

/// Who may enter a lock again: one flow of control, what a thread is to Java.
///
/// Made by [`Client::new_owner`](crate::Client::new_owner), and not `Clone`: hand it down by reference to
/// what belongs to the same flow of control. Locks that it got by [`get_lock`](Self::get_lock) enter
/// again what it holds. Acquires of one owner on one name at the same time are put in order: the first
/// starts the hold, the others enter it.
///
/// When it is dropped its [detached](crate::LockGuard::detach) levels are given back, with a warning in
/// the log; guards live on.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let owner = client.new_owner();
/// let guard = owner.get_lock("accounts").lock().await?;
/// helper(&owner).await?; // may lock "accounts" again
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// # async fn helper(owner: &watchlock::Owner) -> Result<(), watchlock::Error> { Ok(()) }
/// ```
pub struct Owner {
    engine: Arc<Engine>,
    state: Arc<OwnerState>,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").finish_non_exhaustive()
    }
}

impl Owner {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            state: OwnerState::new(),
        }
    }

    pub(crate) fn state(&self) -> &Arc<OwnerState> {
        &self.state
    }

    /// The lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    pub fn get_lock(&self, name: &str) -> OwnerLock<'_> {
        OwnerLock::new(ReentrantLock::new(&self.engine, name), self)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.engine.core.is_forked() {
            return;
        }
        let detached = self.state.end();
        if !detached.is_empty() {
            tracing::warn!(
                levels = detached.len(),
                "an owner ended with detached levels; they are given back"
            );
        }
        for (hold, level) in detached {
            release::drop_level(&self.engine.core, &hold, level);
        }
    }
}
