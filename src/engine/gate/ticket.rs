//! A ticket: one caller's acquire, from its call until somebody took its result; and the queue of the tickets that wait
//! at a gate, first come first served.
//!
//! 1. The result is put into the ticket and the caller woken. A hold that is not collected in time is taken back (I9: a
//!    future that is not polled delays others for a moment at most).
//! 2. A waiting ticket is decided or closed only under the lock of its gate; a decided one is its caller's. So a
//!    grant reaches a ticket that was seen to wait under that lock.
//! 3. Thousands may wait, so nothing that happens at each grant walks the whole queue. Waiters are found by the end of
//!    their wait, and by their owner.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::{HeldLevel, OwnerState};
use crate::engine::hold::state::{HoldState, Level};
use crate::engine::hold::{Effects, Hold, Origin, TaskId};
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

/// How long a caller still waits for the reply to its own try after the end of its wait.
pub(crate) const GRACE: Duration = Duration::from_millis(25);

impl Patience {
    /// The patience of a call at `since` that waits for `wait`, or without a limit.
    pub(crate) fn of(wait: Option<Duration>, since: Moment) -> Self {
        match wait {
            None => Self::Forever,
            Some(Duration::ZERO) => Self::Once,
            Some(wait) => Self::Until(since + wait),
        }
    }

    /// When a call that was made at `since` gives up: at the end of its wait, but not before it is a command time-out old.
    pub(crate) fn returns_by(self, since: Moment, command_timeout: Duration) -> Moment {
        let at_least = since + command_timeout;
        match self {
            Self::Once => at_least,
            Self::Until(end) => end.max(at_least),
            Self::Forever => Moment::NEVER,
        }
    }
}

/// What an acquire ended with.
#[derive(Clone)]
pub(crate) enum Verdict {
    Granted(Arc<Hold>),
    /// Somebody else has the lock: until then, if that is known.
    Busy(Option<Moment>),
    /// Boxed: thousands may wait, and few fail.
    Failed(Box<Error>),
    /// Start again: the owner holds the name now, or the grant was not collected.
    Again,
}

impl Verdict {
    pub(crate) fn failed(error: impl Into<Error>) -> Self {
        Self::Failed(Box::new(error.into()))
    }
}

enum TicketState {
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
    /// For how long the watchdog may keep a limited level.
    pub(crate) at_most: Option<LeaseMs>,
    pub(crate) patience: Patience,
    /// When it was called.
    pub(crate) since: Moment,
    /// The number of its earlier ticket, if it starts again: it keeps its place in the queue.
    pub(crate) turn: Option<u64>,
    /// How often it started again.
    pub(crate) rounds: u32,
    /// Whether a command for it was, or may have been, sent before it started again.
    pub(crate) sent: bool,
}

pub(crate) struct Ticket {
    /// Its place in the queue. Numbers grow by arrival.
    pub(crate) number: u64,
    /// The number of a hold that it gets without asking Redis.
    hold_number: u64,
    pub(crate) request: Request,
    pub(crate) task: TaskId,
    state: Mutex<TicketState>,
    /// An attempt whose outcome is unknown, or that has a place in a queue that Redis keeps. It is tried again under the
    /// same hold id.
    unsettled: Mutex<Option<Arc<Hold>>>,
    /// The last hold that too few replicas acknowledged. It is being released.
    refused: Mutex<Option<Arc<Hold>>>,
    /// How many of its tries failed because the connection broke.
    pub(super) breaks: AtomicU8,
    /// When the first try was sent whose lease was over before the grant arrived, since the last answer "busy".
    late_since: Mutex<Option<Moment>>,
    /// Whether it was reported that its task waits for itself.
    self_wait_reported: AtomicBool,
    sent: AtomicBool,
    /// Whether it was called (woken to see whether it is polled), and has not been polled since.
    called: AtomicBool,
}

/// A grant that was delivered and not collected yet.
pub(super) struct Uncollected {
    pub(super) ticket: Arc<Ticket>,
    pub(super) since: Moment,
    /// Whether the waiters behind it were called.
    pub(super) called: bool,
}

/// After how long the waiters behind a grant that is not collected are called.
pub(super) const CALL_AFTER: Duration = Duration::from_millis(20);

/// How long a grant is kept for a caller that is not polled, and for those that were called. A caller that comes back
/// has twice as long each time. So one that is polled rarely gets the lock in the end, unless others that can use it are
/// always there.
pub(super) const KEPT_FOR: Duration = Duration::from_millis(100);

