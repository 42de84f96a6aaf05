//! Proves or refutes the invariants from a history.
//!
//! The checker knows nothing but the [`Record`]s: neither Redis nor the library. Whatever it reports is certain; if a
//! history leaves a doubt (an operation without a return, a client that was stopped, a fault under way), the client
//! gets the benefit of it. [`Report::looked_at`] shows what that costs: how many chances to fail each invariant had.
//!
//! **The certain window** of a hold is the time in which its client was sure of it:
//!
//! 1. It begins when the first acquire returned.
//! 2. It ends at the earliest of: the invoke of the last release; the invoke of any release that
//!    failed; the `lost` signal; the kill of the client; for a hold with fixed leases only, the
//!    latest `acquire returned + lease - drift` of its levels.
//! 3. If the client was stopped and got `lost` just afterwards, it ends with the stop: the validity ended somewhere in
//!    the stop, and a stopped client claims nothing.
//! 4. A deletion of the data ends it. An acquire that was open during the deletion has no window.
//!
//! **A name may be held** longer than that: from the acquire to the answer of the release; if an answer is missing,
//! until the lease has passed after the last fault that could delay a command. Between two such times the lock is
//! certainly free, and I5 and `Busy` are checked against that.
//!
//! **Kinds of lock.** A hold has one kind. Readers share a name; for a reader it is free unless somebody writes or
//! waits to write. For fenced locks the checker looks at the tokens (see `tokens`), for fair ones at the order (see
//! `order`), for plain ones at whether others get in (see `turns`). Of a semaphore several may be certain at once, as long as
//! they have no more permits than there are; it counts as held while the largest request for it may find too few.

mod bounds;
mod counts;
mod exclusion;
mod holds;
mod model;
pub(crate) mod order;
mod report;
mod spans;
mod tokens;
mod turns;
mod validity;
mod wakeups;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use report::{Breach, Invariant, Report, Violation};

use crate::history::{Nanos, Record};
use model::Model;

/// What the checked clients promise, and how much the machine may blur it.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The lease of holds under the watchdog.
    pub watchdog_lease: Duration,
    /// The time-out of one command.
    pub command_timeout: Duration,
    /// The longest sleep of a waiter between two tries.
    pub backoff_cap: Duration,
    /// How late a loaded machine may run a process: the blur of every time in the history.
    pub scheduling: Duration,
    /// The longest hand-over after a clean release.
    pub clean_wake: Duration,
    /// How long an acquire that was given up may keep others busy, besides that.
    pub given_up: Duration,
    /// How long after a fault connections and subscriptions may take to be back.
    pub recovery: Duration,
    /// How long clean-up in the background may take after a cancelled acquire or a dropped guard.
    pub cleanup: Duration,
    /// How long a dead client may keep its place in the queue of a fair lock.
    pub dead_waiter: Duration,
    /// How long each dead waiter of Redisson keeps its place in such a queue after those ahead of it are out.
    pub dead_turn: Duration,
    /// How long a writer that was killed may keep readers out, or a request for permits others.
    pub writer_note: Duration,
    /// By how much the clocks of clients may run faster than that of the history, in millionths.
    pub drift: u32,
    /// Whether some client is further away than the longest gap, and gets a lock that others never leave by chance only.
    pub has_far_clients: bool,
    /// How many permits each semaphore has.
    pub permits: u32,
    /// Whether no fault, other than a deletion, takes a hold away before its first lease is over: what is granted is on
    /// whatever server goes on.
    pub keeps_what_it_grants: bool,
}

impl Default for Settings {
    /// The defaults of the library, and 50 ms of blur.
    fn default() -> Self {
        Self {
            watchdog_lease: Duration::from_secs(30),
            command_timeout: Duration::from_secs(1),
            backoff_cap: Duration::from_secs(1),
            scheduling: Duration::from_millis(50),
            clean_wake: Duration::from_millis(100),
            given_up: Duration::ZERO,
            recovery: Duration::from_secs(3),
            cleanup: Duration::from_secs(1),
            dead_waiter: Duration::from_secs(16),
            dead_turn: Duration::ZERO,
            writer_note: Duration::from_secs(3),
            drift: 0,
            has_far_clients: false,
            permits: 1,
            keeps_what_it_grants: false,
        }
    }
}

/// Checks a history.
///
/// # Panics
/// When the history is inconsistent: a return without an invoke, two invokes of one number.
#[must_use]
pub fn check(records: &[Record], settings: &Settings) -> Report {
    let model = Model::build(records, settings);
    let mut report = Report::new(model.holds.len());
    exclusion::check(&model, &mut report);
    counts::check(&model, &mut report);
    wakeups::check(&model, &mut report);
    bounds::check(&model, &mut report);
    validity::check(&model, &mut report);
    tokens::check(&model, &mut report);
    order::check(&model, &mut report);
    turns::check(&model, &mut report);
    leftovers(records, &mut report);
    report
}

/// I4: never without TTL. I7: nothing is left.
fn leftovers(records: &[Record], report: &mut Report) {
    for record in records {
        match record {
            Record::Sample { name, ttl_ms, .. } => {
                report.looked(Invariant::I4);
                if *ttl_ms == -1 {
                    report.add(Breach::NoTtl, name, vec![record.clone()]);
                }
            }
            Record::Leftover { what, .. } => {
                report.add(
                    Breach::Leftover { what: what.clone() },
                    "",
                    vec![record.clone()],
                );
            }
            _ => {}
        }
    }
    report.looked(Invariant::I7);
}

/// A duration as nanoseconds; the longest is about 584 years.
pub(crate) fn ns(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

/// How much earlier than the lease a validity ends: 1 % and 2 ms for clocks that differ.
fn drift(lease: Nanos) -> Nanos {
    lease / 100 + 2 * crate::history::MS
}
