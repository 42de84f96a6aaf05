//! A ticket: one caller's acquire, from its call until somebody took its result.
//!
//! 1. A result is put into the ticket and the caller woken. A hold that is not collected in time is taken
//!    back again, so that a future that nobody polls keeps the lock from nobody (I9).
//! 2. A ticket that waits is decided or closed only under the lock of its gate; a decided one is its caller's.
//!    So whoever has that lock and sees it wait can rely on it: a grant is delivered, or not made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::queue::{Place, Waits};
use crate::clock::Moment;
use crate::engine::hold::Hold;
use crate::engine::hold::effects::Effects;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::{HeldLevel, OwnerState};
use crate::engine::hold::state::Level;
use crate::error::Error;
use crate::lease::LeaseMs;

/// How long an acquire is willing to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One try.
    Once,
    /// Until then, busy or not.
    Until(Moment),
    /// For ever while the lock is busy; while every try fails, for a bounded time.
    Forever,
}

/// What an acquire ended with.
#[derive(Clone)]
pub(crate) enum Verdict {
    Granted(Arc<Hold>),
    /// Somebody else has it: up to then, as far as that is known.
    Busy(Option<Moment>),
    /// Boxed: thousands may wait, and few fail.
    Failed(Box<Error>),
    /// Look again from the start: the owner holds the name now, or the grant was not collected.
    Again,
}

impl Verdict {
    pub(crate) fn failed(error: impl Into<Error>) -> Self {
        Self::Failed(Box::new(error.into()))
    }
}

enum State {
    Waiting(Option<Waker>),
    Decided(Verdict),
    /// The caller took the result, or is gone.
    Closed,
}

/// What an acquire asks for.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) owner: Option<Arc<OwnerState>>,
    pub(crate) lease: LeaseMs,
    pub(crate) level: Level,
    pub(crate) patience: Patience,
    /// When it was called.
    pub(crate) since: Moment,
}

struct Inner {
    state: State,
    /// An attempt of this ticket whose outcome is unknown, or that has a place in a queue that Redis keeps; it is
    /// tried again under the same hold id.
    unsettled: Option<Arc<Hold>>,
}

pub(crate) struct Ticket {
    pub(crate) number: u64,
    pub(crate) request: Request,
    pub(crate) task: Option<tokio::task::Id>,
    inner: Mutex<Inner>,
    /// Whether a broken connection was made up for already.
    pub(crate) breaks: AtomicU8,
    /// Whether it was said that its task waits for itself.
    told: AtomicBool,
    /// Its caller's alone: whether it took the result.
    collected: AtomicBool,
}

/// After how long a task that waits for itself is told of.
const SELF_CHECK: Duration = Duration::from_secs(1);

impl Request {
    /// The number of its owner.
    pub(crate) fn owner_number(&self) -> Option<u64> {
        self.owner.as_ref().map(|owner| owner.number)
    }

    /// The first level of `hold`, for whoever asked for it.
    pub(crate) fn entered(&self, hold: Arc<Hold>) -> HeldLevel {
        HeldLevel {
            hold,
            level: self.level,
            owner: self.owner.clone(),
            open: true,
        }
    }
}

impl Waits for Arc<Ticket> {
    fn place(&self) -> Place {
        Place {
            number: self.number,
            end: match self.request.patience {
                Patience::Once => Some(self.request.since),
                Patience::Until(end) => Some(end),
                Patience::Forever => None,
            },
            owner: self.request.owner_number(),
            listens: self.request.kind.commands.backoff().is_none(),
            alone: self.request.kind.commands.wants_it_alone(),
        }
    }
}

impl Ticket {
    pub(crate) fn new(number: u64, request: Request) -> Arc<Self> {
        Arc::new(Self {
            number,
            request,
            task: tokio::task::try_id(),
            inner: Mutex::new(Inner {
                state: State::Waiting(None),
                unsettled: None,
            }),
            breaks: AtomicU8::new(0),
            told: AtomicBool::new(false),
            collected: AtomicBool::new(false),
        })
    }

