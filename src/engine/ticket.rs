//! A ticket: one caller's acquire, from its call until somebody took its result.
//!
//! A result is put into the ticket and the caller woken. A hold that is not collected in time is taken
//! back again, so that a future that nobody polls keeps the lock from nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::hold::Hold;
use super::kind::Kind;
use super::owner::OwnerState;
use super::state::Level;
use crate::clock::Moment;
use crate::error::Error;
use crate::lease::LeaseMs;

/// How long an acquire is willing to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One try.
    Once,
    /// Until then, busy or not.
    Until(Moment),
    /// For ever while the lock is busy; a server that gives no clean answer is waited for a while.
    Forever,
}

/// What an acquire ended with.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    Granted(Arc<Hold>),
    Busy,
    Failed(Error),
    /// Look again from the start: the owner holds the name now, or the grant was not collected.
    Again,
}

enum State {
    Waiting(Option<Waker>),
    Decided(Verdict),
    /// The caller took the result, or is gone.
    Closed,
}

pub(crate) struct Ticket {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) owner: Option<Arc<OwnerState>>,
    pub(crate) lease: LeaseMs,
    pub(crate) level: Level,
    pub(crate) patience: Patience,
    pub(crate) arrived_at: Moment,
    pub(crate) task: Option<tokio::task::Id>,
    state: Mutex<State>,
    /// An attempt of this ticket whose outcome is unknown; it is tried again under the same hold id.
    pub(crate) unsettled: Mutex<Option<Arc<Hold>>>,
    /// Whether a broken connection was made up for already.
    pub(crate) breaks: AtomicU8,
    /// Whether it was said that its task waits for itself.
    told: AtomicBool,
}

/// After how long a task that waits for itself is told of.
const SELF_CHECK: Duration = Duration::from_secs(1);

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}

/// Wakes that are due once no lock is held.
#[derive(Default)]
pub(crate) struct Wakes(Vec<Waker>);

impl Drop for Wakes {
    fn drop(&mut self) {
        for waker in self.0.drain(..) {
            waker.wake();
        }
    }
}

impl Ticket {
    pub(crate) fn new(request: NewTicket) -> Arc<Self> {
        Arc::new(Self {
            number: request.number,
            kind: request.kind,
            owner: request.owner,
            lease: request.lease,
            level: request.level,
            patience: request.patience,
            arrived_at: request.arrived_at,
            task: tokio::task::try_id(),
            state: Mutex::new(State::Waiting(None)),
            unsettled: Mutex::new(None),
            breaks: AtomicU8::new(0),
            told: AtomicBool::new(false),
        })
    }

    /// Whether its caller still waits for a result.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(*self.state.lock(), State::Waiting(_))
    }

    /// Whether a result lies there uncollected.
    pub(crate) fn is_decided(&self) -> bool {
        matches!(*self.state.lock(), State::Decided(_))
    }

    /// Puts the result in; false when the caller is gone or has one already.
    pub(crate) fn decide(&self, verdict: Verdict, wakes: &mut Wakes) -> bool {
        let mut state = self.state.lock();
        let State::Waiting(waker) = &mut *state else {
            return false;
        };
        wakes.0.extend(waker.take());
        *state = State::Decided(verdict);
        true
    }

    /// Takes an uncollected grant back.
    pub(crate) fn revoke(&self) -> Option<Arc<Hold>> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Decided(verdict @ Verdict::Granted(_)) => {
                match std::mem::replace(verdict, Verdict::Again) {
                    Verdict::Granted(hold) => Some(hold),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Whether its caller took the result.
    pub(crate) fn is_collected(&self) -> bool {
        matches!(*self.state.lock(), State::Closed)
    }

    /// The caller is gone; a grant it did not collect.
    pub(crate) fn close(&self) -> Option<Arc<Hold>> {
        match std::mem::replace(&mut *self.state.lock(), State::Closed) {
            State::Decided(Verdict::Granted(hold)) => Some(hold),
            _ => None,
        }
    }

    /// Collects the result, if there is one.
    pub(crate) fn take(&self) -> Option<Verdict> {
        let mut state = self.state.lock();
        if !matches!(*state, State::Decided(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Closed) {
            State::Decided(verdict) => Some(verdict),
            State::Waiting(_) | State::Closed => None,
        }
    }

    /// Waits for the result, and collects it.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Verdict> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Waiting(waker) => {
                match waker {
                    Some(known) if known.will_wake(context.waker()) => {}
                    _ => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            State::Decided(_) => match std::mem::replace(&mut *state, State::Closed) {
                State::Decided(verdict) => Poll::Ready(verdict),
                _ => Poll::Ready(Verdict::Again),
            },
            State::Closed => Poll::Ready(Verdict::Again),
        }
    }

    /// The caller itself is about to see to the result: it need not be woken for it.
    pub(crate) fn is_awake(&self) {
        if let State::Waiting(waker) = &mut *self.state.lock() {
            *waker = None;
        }
    }

    /// Whether it waits in `task` for long enough to be told of, and was not before.
    pub(crate) fn told_of_itself(&self, task: Option<tokio::task::Id>, now: Moment) -> bool {
        let long = now >= self.arrived_at + SELF_CHECK;
        self.task == task && long && !self.told.swap(true, Ordering::Relaxed)
    }

    /// Whether waiting is over at `now`.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        match self.patience {
            Patience::Once => true,
            Patience::Until(end) => now >= end,
            Patience::Forever => false,
        }
    }
}

/// What a ticket is made of.
pub(crate) struct NewTicket {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) owner: Option<Arc<OwnerState>>,
    pub(crate) lease: LeaseMs,
    pub(crate) level: Level,
    pub(crate) patience: Patience,
    pub(crate) arrived_at: Moment,
}