/// The same for a caller that came back so often.
pub(crate) fn kept_for(rounds: u32, command_timeout: Duration) -> Duration {
    (KEPT_FOR * 2_u32.pow(rounds.min(8))).min(command_timeout)
}

/// After how long a task that waits for itself is reported.
const SELF_CHECK: Duration = Duration::from_secs(1);

impl Request {
    pub(crate) fn owner_number(&self) -> Option<u64> {
        self.owner.as_ref().map(|owner| owner.number)
    }

    /// When its caller gives up.
    pub(crate) fn returns_by(&self, command_timeout: Duration) -> Moment {
        self.patience.returns_by(self.since, command_timeout)
    }

    /// The first level of `hold`, for the caller that asked for it.
    pub(crate) fn entered(&self, hold: Arc<Hold>) -> HeldLevel {
        HeldLevel {
            hold,
            level: self.level,
            owner: self.owner.clone(),
            open: true,
        }
    }

    /// Sets the end of its level, which began with a command that was sent at `sent_at`, if the level is limited.
    pub(crate) fn limit(&self, state: &mut HoldState, sent_at: Moment) {
        if let Some(at_most) = self.at_most {
            state.limit(sent_at + at_most.duration());
        }
    }

    /// The same request again, at its place in the queue.
    pub(crate) fn again(&self, ticket: &Ticket) -> Self {
        Self {
            turn: Some(ticket.number),
            rounds: self.rounds.saturating_add(1),
            sent: ticket.was_sent(),
            ..self.clone()
        }
    }

    /// The [`Origin`] of a hold with the field `id` in Redis.
    pub(crate) fn origin(&self, id: &Arc<str>, number: u64, task: TaskId) -> Origin {
        Origin {
            kind: self.kind.clone(),
            id: Arc::clone(id),
            number,
            lease: self.lease,
            owner: self.owner_number(),
            entered_by: number,
            task,
        }
    }
}

impl Uncollected {
    pub(super) fn kept_until(&self, command_timeout: Duration) -> Moment {
        self.since + kept_for(self.ticket.request.rounds, command_timeout)
    }
}

impl Ticket {
    pub(crate) fn new(number: u64, request: Request) -> Arc<Self> {
        Arc::new(Self {
            number: request.turn.unwrap_or(number),
            hold_number: number,
            sent: AtomicBool::new(request.sent),
            request,
            task: TaskId::current(),
            state: Mutex::new(TicketState::Waiting(None)),
            unsettled: Mutex::new(None),
            refused: Mutex::new(None),
            breaks: AtomicU8::new(0),
            late_since: Mutex::new(None),
            self_wait_reported: AtomicBool::new(false),
            called: AtomicBool::new(false),
        })
    }

    /// The [`Origin`] of a hold with the field `id` that it gets without asking Redis.
    pub(super) fn origin(&self, id: &Arc<str>) -> Origin {
        self.request.origin(id, self.hold_number, self.task)
    }

    /// The owner of the hold that it asks for: nobody, where callers get reads of it.
    pub(crate) fn owner_of_hold(&self) -> Option<u64> {
        let has_reads = self.request.kind.commands.has_reads();
        self.request.owner_number().filter(|_| !has_reads)
    }

    /// Whether messages are to wake it.
    pub(super) fn listens(&self) -> bool {
        self.request.kind.commands.rules().backoff.is_none()
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(*self.state.lock(), TicketState::Waiting(_))
    }

    /// Whether it has a result that is not collected.
    pub(crate) fn is_decided(&self) -> bool {
        matches!(*self.state.lock(), TicketState::Decided(_))
    }

    /// Puts the result in, if the caller still waits for one. Only under the lock of its gate (2).
    pub(crate) fn decide(&self, verdict: Verdict, effects: &mut Effects) {
        let mut state = self.state.lock();
        if let TicketState::Waiting(waker) = &mut *state {
            effects.wake(waker.take());
            *state = TicketState::Decided(verdict);
        }
    }

    /// Wakes the caller, to see whether it is polled.
    pub(super) fn call(&self, effects: &mut Effects) {
        // Relaxed: the lock of the state orders it. A waker that is there is woken; a poll that leaves one later sees the flag.
        self.called.store(true, Ordering::Relaxed);
        effects.wake(self.take_waker());
    }

    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// It is being polled.
    pub(super) fn is_present(&self) {
        self.called.store(false, Ordering::Relaxed);
    }

