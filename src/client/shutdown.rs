//! What was left when a client was shut down.

use std::sync::Arc;

use crate::engine::hold::Hold;
use crate::engine::hold::state::Phase;

/// The names of locks that were left when [`Client::shutdown`](crate::Client::shutdown) ended, without the client's
/// prefix.
///
/// ```
/// fn print(report: &watchlock::ShutdownReport) {
///     for name in &report.held {
///         eprintln!("{name}: its holder was cut off");
///     }
///     for name in &report.unreleased {
///         eprintln!("{name}: others may have to wait for its lease to end");
///     }
/// }
/// # print(&watchlock::ShutdownReport::default());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Still held at the time-out, and lost then with reason [`Shutdown`](crate::LostReason::Shutdown).
    pub held: Vec<String>,
    /// Redis did not answer the release before the client ended: the key may stay until its lease ends.
    pub unreleased: Vec<String>,
}

impl ShutdownReport {
    /// Whether every hold was released in time, and Redis confirmed it.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.held.is_empty() && self.unreleased.is_empty()
    }
}

/// The names of `holds` that are still held.
pub(super) fn held(holds: &[Arc<Hold>]) -> Vec<String> {
    names(holds, |hold| hold.phase() == Phase::Held)
}

/// The names of `holds` whose last release has no answer.
pub(super) fn unreleased(holds: &[Arc<Hold>]) -> Vec<String> {
    names(holds, |hold| {
        let outcome = hold.with(|state| state.outcome().cloned());
        // A reply that the key is gone, or belongs to another client, counts as an answer.
        !matches!(outcome, Some(Ok(()))) && !matches!(outcome, Some(Err(error)) if error.is_lost())
    })
}

fn names(holds: &[Arc<Hold>], which: impl Fn(&Hold) -> bool) -> Vec<String> {
    let holds = holds.iter().filter(|hold| which(hold));
    let names = holds.map(|hold| hold.kind.names().name().to_owned());
    names.collect()
}
