//! How often another server became the master.
//!
//! 1. What is under way when that happens is unanswered: an answer of the old master is worth nothing from then on.
//! 2. A connection that began to be made before it is not used.

use tokio::sync::watch;

/// Counts the masters.
pub(crate) struct MasterTerms(watch::Sender<u64>);

/// The time of one master, which may be over.
#[derive(Clone)]
pub(crate) struct MasterTerm(watch::Receiver<u64>);

impl MasterTerms {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// There is another master.
    pub(crate) fn next(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// The present master's turn.
    pub(crate) fn current(&self) -> MasterTerm {
        MasterTerm(self.0.subscribe())
    }
}

impl MasterTerm {
    pub(crate) fn is_over(&self) -> bool {
        self.0.has_changed().unwrap_or(false)
    }

    /// What `future` comes to, if it does within this turn.
    pub(crate) async fn within<F: Future>(&mut self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            // The other end lives as long as the client.
            Ok(()) = self.0.changed() => None,
            output = future => Some(output),
        }
    }
}