    /// Takes an uncollected grant back.
    pub(super) fn revoke(&self) -> Option<Arc<Hold>> {
        match &mut *self.state.lock() {
            TicketState::Decided(verdict @ Verdict::Granted(_)) => {
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
        matches!(*self.state.lock(), TicketState::Closed)
    }

    /// The caller is gone, and has taken its waker. Returns a grant that it did not collect. Only under the lock of its
    /// gate (2).
    pub(super) fn close(&self) -> Option<Arc<Hold>> {
        match std::mem::replace(&mut *self.state.lock(), TicketState::Closed) {
            TicketState::Decided(Verdict::Granted(hold)) => Some(hold),
            _ => None,
        }
    }

    /// Waits until there is a result, and leaves it there.
    pub(crate) fn poll_decided(&self, context: &mut Context<'_>) -> Poll<()> {
        // Wakers are cloned and dropped without a lock: they may run any code.
        let mut waker = Some(context.waker().clone());
        {
            let mut state = self.state.lock();
            let TicketState::Waiting(known) = &mut *state else {
                return Poll::Ready(());
            };
            std::mem::swap(known, &mut waker);
        }
        Poll::Pending
    }

    /// Waits for the result, and collects it.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Verdict> {
        self.poll_decided(context).map(|()| {
            let state = std::mem::replace(&mut *self.state.lock(), TicketState::Closed);
            match state {
                TicketState::Decided(verdict) => verdict,
                TicketState::Waiting(_) | TicketState::Closed => Verdict::Again,
            }
        })
    }

    /// The caller looks at the result next without being woken, or goes away. Returns the waker, to be dropped without a
    /// lock: it may run any code.
    pub(crate) fn take_waker(&self) -> Option<Waker> {
        match &mut *self.state.lock() {
            TicketState::Waiting(waker) => waker.take(),
            _ => None,
        }
    }

    /// Keeps an attempt whose outcome is unknown, or that has a place; or forgets it.
    pub(crate) fn set_unsettled(&self, hold: Option<&Arc<Hold>>) {
        *self.unsettled.lock() = hold.cloned();
    }

    pub(crate) fn unsettled(&self) -> Option<Arc<Hold>> {
        self.unsettled.lock().clone()
    }

    pub(super) fn set_refused(&self, hold: &Arc<Hold>) {
        *self.refused.lock() = Some(Arc::clone(hold));
    }

    pub(crate) fn take_refused(&self) -> Option<Arc<Hold>> {
        self.refused.lock().take()
    }

    /// Whether it may have a place in a queue that Redis keeps. A single try takes none.
    pub(crate) fn may_have_place(&self) -> bool {
        self.request.patience != Patience::Once && self.request.kind.has_queue()
    }

    /// Takes the attempt, which nobody will repeat.
    pub(super) fn take_unsettled(&self) -> Option<Arc<Hold>> {
        self.unsettled.lock().take()
    }

    /// A command for it was, or may have been, sent.
    pub(super) fn set_sent(&self) {
        // Relaxed, as in `connection_broke`.
        self.sent.store(true, Ordering::Relaxed);
    }

    /// Whether a command for it was, or may have been, sent.
    pub(crate) fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    /// One more try failed because the connection broke. Returns how many did before.
    pub(super) fn connection_broke(&self) -> u8 {
        // Relaxed: only counted under the gate's lock.
        self.breaks.fetch_add(1, Ordering::Relaxed)
    }

    /// The grant of a try that was sent at `since` came too late. Returns when the first such try was sent.
    pub(super) fn grant_was_late(&self, since: Moment) -> Moment {
        *self.late_since.lock().get_or_insert(since)
    }

    /// A try for it was answered "busy": others have their turns.
    pub(super) fn was_busy(&self) {
        *self.late_since.lock() = None;
    }

    /// Whether it is time to report that its task waits for itself. True once.
    pub(super) fn report_self_wait(&self, now: Moment) -> bool {
        let long = now >= self.request.since + SELF_CHECK;
        // Relaxed: it only has to be true once.
        long && !self.self_wait_reported.swap(true, Ordering::Relaxed)
    }

    /// When its wait ends, unless it is for ever.
    fn end(&self) -> Option<Moment> {
        match self.request.patience {
            Patience::Once => Some(self.request.since),
            Patience::Until(end) => Some(end),
            Patience::Forever => None,
        }
    }

    pub(crate) fn is_over(&self, now: Moment) -> bool {
        match self.request.patience {
            Patience::Once => true,
            Patience::Until(end) => now >= end,
            Patience::Forever => false,
        }
    }
}

#[derive(Default)]
pub(super) struct Queue {
    waiters: BTreeMap<u64, Arc<Ticket>>,
    listeners: usize,
    /// None before the first waiter: most gates never have one, and there is a gate for every hold.
    index: Option<Box<QueueIndex>>,
}

#[derive(Default)]
struct QueueIndex {
    ends: BTreeSet<(Moment, u64)>,
    owners: BTreeSet<(u64, u64)>,
    writers: BTreeSet<u64>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether messages are to wake anybody.
    pub(super) fn has_listeners(&self) -> bool {
        self.listeners > 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn head(&self) -> Option<&Arc<Ticket>> {
        self.waiters.first_key_value().map(|(_, first)| first)
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.waiters.contains_key(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Ticket>> {
        self.waiters.values()
    }

    /// Inserts in the order of arrival, so a head that tried in vain goes back to the front.
    pub(super) fn insert(&mut self, waiter: Arc<Ticket>) {
        let number = waiter.number;
        let index = self.index.get_or_insert_default();
        index.ends.extend(waiter.end().map(|end| (end, number)));
        let owner = waiter.request.owner_number();
        index.owners.extend(owner.map(|owner| (owner, number)));
        let writes = waiter.request.kind.commands.leaves_notes();
        index.writers.extend(writes.then_some(number));
        let listens = waiter.listens();
        if self.waiters.insert(number, waiter).is_none() {
            self.listeners += usize::from(listens);
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Arc<Ticket>> {
        let waiter = self.waiters.remove(&number)?;
        self.listeners -= usize::from(waiter.listens());
        let index = self.index.as_mut()?;
        if let Some(end) = waiter.end() {
            index.ends.remove(&(end, number));
        }
        if let Some(owner) = waiter.request.owner_number() {
            index.owners.remove(&(owner, number));
        }
        index.writers.remove(&number);
        Some(waiter)
    }

    pub(super) fn first_writer(&self) -> Option<&Arc<Ticket>> {
        self.waiters.get(self.index.as_ref()?.writers.first()?)
    }

    /// All who wait ahead of the first writer.
    pub(super) fn readers(&self) -> impl Iterator<Item = &Arc<Ticket>> {
        let writers = self.index.as_ref().and_then(|index| index.writers.first());
        let end = writers.copied().unwrap_or(u64::MAX);
        self.waiters.range(..end).map(|(_, waiter)| waiter)
    }

    /// The first reader behind `number`, if no writer is ahead of it.
    pub(super) fn next_reader(&self, number: u64) -> Option<&Arc<Ticket>> {
        let index = self.index.as_ref()?;
        let end = index.writers.first().copied().unwrap_or(u64::MAX);
        let behind = (
            Bound::Excluded(number),
            Bound::Excluded(end.max(number + 1)),
        );
        self.waiters.range(behind).next().map(|(_, waiter)| waiter)
    }

    /// Takes out a waiter whose wait is over at `now`, if there is one.
    pub(super) fn take_late(&mut self, now: Moment) -> Option<Arc<Ticket>> {
        let (end, number) = *self.index.as_ref()?.ends.first()?;
        if end > now {
            return None;
        }
        self.remove(number)
    }

    /// Takes out a waiter of `owner`, if there is one.
    pub(super) fn take_of(&mut self, owner: u64) -> Option<Arc<Ticket>> {
        let owners = &self.index.as_ref()?.owners;
        let (_, number) = *owners.range((owner, 0)..=(owner, u64::MAX)).next()?;
        self.remove(number)
    }

    /// Takes out all that `chosen` is true for. Walks the whole queue.
    pub(super) fn take_if(&mut self, mut chosen: impl FnMut(&Ticket) -> bool) -> Vec<Arc<Ticket>> {
        let waiters = self.waiters.iter();
        let numbers: Vec<u64> = waiters
            .filter(|(_, waiter)| chosen(waiter))
            .map(|(number, _)| *number)
            .collect();
        let taken = numbers.into_iter().filter_map(|number| self.remove(number));
        taken.collect()
    }
}

#[cfg(test)]
#[path = "ticket_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "queue_tests.rs"]
mod queue_tests;
