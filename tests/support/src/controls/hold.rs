//! A hold of the plain client: its levels, its validity, its renewals, its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{sleep_until, timeout_at};

use super::link::Answer;
use super::passing::Row;
use super::{Attempt, Flaw, Inner, scripts};
use crate::history::{Call, Outcome, Record};
use crate::now_ns;

/// A level of a hold; dropping it gives it back in the background.
#[derive(Debug)]
pub struct PlainHold {
    inner: Arc<Inner>,
    attempt: Attempt,
    state: Arc<Mutex<State>>,
    keeper: AbortHandle,
    token: Option<u64>,
    row: Row,
}

#[derive(Debug)]
struct State {
    levels: u32,
    valid_until: Instant,
    lost: bool,
}

/// The validity of a hold from its first acquire on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    token: Option<u64>,
    valid_until: Instant,
    row: Row,
}

impl Begun {
    pub(super) fn at(got: Answer, inner: &Inner, attempt: &Attempt) -> Self {
        Self {
            token: got.token,
            valid_until: validity(inner, got.sent, attempt.lease()),
            row: Row {
                since: Instant::now(),
                tainted: got.is_repeat(),
            },
        }
    }
}

fn validity(inner: &Inner, sent: Instant, lease: Duration) -> Instant {
    if inner.has(Flaw::ValidityFromReply) {
        return Instant::now() + lease;
    }
    let drift = lease / 100 + Duration::from_millis(2);
    sent + lease.saturating_sub(drift)
}

impl PlainHold {
    pub(super) fn begin(inner: &Arc<Inner>, attempt: &Attempt, begun: Begun) -> Self {
        let state = Arc::new(Mutex::new(State {
            levels: 1,
            valid_until: begun.valid_until,
            lost: false,
        }));
        let keeping = keep(Arc::clone(inner), attempt.clone(), Arc::clone(&state));
        Self {
            inner: Arc::clone(inner),
            attempt: attempt.clone(),
            state,
            keeper: tokio::spawn(keeping).abort_handle(),
            token: begun.token,
            row: begun.row,
        }
    }

    pub(super) fn row(&self) -> Row {
        self.row
    }

    pub(super) fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// How much longer it is valid.
    pub(super) fn left(&self) -> Duration {
        let end = self.state.lock().valid_until;
        end.saturating_duration_since(Instant::now())
    }

    /// It ends in order, and `next` goes on with its field.
    pub(super) fn passed_on(&mut self, mut next: Attempt) -> Self {
        let op = self.invoke(Call::Release);
        self.keeper.abort();
        let valid_until = {
            let mut state = self.state.lock();
            state.levels = 0;
            state.valid_until
        };
        next.field.clone_from(&self.attempt.field);
        let begun = Begun {
            token: None,
            valid_until,
            row: self.row,
        };
        let passed_on = Self::begin(&self.inner, &next, begun);
        self.inner.recorder.returned(op, Outcome::Released(0));
        passed_on
    }

    /// Its owner, as recorded.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.attempt.owner
    }

    /// The fencing token, of a fenced lock.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// Whether the loss was reported to the holder.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    /// Adds a level; returns how that ended.
    pub async fn reenter(&mut self) -> Outcome {
        let call = Call::Acquire {
            wait_ms: None,
            lease_ms: self.attempt.lease.map(super::millis),
        };
        let op = self.invoke(call);
        let count = self.state.lock().levels + 1;
        let answer = scripts::reenter(&self.inner, &self.attempt, count).await;
        let count = u32::try_from(answer.code).unwrap_or(0);
        let outcome = if count == 0 || self.is_lost() {
            Outcome::Failed("lost".to_owned())
        } else {
            self.state.lock().levels = count;
            Outcome::Acquired(count)
        };
        self.inner.recorder.returned(op, outcome.clone());
        outcome
    }

    /// Gives a level back; the last one ends the hold. Returns how that ended.
    pub async fn unlock(&mut self) -> Outcome {
        let op = self.invoke(Call::Release);
        let outcome = self.release().await;
        self.inner.recorder.returned(op, outcome.clone());
        outcome
    }

    async fn release(&mut self) -> Outcome {
        let (left, lost, valid_until) = {
            let mut state = self.state.lock();
            state.levels = state.levels.saturating_sub(1);
            (state.levels, state.lost, state.valid_until)
        };
        if left == 0 {
            self.keeper.abort();
        }
        let answer = scripts::release(&self.inner, &self.attempt, left).await;
        let ran_before = answer.is_repeat() && answer.first_sent < valid_until;
        if lost || (answer.code == 0 && !ran_before) {
            lose(&self.inner, &self.attempt, &self.state, "gone");
            let kind = if self.is_lost() { "lost" } else { "not_owner" };
            return Outcome::Failed(kind.to_owned());
        }
        Outcome::Released(left)
    }

    fn invoke(&self, call: Call) -> u64 {
        let (owner, name) = (self.attempt.owner, &self.attempt.name);
        self.inner
            .recorder
            .invoke(self.inner.client, owner, self.attempt.kind, name, call)
    }
}

impl Drop for PlainHold {
    fn drop(&mut self) {
        self.keeper.abort();
        let levels = std::mem::take(&mut self.state.lock().levels);
        if levels == 0 {
            return;
        }
        let _ = self.invoke(Call::Drop);
        if !self.inner.has(Flaw::DroppedGuardForgotten) {
            let (inner, attempt) = (Arc::clone(&self.inner), self.attempt.clone());
            tokio::spawn(async move { scripts::release(&inner, &attempt, 0).await });
        }
    }
}

/// Renews a hold without a fixed lease, and reports when its validity ends or Redis lost it.
async fn keep(inner: Arc<Inner>, attempt: Attempt, state: Arc<Mutex<State>>) {
    let reason = loop {
        let end = state.lock().valid_until;
        let renewal = end
            .checked_sub(attempt.lease() * 2 / 3)
            .filter(|_| attempt.lease.is_none());
        sleep_until(renewal.unwrap_or(end).into()).await;
        if renewal.is_none() {
            break "expired";
        }
        match timeout_at(end.into(), scripts::renew(&inner, &attempt)).await {
            Ok(answer) if answer.code == 1 => {
                state.lock().valid_until = validity(&inner, answer.sent, attempt.lease());
            }
            Ok(_) => break "gone",
            Err(_) => break "expired",
        }
    };
    lose(&inner, &attempt, &state, reason);
}

fn lose(inner: &Inner, attempt: &Attempt, state: &Mutex<State>, reason: &str) {
    if inner.has(Flaw::NoLostSignal) || std::mem::replace(&mut state.lock().lost, true) {
        return;
    }
    inner.recorder.push(Record::Lost {
        t: now_ns(),
        client: inner.client,
        owner: attempt.owner,
        kind: attempt.kind,
        name: attempt.name.clone(),
        reason: reason.to_owned(),
    });
}
