//! An owner of holds at a quorum, as a value.

use std::sync::Arc;

use super::handle::{FencedQuorumLock, QuorumLock};
use super::nodes::QuorumNodes;
use crate::lock::handle::in_scope;
use crate::lock::kinds::{fenced, plain};
use crate::lock::several::CompositeOwner;

/// Who may enter a lock of a [`Quorum`](crate::Quorum) again: what an [`Owner`](crate::Owner) is to a client.
///
/// From [`Quorum::new_owner`](crate::Quorum::new_owner). Entering again with the same sort of lease asks no server. When
/// the owner is dropped, its [detached](crate::LockGuard::detach) levels are given back, with a warning in the log.
///
/// ```no_run
/// # async fn example(quorum: watchlock::Quorum) -> Result<(), watchlock::Error> {
/// let owner = quorum.new_owner();
/// let lock = owner.get_lock("accounts");
/// let outer = lock.lock().await?;
/// let inner = lock.lock().await?; // enters again
/// assert_eq!(lock.hold_count(), 2);
/// inner.unlock().await?;
/// outer.unlock().await
/// # }
/// ```
pub struct QuorumOwner {
    nodes: Arc<QuorumNodes>,
    state: Arc<CompositeOwner>,
}

impl std::fmt::Debug for QuorumOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuorumOwner").finish_non_exhaustive()
    }
}

impl QuorumOwner {
    pub(crate) fn new(nodes: &Arc<QuorumNodes>) -> Self {
        Self {
            nodes: Arc::clone(nodes),
            state: CompositeOwner::new(),
        }
    }

    /// The lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    pub fn get_lock(&self, name: impl AsRef<str>) -> QuorumLock {
        QuorumLock::of_quorum(&self.nodes, name.as_ref(), Some(&self.state), plain::kind)
    }

    /// The fenced lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> FencedQuorumLock {
        FencedQuorumLock::of_quorum(&self.nodes, name.as_ref(), Some(&self.state), fenced::kind)
    }

    /// Runs `future` for this owner: every handle of the quorum that is used inside acts for it, unless that handle
    /// belongs to another owner.
    ///
    /// # Cancel safety
    ///
    /// As `future`.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        in_scope(self.nodes.id(), Arc::clone(&self.state), future)
    }
}

impl Drop for QuorumOwner {
    fn drop(&mut self) {
        let detached = self.state.end();
        if !detached.is_empty() {
            tracing::warn!(
                levels = detached.len(),
                "an owner ended with detached levels; they are given back"
            );
        }
    }
}
