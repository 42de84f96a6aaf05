//! A plain lock client, and fourteen ways to get it wrong.
//!
//! A checker that cannot fail proves nothing. [`Plain`] is a correct client of the same locks in as few lines as
//! possible, on the `redis` crate alone; with a [`Flaw`] it makes one classic mistake, at one place. Both record what
//! they do. The checker must pass the correct client and catch all the others.
//!
//! It is a control, not a library: it leaves out everything that its experiments do not need. [`classic`] has the ways
//! to lock that the literature warns of.

pub mod classic;
mod family;
mod hold;
mod link;
mod passing;
pub mod quorum;
mod scripts;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use hold::PlainHold;

use crate::history::{Call, LockKind, Outcome, Recorder};
use hold::Begun;
use link::Link;

/// The time-out of one command.
pub const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest sleep of a waiter between two tries.
pub const BACKOFF_CAP: Duration = Duration::from_millis(200);
/// The lease of holds under the watchdog.
pub const WATCHDOG_LEASE: Duration = Duration::from_millis(900);

/// One classic mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Validity is counted from the reply, not from just before the command was sent.
    ValidityFromReply,
    /// A release deletes the key, whoever holds it.
    UnlockWithoutOwnerCheck,
    /// A waiter that was answered busy subscribes and goes to sleep, without a second try.
    NoRetryAfterSubscribing,
    /// A re-entry increments the count, and is repeated after a lost reply.
    IncrementRepeated,
    /// A renewal prolongs the key, whoever holds it.
    RenewalWithoutOwnerCheck,
    /// An acquire whose caller went away leaves what it got.
    CancelledAcquireLeft,
    /// The loss of a hold is not reported to anybody.
    NoLostSignal,
    /// A dropped guard is not released.
    DroppedGuardForgotten,
    /// The counter of fencing tokens ends with the lease of the lock.
    TokenForgotten,
    /// A reader does not check whether somebody writes.
    ReaderBesideWriter,
    /// A reader's release ends all readers' holds.
    ReadReleaseForAll,
    /// A new waiter goes to the front of the queue.
    StackForQueue,
    /// A hold is passed on although its acquire may still run once more.
    TaintedPassedOn,
    /// Holds are passed on for as long as anybody in the client wants one.
    RowWithoutEnd,
}

impl Flaw {
    /// All fourteen.
    pub const ALL: [Self; 14] = [
        Self::ValidityFromReply,
        Self::UnlockWithoutOwnerCheck,
        Self::NoRetryAfterSubscribing,
        Self::IncrementRepeated,
        Self::RenewalWithoutOwnerCheck,
        Self::CancelledAcquireLeft,
        Self::NoLostSignal,
        Self::DroppedGuardForgotten,
        Self::TokenForgotten,
        Self::ReaderBesideWriter,
        Self::ReadReleaseForAll,
        Self::StackForQueue,
        Self::TaintedPassedOn,
        Self::RowWithoutEnd,
    ];
}

/// A plain client; each acquire is an owner of its own.
#[derive(Clone, Debug)]
pub struct Plain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: u32,
    flaw: Option<Flaw>,
    recorder: Recorder,
    link: Link,
    next_owner: AtomicU64,
}

impl Inner {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// One acquire: its owner and its request.
#[derive(Clone, Debug)]
struct Attempt {
    owner: u32,
    kind: LockKind,
    name: String,
    field: String,
    lease: Option<Duration>,
    /// Whether it may wait.
    waits: bool,
}

impl Attempt {
    fn lease(&self) -> Duration {
        self.lease.unwrap_or(WATCHDOG_LEASE)
    }
}

impl Plain {
    /// A client by number, which talks to `url` and makes one mistake or none.
    ///
    /// # Panics
    /// If the URL is not valid.
    #[must_use]
    pub fn new(url: &str, client: u32, flaw: Option<Flaw>, recorder: &Recorder) -> Self {
        let inner = Inner {
            client,
            flaw,
            recorder: recorder.clone(),
            link: Link::new(url),
            next_owner: AtomicU64::new(0),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Acquires within `wait`; without a `lease` the hold is renewed. `None`: busy.
    ///
    /// # Cancel safety
    /// A dropped acquire is undone in the background (except with [`Flaw::CancelledAcquireLeft`]).
    pub async fn lock(
        &self,
        name: &str,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Option<PlainHold> {
        self.lock_as(LockKind::Lock, name, wait, lease).await
    }

    /// The same for a lock of any kind.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn lock_as(
        &self,
        kind: LockKind,
        name: &str,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Option<PlainHold> {
        let owner = self.inner.next_owner.fetch_add(1, Ordering::Relaxed);
        let attempt = Attempt {
            owner: u32::try_from(owner).unwrap_or(u32::MAX),
            kind,
            waits: !wait.is_zero(),
            name: name.to_owned(),
            field: format!("{}:{owner}", self.inner.client),
            lease,
        };
        let call = Call::Acquire {
            wait_ms: Some(millis(wait)),
            lease_ms: lease.map(millis),
        };
        let recorder = &self.inner.recorder;
        let op = recorder.invoke(self.inner.client, attempt.owner, kind, name, call);
        let mut abandoned = Abandoned {
            inner: &self.inner,
            attempt: &attempt,
            op: Some(op),
        };
        let got = waiting::acquire(&self.inner, &attempt, wait).await;
        abandoned.op = None;
        let Some(got) = got else {
            abandoned.undo();
            recorder.returned(op, Outcome::Busy);
            return None;
        };
        let hold = PlainHold::begin(&self.inner, &attempt, Begun::at(got, &self.inner, &attempt));
        recorder.granted(op, Outcome::Acquired(1), hold.token());
        Some(hold)
    }
}

/// Undoes an acquire whose caller is gone. The release follows the acquire on the same connection.
struct Abandoned<'a> {
    inner: &'a Arc<Inner>,
    attempt: &'a Attempt,
    op: Option<u64>,
}

impl Abandoned<'_> {
    fn undo(&self) {
        let (inner, attempt) = (Arc::clone(self.inner), self.attempt.clone());
        tokio::spawn(async move { scripts::release(&inner, &attempt, 0).await });
    }
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        let Some(op) = self.op else {
            return;
        };
        if !self.inner.has(Flaw::CancelledAcquireLeft) {
            self.undo();
        }
        self.inner.recorder.returned(op, Outcome::Cancelled);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