    /// Whose the hold is that it asks for: nobody's, where callers get shares.
    pub(crate) fn owner_of_hold(&self) -> Option<u64> {
        let shares = self.request.kind.commands.has_reads();
        self.request.owner_number().filter(|_| !shares)
    }

    /// Whether its caller still waits for a result.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.inner.lock().state, State::Waiting(_))
    }

    /// Whether a result lies there uncollected.
    pub(crate) fn is_decided(&self) -> bool {
        matches!(self.inner.lock().state, State::Decided(_))
    }

    /// Puts the result in, if the caller still waits for one. By 2: under the lock of its gate.
    pub(crate) fn decide(&self, verdict: Verdict, effects: &mut Effects) {
        let state = &mut self.inner.lock().state;
        if let State::Waiting(waker) = state {
            effects.wake(waker.take());
            *state = State::Decided(verdict);
        }
    }

    /// Takes an uncollected grant back.
    pub(crate) fn revoke(&self) -> Option<Arc<Hold>> {
        let state = &mut self.inner.lock().state;
        match state {
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
        // Relaxed: who asks is who set it.
        self.collected.load(Ordering::Relaxed)
    }

    /// The caller is gone; a grant it did not collect. By 2: under the lock of its gate.
    pub(crate) fn close(&self) -> Option<Arc<Hold>> {
        match std::mem::replace(&mut self.inner.lock().state, State::Closed) {
            State::Decided(Verdict::Granted(hold)) => Some(hold),
            _ => None,
        }
    }

    /// Waits until there is a result, and leaves it there.
    pub(crate) fn poll_decided(&self, context: &mut Context<'_>) -> Poll<()> {
        let state = &mut self.inner.lock().state;
        let State::Waiting(waker) = state else {
            return Poll::Ready(());
        };
        match waker {
            Some(known) if known.will_wake(context.waker()) => {}
            _ => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Waits for the result, and collects it.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Verdict> {
        self.poll_decided(context).map(|()| {
            let state = std::mem::replace(&mut self.inner.lock().state, State::Closed);
            self.collected.store(true, Ordering::Relaxed);
            match state {
                State::Decided(verdict) => verdict,
                State::Waiting(_) | State::Closed => Verdict::Again,
            }
        })
    }

    /// The caller itself is about to see to the result: it need not be woken for it.
    pub(crate) fn is_awake(&self) {
        if let State::Waiting(waker) = &mut self.inner.lock().state {
            *waker = None;
        }
    }

    /// Keeps an attempt whose outcome is unknown, or that has a place; or forgets it.
    pub(crate) fn set_unsettled(&self, hold: Option<&Arc<Hold>>) {
        self.inner.lock().unsettled = hold.cloned();
    }

    pub(crate) fn unsettled(&self) -> Option<Arc<Hold>> {
        self.inner.lock().unsettled.clone()
    }

    /// Whether it may have a place in a queue that Redis keeps: for one try nobody queues.
    pub(crate) fn may_have_place(&self) -> bool {
        self.request.patience != Patience::Once && self.request.kind.has_queue()
    }

    /// For an attempt that nobody will make again.
    pub(crate) fn take_unsettled(&self) -> Option<Arc<Hold>> {
        self.inner.lock().unsettled.take()
    }

    /// Whether it waits for long enough to be told that its task waits for itself, and was not told before.
    pub(crate) fn told_of_itself(&self, now: Moment) -> bool {
        let long = now >= self.request.since + SELF_CHECK;
        // Relaxed: it only has to be true once.
        long && !self.told.swap(true, Ordering::Relaxed)
    }

    /// Whether waiting is over at `now`.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        match self.request.patience {
            Patience::Once => true,
            Patience::Until(end) => now >= end,
            Patience::Forever => false,
        }
    }
}

#[cfg(test)]
#[path = "ticket_tests.rs"]
mod tests;
