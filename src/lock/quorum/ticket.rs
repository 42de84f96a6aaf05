//! One caller's acquire at a quorum, from its call until somebody took its result.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::engine::kind::Kind;
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::LockGuard;
use crate::lock::composite::OwnerState;

/// For how long a caller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// One try.
    Once,
    Until(Moment),
    Forever,
}

/// What is asked for.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    /// Whether it is to have a fencing token.
    pub(super) fenced: bool,
    pub(super) lease: Lease,
    pub(super) owner: Option<Arc<OwnerState>>,
    pub(super) patience: Patience,
    pub(super) since: Moment,
}

/// How an acquire ended.
pub(super) enum Verdict {
    Got(LockGuard),
    Busy,
    Failed(Error),
    /// It is to begin afresh: its owner has the lock by now, or what it got was not collected.
    Again,
}

/// One acquire.
pub(super) struct Ticket {
    pub(super) request: Request,
    state: Mutex<State>,
}

enum State {
    Waiting(Option<Waker>),
    Decided(Verdict),
    /// Collected, or nobody wants it any more.
    Over,
}

impl Ticket {
    pub(super) fn new(request: Request) -> Arc<Self> {
        Arc::new(Self {
            request,
            state: Mutex::new(State::Waiting(None)),
        })
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(&*self.state.lock(), State::Waiting(_))
    }

    /// Delivers the verdict; what it has is given back when nobody waits for it.
    pub(super) fn decide(&self, verdict: Verdict) {
        let mut undelivered = Some(verdict);
        let mut state = self.state.lock();
        let waker = match &mut *state {
            State::Waiting(waker) => {
                let waker = waker.take();
                *state = undelivered.take().map_or(State::Over, State::Decided);
                waker
            }
            State::Decided(_) | State::Over => None,
        };
        drop(state);
        drop(undelivered);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes back what was not collected in time: its caller begins afresh.
    pub(super) fn take_back(&self) {
        let mut state = self.state.lock();
        if matches!(&*state, State::Decided(Verdict::Got(_))) {
            let before = std::mem::replace(&mut *state, State::Decided(Verdict::Again));
            drop(state);
            drop(before);
        }
    }

    /// Nobody wants it any more. What it got comes back.
    pub(super) fn end(&self) -> Option<Verdict> {
        match std::mem::replace(&mut *self.state.lock(), State::Over) {
            State::Decided(verdict) => Some(verdict),
            State::Waiting(_) | State::Over => None,
        }
    }

    /// Collects the verdict.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<Verdict> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Decided(verdict) => Poll::Ready(verdict),
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Over => Poll::Pending,
        }
    }
}
