//! What happened, in the order in which it happened.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use watchlock_support::history::{Call, LockKind, Nanos, Outcome, Record};

/// How the release of a hold that is left to its lease fails.
pub const LET_EXPIRE: &str = "let_expire";

/// Collects records. Time passes by whole milliseconds, so what happens at the same moment is numbered by nanoseconds.
#[derive(Clone)]
pub struct Story {
    begun: Instant,
    inner: Arc<Mutex<Lines>>,
    section: Arc<Notify>,
}

#[derive(Default)]
struct Lines {
    records: Vec<Record>,
    next_op: u64,
    last: Nanos,
    sections: usize,
}

impl Story {
    pub fn begin() -> Self {
        Self {
            begun: Instant::now(),
            inner: Arc::default(),
            section: Arc::default(),
        }
    }

    /// The next moment, which no other record has.
    pub fn now(&self) -> Nanos {
        let mut inner = self.inner.lock();
        self.next(&mut inner)
    }

    fn next(&self, inner: &mut Lines) -> Nanos {
        let now = Nanos::try_from(self.begun.elapsed().as_nanos()).unwrap_or(Nanos::MAX);
        inner.last = now.max(inner.last + 1);
        inner.last
    }

    pub fn invoke(&self, client: u32, owner: u32, kind: LockKind, name: &str, call: Call) -> u64 {
        let mut inner = self.inner.lock();
        let t = self.next(&mut inner);
        let op = inner.next_op;
        inner.next_op += 1;
        let name = name.to_owned();
        inner.records.push(Record::Invoke {
            t,
            op,
            client,
            owner,
            kind,
            name,
            call,
        });
        op
    }

    pub fn returned(&self, op: u64, outcome: Outcome, token: Option<u64>) {
        let mut inner = self.inner.lock();
        let t = self.next(&mut inner);
        if matches!(outcome, Outcome::Acquired(1)) {
            inner.sections += 1;
            self.section.notify_one();
        }
        inner.records.push(Record::Return {
            t,
            op,
            since: None,
            outcome,
            token,
        });
    }

    /// Resolves when a section has begun since it last did.
    pub async fn next_section(&self) {
        self.section.notified().await;
    }

    /// The names of locks that a client left to their leases.
    pub fn left_to_their_leases(&self, of: u32) -> BTreeSet<String> {
        let inner = self.inner.lock();
        let left = inner.records.iter().filter_map(|record| match record {
            Record::Return { op, outcome, .. } => {
                let left = matches!(outcome, Outcome::Failed(how) if how == LET_EXPIRE);
                left.then_some(*op)
            }
            _ => None,
        });
        let left: BTreeSet<u64> = left.collect();
        let names = inner.records.iter().filter_map(|record| match record {
            Record::Invoke {
                op, client, name, ..
            } if *client == of && left.contains(op) => Some(name.split(", ").map(str::to_owned)),
            _ => None,
        });
        names.flatten().collect()
    }

    /// From now on the caller of an operation does not poll it.
    pub fn unpolled(&self, op: u64, span: Duration) {
        let from = self.now();
        // Timers step by a millisecond.
        let span = span + Duration::from_millis(1);
        let until = from + Nanos::try_from(span.as_nanos()).unwrap_or(Nanos::MAX);
        self.push(Record::Unpolled { from, until, op });
    }

    pub fn push(&self, record: Record) {
        self.inner.lock().records.push(record);
    }

    /// How many holds began.
    pub fn sections(&self) -> usize {
        self.inner.lock().sections
    }

    pub fn records(&self) -> Vec<Record> {
        self.inner.lock().records.clone()
    }
}
