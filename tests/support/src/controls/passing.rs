//! Passes a hold on to the next owner of the same client: the field in Redis stays. This is right while the hold is
//! certain, and for ten milliseconds in a row; then the release goes alone, and the lock stays free for one
//! millisecond.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::hold::{Begun, PlainHold};
use super::{Attempt, Flaw, Inner, Plain, WATCHDOG_LEASE, millis, scripts, waiting};
use crate::history::{Call, LockKind, Outcome};

/// For how long a hold is passed on.
const ROW: Duration = Duration::from_millis(10);
/// For how long the lock stays free then.
const FREE: Duration = Duration::from_millis(1);

/// How often it looks for an old acquire, and how long it waits before each look.
const GHOST: u32 = 40;
const HAUNTS: Duration = Duration::from_millis(50);

/// Since when a hold in Redis has been passed from owner to owner, and whether one of its acquires may still run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) since: Instant,
    pub(super) tainted: bool,
}

impl Row {
    /// Whether a hold that is valid for `left` is passed on.
    fn goes_on(self, left: Duration, inner: &Inner) -> bool {
        let certain = !self.tainted || inner.has(Flaw::TaintedPassedOn);
        let short = self.since.elapsed() < ROW && left > WATCHDOG_LEASE * 2 / 3;
        certain && (short || inner.has(Flaw::RowWithoutEnd))
    }
}

impl Plain {
    /// Unlocks `hold` and takes the lock for the next owner here within `wait`: that owner gets the hold as it is, or
    /// has to acquire the lock. `None`: it stayed busy.
    pub async fn next_owner(&self, mut hold: PlainHold, wait: Duration) -> Option<PlainHold> {
        let inner = &self.inner;
        let owner = inner.next_owner.fetch_add(1, Ordering::Relaxed);
        let name = hold.attempt().name.clone();
        let attempt = Attempt {
            owner: u32::try_from(owner).unwrap_or(u32::MAX),
            kind: LockKind::Lock,
            waits: true,
            field: format!("{}:{owner}", inner.client),
            lease: None,
            name: name.clone(),
        };
        let call = Call::Acquire {
            wait_ms: Some(millis(wait)),
            lease_ms: None,
        };
        let op = inner
            .recorder
            .invoke(inner.client, attempt.owner, attempt.kind, &name, call);
        if hold.row().goes_on(hold.left(), inner) {
            let next = hold.passed_on(attempt);
            inner.recorder.granted(op, Outcome::Acquired(1), None);
            return Some(next);
        }
        hold.unlock().await;
        if hold.row().tainted {
            self.exorcise(hold.attempt().clone());
        }
        sleep(FREE).await;
        let Some(got) = waiting::acquire(inner, &attempt, wait).await else {
            inner.recorder.returned(op, Outcome::Busy);
            return None;
        };
        let next = PlainHold::begin(inner, &attempt, Begun::at(got, inner, &attempt));
        inner.recorder.granted(op, Outcome::Acquired(1), None);
        Some(next)
    }

    /// Releases what an old acquire may still take.
    fn exorcise(&self, attempt: Attempt) {
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            for _ in 0..GHOST {
                sleep(HAUNTS).await;
                scripts::release(&inner, &attempt, 0).await;
            }
        });
    }
}
