//! Terms of masters: a term ends when the sentinels name another master.
//!
//! 1. A command that is in flight when its term ends is unanswered: a reply of the old master does not count any more.
//! 2. A connection whose attempt began in an earlier term is not used.

use tokio::sync::watch;

/// The term of one master, which may be over.
#[derive(Clone)]
pub(crate) struct MasterTerm(watch::Receiver<()>);

impl MasterTerm {
    /// The present term; each change of `terms` ends one.
    pub(super) fn current(terms: &watch::Sender<()>) -> Self {
        Self(terms.subscribe())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.has_changed().unwrap_or(false)
    }

    /// The output of `future`; none if the term ends first.
    pub(crate) async fn within<F: Future>(&mut self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            // The sender lives as long as the client, so this never fails.
            Ok(()) = self.0.changed() => None,
            output = future => Some(output),
        }
    }
}
