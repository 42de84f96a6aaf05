//! The instruments of docs/metrics.md, for the facade `metrics`.
//!
//! A client has its instruments from `connect` on, and each handle those of its kind, so that an event costs no look-up but
//! an atomic operation of the recorder. Gauges change by differences: clients add up, and one that ends subtracts its part.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};
use parking_lot::Mutex;

use crate::clock::{Clock, Moment};
use crate::error::LostReason;

/// Maps names of locks to a few values of the label `lock`.
type LockLabel = fn(&str) -> Option<&'static str>;

const KINDS: [&str; 8] = [
    "plain",
    "fenced",
    "fair",
    "read",
    "write",
    "spin",
    "simple",
    "semaphore",
];

/// The instruments of a client; none before it connects.
#[derive(Clone, Default)]
pub(crate) struct Metrics(Option<Arc<Instruments>>);

struct Instruments {
    clock: Clock,
    lock_label: Option<LockLabel>,
    locks: Mutex<BTreeMap<(&'static str, Option<&'static str>), LockMetrics>>,
    commands: Mutex<BTreeMap<(&'static str, &'static str), Histogram>>,
    slack: Histogram,
    renewals: [(&'static str, Counter); 3],
    polling: Gauge,
    unreleased: Gauge,
}

/// The instruments of a kind of lock.
#[derive(Clone, Default)]
pub(crate) struct LockMetrics(Option<Arc<LockInstruments>>);

struct LockInstruments {
    clock: Clock,
    acquires: [(&'static str, Histogram); 5],
    ends: [(&'static str, Histogram); 3],
    lost: [(&'static str, Counter); 4],
    holds: Gauge,
    waiters: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

fn of<T>(instruments: &[(&str, T)], word: &str) -> Option<usize> {
    instruments.iter().position(|(known, _)| *known == word)
}

impl Metrics {
    pub(crate) fn start(clock: &Clock, lock_label: Option<LockLabel>) -> Self {
        let renewal = |outcome| {
            let name = "watchlock_renewals_total";
            (outcome, counter!(name, "outcome" => outcome))
        };
        let metrics = Self(Some(Arc::new(Instruments {
            clock: clock.clone(),
            lock_label,
            locks: Mutex::default(),
            commands: Mutex::default(),
            slack: histogram!("watchlock_renewal_slack_ratio"),
            renewals: ["held", "missing", "failed"].map(renewal),
            polling: gauge!("watchlock_polling"),
            unreleased: gauge!("watchlock_unreleased"),
        })));
        if lock_label.is_none() {
            for kind in KINDS {
                metrics.of_lock(kind, "");
            }
        }
        metrics
    }

    /// The instruments of the lock `name`.
    pub(crate) fn of_lock(&self, kind: &'static str, name: &str) -> LockMetrics {
        let Some(all) = &self.0 else {
            return LockMetrics::default();
        };
        let lock = all.lock_label.and_then(|label| label(name));
        let known = all.locks.lock().get(&(kind, lock)).cloned();
        known.unwrap_or_else(|| {
            let new = LockMetrics::new(kind, lock, &all.clock);
            all.locks.lock().entry((kind, lock)).or_insert(new).clone()
        })
    }

    /// An attempt to connect a lane is over.
    pub(crate) fn connected<T, E>(&self, lane: &'static str, result: Result<T, E>) -> Result<T, E> {
        if self.0.is_some() {
            let outcome = if result.is_ok() { "ok" } else { "failed" };
            counter!("watchlock_connects_total", "lane" => lane, "outcome" => outcome).increment(1);
        }
        result
    }

    pub(crate) fn renewal(&self, outcome: &'static str) {
        if let Some(all) = &self.0
            && let Some(at) = of(&all.renewals, outcome)
        {
            all.renewals[at].1.increment(1);
        }
    }

    /// A renewal was acknowledged when so much of the lease was left.
    pub(crate) fn slack(&self, left: Duration, lease: Duration) {
        if let Some(all) = &self.0 {
            all.slack.record(left.as_secs_f64() / lease.as_secs_f64());
        }
    }

    pub(crate) fn polling(&self, change: f64) {
        if let Some(all) = &self.0 {
            all.polling.increment(change);
        }
    }

    pub(crate) fn unreleased(&self, change: f64) {
        if let Some(all) = &self.0 {
            all.unreleased.increment(change);
        }
    }

    /// Times a command from now on.
    pub(crate) fn command(&self, command: &'static str) -> CommandTimer {
        CommandTimer {
            all: self.0.clone(),
            command,
            since: Instant::now(),
        }
    }
}

/// Times one command. Dropped before the end, it counts as `unanswered`.
pub(crate) struct CommandTimer {
    all: Option<Arc<Instruments>>,
    command: &'static str,
    since: Instant,
}

impl CommandTimer {
    pub(crate) fn ended(mut self, outcome: impl FnOnce() -> &'static str) {
        self.record(outcome());
    }

    fn record(&mut self, outcome: &'static str) {
        let Some(all) = self.all.take() else {
            return;
        };
        let command = self.command;
        let known = all.commands.lock().get(&(command, outcome)).cloned();
        let histogram = known.unwrap_or_else(|| {
            // With nothing locked: the recorder is not ours.
            let name = "watchlock_command_seconds";
            let new = histogram!(name, "command" => command, "outcome" => outcome);
            let mut commands = all.commands.lock();
            commands.entry((command, outcome)).or_insert(new).clone()
        });
        histogram.record(self.since.elapsed());
    }
}

impl Drop for CommandTimer {
    fn drop(&mut self) {
        self.record("unanswered");
    }
}

impl LockMetrics {
    fn new(kind: &'static str, lock: Option<&'static str>, clock: &Clock) -> Self {
        let mut labels = vec![Label::new("kind", kind)];
        labels.extend(lock.map(|lock| Label::new("lock", lock)));
        let with = |label, value| [&labels[..], &[Label::new(label, value)]].concat();
        let acquire = |outcome: &'static str| {
            let labels = with("outcome", outcome);
            (outcome, histogram!("watchlock_acquire_seconds", labels))
        };
        let hold =
            |end: &'static str| (end, histogram!("watchlock_hold_seconds", with("end", end)));
        let lost = |reason: &'static str| {
            let labels = with("reason", reason);
            (reason, counter!("watchlock_lost_total", labels))
        };
        Self(Some(Arc::new(LockInstruments {
            clock: clock.clone(),
            acquires: ["free", "waited", "busy", "failed", "abandoned"].map(acquire),
            ends: ["released", "lost", "left"].map(hold),
            lost: ["expired", "missing", "forced", "background_ended"].map(lost),
            holds: gauge!("watchlock_holds", labels.clone()),
            waiters: gauge!("watchlock_waiters", labels.clone()),
        })))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn acquired(&self, outcome: &'static str, after: Duration) {
        if let Some(lock) = &self.0
            && let Some(at) = of(&lock.acquires, outcome)
        {
            lock.acquires[at].1.record(after);
        }
    }

    pub(crate) fn hold_begins(&self) {
        if let Some(lock) = &self.0 {
            lock.holds.increment(1.0);
        }
    }

    pub(crate) fn hold_ends(&self, end: &'static str, since: Moment) {
        if let Some(lock) = &self.0
            && let Some(at) = of(&lock.ends, end)
        {
            lock.holds.decrement(1.0);
            lock.ends[at].1.record(since.until(lock.clock.now()));
        }
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        let reason = match reason {
            LostReason::Expired => "expired",
            LostReason::Missing => "missing",
            LostReason::Forced => "forced",
            LostReason::BackgroundEnded => "background_ended",
            LostReason::Shutdown => return,
        };
        if let Some(lock) = &self.0
            && let Some(at) = of(&lock.lost, reason)
        {
            lock.lost[at].1.increment(1);
        }
    }
}

/// Counts one caller that waits, from [`begin`](Self::begin) until it is dropped.
#[derive(Default)]
pub(crate) struct Waits(LockMetrics);

impl Waits {
    pub(crate) fn begin(&mut self, lock: &LockMetrics) {
        if let Some(lock) = &lock.0 {
            lock.waiters.increment(1.0);
        }
        *self = Self(lock.clone());
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(lock) = &self.0.0 {
            lock.waiters.decrement(1.0);
        }
    }
}
