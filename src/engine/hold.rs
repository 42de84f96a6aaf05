//! A hold: one owner's possession of one name, shared by its guards, its gate and the keeper.
//!
//! 1. Its life is the state machine of [`state`](super::state); every change goes through [`Hold::with`].
//! 2. Validity is read without a lock.
//! 3. The number of a hold is used by one attempt, and never again once that ended without a hold.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::kind::Kind;
use super::owner::OwnerState;
use super::state::{Phase, State};
use super::ticket::Ticket;
use crate::clock::Moment;
use crate::error::{Error, LostReason};
use crate::lease::LeaseMs;

/// A hold, shared by its guards, its gate and the keeper.
pub(crate) struct Hold {
    pub(crate) kind: Kind,
    /// The field in Redis: `<client uuid>:<number>`.
    pub(crate) id: Box<str>,
    pub(crate) number: u64,
    /// The lease it was first asked with.
    pub(crate) lease: LeaseMs,
    pub(crate) owner: Option<Weak<OwnerState>>,
    /// The task that asked for it, to tell a task that it waits for itself.
    pub(crate) task: Option<tokio::task::Id>,
    state: Mutex<State>,
    /// Validity for readers, 0 when there is none.
    valid_until: AtomicU64,
    tainted: AtomicBool,
    /// Whether the keeper already sees its release through.
    reaped: AtomicBool,
    /// Whether a last release was sent that nobody answered.
    pub(crate) release_unanswered: AtomicBool,
    /// Whether the gate expects to hear of its release; the gate's.
    pub(crate) echo: AtomicBool,
    /// When the keeper looks next; the schedule's.
    pub(crate) look_at: AtomicU64,
    changed: Notify,
    /// How many wait for a change.
    waiters: AtomicU32,
}

/// One who waits for a change.
struct Waiter<'a>(&'a Hold);

impl<'a> Waiter<'a> {
    fn of(hold: &'a Hold) -> Self {
        hold.waiters.fetch_add(1, Ordering::AcqRel);
        Self(hold)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Hold {
    pub(crate) fn trying(
        id: Box<str>,
        number: u64,
        ticket: &Ticket,
        finish_by: Moment,
    ) -> Arc<Self> {
        let mut state = State::trying();
        state.finish_by = finish_by;
        let request = &ticket.request;
        Arc::new(Self {
            kind: request.kind.clone(),
            id,
            number,
            lease: request.lease,
            owner: request.owner.as_ref().map(Arc::downgrade),
            task: ticket.task,
            state: Mutex::new(state),
            valid_until: AtomicU64::new(0),
            tainted: AtomicBool::new(false),
            reaped: AtomicBool::new(false),
            release_unanswered: AtomicBool::new(false),
            echo: AtomicBool::new(false),
            look_at: AtomicU64::new(Moment::NEVER.as_nanos()),
            changed: Notify::new(),
            waiters: AtomicU32::new(0),
        })
    }

    /// Lets `change` act on the state; readers and waiters see the result.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let before = (state.phase, state.announced);
        let result = change(&mut state);
        let valid_until = match state.phase {
            Phase::Held => state.valid_until,
            _ => Moment::default(),
        };
        self.valid_until
            .store(valid_until.as_nanos(), Ordering::Release);
        let changed = before != (state.phase, state.announced);
        drop(state);
        if changed {
            self.tell();
        }
        result
    }

    /// Up to when the client vouches for it; the start of time when it does not.
    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    pub(crate) fn count(&self) -> u32 {
        self.with(|state| state.count())
    }

    /// Why it is lost, if it is (by the clock, too).
    pub(crate) fn lost_reason(&self, now: Moment) -> Option<LostReason> {
        self.with(|state| {
            state.expire(now);
            match state.phase {
                Phase::Lost(reason) => Some(reason),
                _ => None,
            }
        })
    }

    /// Tells `lost()` without taking the hold away.
    pub(crate) fn announce(&self, reason: LostReason) {
        self.with(|state| state.announced = Some(reason));
    }

    /// Resolves when the hold is lost, or its loss announced; never once it ended.
    pub(crate) async fn lost(&self) -> LostReason {
        self.wait_for(|state| match (state.phase, state.announced) {
            (Phase::Lost(reason), _) | (Phase::Held, Some(reason)) => Some(reason),
            _ => None,
        })
        .await
    }

    /// Resolves when the hold is lost.
    pub(crate) async fn lost_for_good(&self) -> LostReason {
        self.wait_for(|state| match state.phase {
            Phase::Lost(reason) => Some(reason),
            _ => None,
        })
        .await
    }

    /// How its last release ended; what is not known is no failure.
    pub(crate) fn outcome(&self) -> Result<(), Error> {
        self.state.lock().outcome.clone().unwrap_or(Ok(()))
    }

    /// Resolves when its last release was answered, or given up.
    pub(crate) async fn ended(&self) -> Result<(), Error> {
        self.wait_for(|state| state.outcome.clone()).await
    }

    /// Tells those who wait for a change. To look whether there are any is cheaper than to tell nobody.
    fn tell(&self) {
        // After the change: who came before it is counted, who comes after it sees it.
        if self.waiters.load(Ordering::Acquire) > 0 {
            self.changed.notify_waiters();
        }
    }

    async fn wait_for<R>(&self, mut seen: impl FnMut(&State) -> Option<R>) -> R {
        // Most often it is so already, and a notification costs more than a look.
        if let Some(result) = seen(&self.state.lock()) {
            return result;
        }
        let _waiter = Waiter::of(self);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(result) = seen(&self.state.lock()) {
                return result;
            }
            changed.await;
        }
    }

    /// The last release was answered, or given up.
    pub(crate) fn end(&self, outcome: Result<(), Error>) {
        self.with(|state| {
            state.phase = match state.phase {
                Phase::Lost(reason) => Phase::Lost(reason),
                _ => Phase::Ended,
            };
            state.outcome.get_or_insert(outcome);
        });
        self.tell();
    }

    /// An acquire of this hold went unanswered: it may still run, whenever the server gets to it.
    pub(crate) fn taint(&self) {
        self.tainted.store(true, Ordering::Release);
    }

    /// Whether the caller is the first to see its release through.
    pub(crate) fn reap(&self) -> bool {
        !self.reaped.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Acquire)
    }
}
