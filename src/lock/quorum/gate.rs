//! The front of one name at a quorum: one round at a time, and a queue behind it. Two local callers that tried at the
//! same time would split the nodes between them.
//!
//! 1. Whoever finds the gate free makes the first round itself. It is a shared future, which the job of the name drives
//!    on as soon as somebody queues behind it, or its caller is gone: so a caller that nobody polls holds nobody up.
//! 2. Everybody else queues. The job ([`job`](super::job)) makes the rounds for the head.
//! 3. What a round came to is settled here, once, by the round itself. What follows from it is done after the lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ticket::{Patience, Ticket, Verdict};
use crate::backend::{Failure, InFlight};
use crate::clock::Moment;
use crate::error::Error;
use crate::lock::LockGuard;
use crate::lock::composite::Level;

/// A round under way.
pub(super) type Flight = InFlight<()>;

/// What a round came to.
pub(super) enum Tried {
    Got(Level),
    /// Somebody else has it. Whether some nodes granted it all the same, and by when enough of them are free, if nobody
    /// renews or gives back anything.
    Busy {
        some: bool,
        free_at: Moment,
    },
    /// Too few answered.
    NoQuorum {
        error: Error,
        some: bool,
    },
    /// It will not work, now or later.
    Failed(Error),
}

/// What the job is to know of the last round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing was to be had; another try is worth it once something changes, and at this time.
    Refused { free_at: Moment },
    /// Others want it, too.
    MetOthers,
}

/// Whose turn it is.
pub(super) enum Turn {
    /// A round is under way.
    Under(Flight),
    /// This ticket is the head of the queue.
    Head(Arc<Ticket>),
    /// Nobody waits: the job is over.
    Over,
}

/// How a caller came in.
pub(super) enum Arrival {
    /// The gate was free: it is to make a round.
    First,
    Queued,
    /// Somebody waits who was told that it is busy.
    Busy,
}

/// What is done after the lock.
#[derive(Default)]
pub(super) struct Effects {
    decided: Vec<(Arc<Ticket>, Verdict)>,
    dropped: Vec<Level>,
    /// Somebody waits, and no job runs.
    pub(super) start_job: bool,
    /// What was granted while a job runs, for which it sees that it is collected.
    pub(super) granted: Option<Arc<Ticket>>,
}

/// The front of one name.
pub(super) struct Gate {
    seat: Option<Seat>,
    queue: VecDeque<Arc<Ticket>>,
    job: bool,
    /// Those who wait were told that it is busy.
    busy: bool,
    /// Why the last round had no quorum, and since when that is so.
    failing: Option<(Error, Moment)>,
    news: Option<News>,
    changed: Arc<Notify>,
}

/// A round under way, and whose it is.
struct Seat {
    flight: Flight,
    ticket: Arc<Ticket>,
}

impl Gate {
    fn new() -> Self {
        Self {
            seat: None,
            queue: VecDeque::new(),
            job: false,
            busy: false,
            failing: None,
            news: None,
            changed: Arc::default(),
        }
    }

    fn is_unused(&self) -> bool {
        self.seat.is_none() && self.queue.is_empty() && !self.job
    }

    /// Told of whatever the job has to look at.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// A caller comes, with the round that it would make.
    pub(super) fn arrive(
        &mut self,
        ticket: &Arc<Ticket>,
        flight: &Flight,
        effects: &mut Effects,
    ) -> Arrival {
        if self.seat.is_none() && self.queue.is_empty() {
            self.take_seat(ticket, flight);
            return Arrival::First;
        }
        if ticket.request.patience == Patience::Once && self.busy {
            return Arrival::Busy;
        }
        self.queue.push_back(Arc::clone(ticket));
        self.wants_job(effects);
        Arrival::Queued
    }

    /// The round for this ticket begins, which is not in the queue any more. False when another one is under way.
    pub(super) fn take_seat(&mut self, ticket: &Arc<Ticket>, flight: &Flight) -> bool {
        if self.seat.is_some() {
            return false;
        }
        self.queue.retain(|queued| !Arc::ptr_eq(queued, ticket));
        self.seat = Some(Seat {
            flight: flight.clone(),
            ticket: Arc::clone(ticket),
        });
        true
    }

    /// Whose turn it is, for the job. It ends when nobody waits.
    pub(super) fn turn(&mut self) -> Turn {
        self.queue.retain(|ticket| ticket.is_waiting());
        if let Some(seat) = &self.seat {
            return Turn::Under(seat.flight.clone());
        }
        if let Some(head) = self.queue.front() {
            return Turn::Head(Arc::clone(head));
        }
        self.job = false;
        Turn::Over
    }

    pub(super) fn take_news(&mut self) -> Option<News> {
        self.news.take()
    }

    /// The round for `ticket` is over.
    pub(super) fn settle(
        &mut self,
        ticket: &Arc<Ticket>,
        tried: Tried,
        now: Moment,
        unavailable_after: Duration,
        effects: &mut Effects,
    ) {
        self.seat.take_if(|seat| Arc::ptr_eq(&seat.ticket, ticket));
        match tried {
            Tried::Got(level) => self.got(ticket, level, effects),
            Tried::Busy { some, free_at } => {
                self.tell(some, free_at);
                self.busy = true;
                self.failing = None;
                self.goes_on(ticket, || Verdict::Busy, effects);
            }
            Tried::NoQuorum { error, some } => {
                self.tell(some, Moment::NEVER);
                self.busy = false;
                let since = self.failing.take().map_or(now, |(_, since)| since);
                self.goes_on(ticket, || Verdict::Failed(error.clone()), effects);
                self.give_up(&error, since, now, unavailable_after, effects);
                self.failing = Some((error, since));
            }
            Tried::Failed(error) => effects.decide(ticket, Verdict::Failed(error)),
        }
        if !self.queue.is_empty() {
            self.wants_job(effects);
        }
        self.changed.notify_one();
    }

    fn got(&mut self, ticket: &Arc<Ticket>, level: Level, effects: &mut Effects) {
        self.news = Some(News::Refused {
            free_at: Moment::NEVER,
        });
        self.failing = None;
        if !ticket.is_waiting() {
            self.busy = false;
            return effects.dropped.push(level);
        }
        self.busy = true;
        self.decide_queued(|queued| queued.request.patience == Patience::Once, effects);
        let level = match &ticket.request.owner {
            None => level,
            Some(owner) => {
                let same = |other: &Ticket| {
                    let other = other.request.owner.as_ref();
                    other.is_some_and(|other| Arc::ptr_eq(other, owner))
                };
                for queued in self.queue.extract(same) {
                    effects.decide(&queued, Verdict::Again);
                }
                level.owned_by(owner)
            }
        };
        effects.granted = self.job.then(|| Arc::clone(ticket));
        effects.decide(ticket, Verdict::Got(LockGuard::of_several(level)));
    }

    fn decide_queued(&mut self, which: impl Fn(&Ticket) -> bool, effects: &mut Effects) {
        for queued in self.queue.extract(which) {
            effects.decide(&queued, Verdict::Busy);
        }
    }

    fn tell(&mut self, some: bool, free_at: Moment) {
        let refused = News::Refused { free_at };
        self.news = Some(if some { News::MetOthers } else { refused });
    }

    /// A round was refused: who tries once hears that, who waits stays first.
    fn goes_on(
        &mut self,
        ticket: &Arc<Ticket>,
        verdict: impl Fn() -> Verdict,
        effects: &mut Effects,
    ) {
        if ticket.is_waiting() {
            self.queue.push_front(Arc::clone(ticket));
        }
        let once = |queued: &Ticket| queued.request.patience == Patience::Once;
        for queued in self.queue.extract(once) {
            effects.decide(&queued, verdict());
        }
    }

    /// Who waits for ever hears when there was no quorum for long.
    fn give_up(
        &mut self,
        error: &Error,
        since: Moment,
        now: Moment,
        after: Duration,
        effects: &mut Effects,
    ) {
        let tired = |queued: &Ticket| {
            let forever = queued.request.patience == Patience::Forever;
            forever && queued.request.since.max(since).until(now) >= after
        };
        for queued in self.queue.extract(tired) {
            effects.decide(&queued, Verdict::Failed(error.clone()));
        }
    }

    /// The end of a wait: what the caller hears, unless its own round is still worth listening to.
    pub(super) fn last_word(&mut self, ticket: &Arc<Ticket>, is_final: bool) -> Option<Verdict> {
        let silence = || Verdict::Failed(Failure::silence().into());
        let own = |seat: &Seat| Arc::ptr_eq(&seat.ticket, ticket);
        if !ticket.is_waiting() {
            return None;
        }
        if self.seat.as_ref().is_some_and(own) {
            return is_final.then(silence);
        }
        let known = match &self.failing {
            _ if self.busy => Some(Verdict::Busy),
            Some((error, _)) => Some(Verdict::Failed(error.clone())),
            None => None,
        };
        known.or_else(|| is_final.then(silence))
    }

    /// A caller is gone. Its round, if one is under way that somebody is to see through.
    pub(super) fn withdraw(&mut self, ticket: &Arc<Ticket>) -> Option<Flight> {
        self.queue.retain(|queued| !Arc::ptr_eq(queued, ticket));
        self.changed.notify_one();
        let seat = self.seat.as_ref();
        let own = seat.filter(|seat| Arc::ptr_eq(&seat.ticket, ticket));
        own.map(|seat| seat.flight.clone())
    }

    fn wants_job(&mut self, effects: &mut Effects) {
        effects.start_job |= !std::mem::replace(&mut self.job, true);
        self.changed.notify_one();
    }

    /// Nobody makes rounds any more: whoever waits hears that.
    fn close(&mut self, effects: &mut Effects) {
        for queued in self.queue.drain(..) {
            effects.decide(&queued, Verdict::Failed(Error::Closed));
        }
    }
}

impl Effects {
    fn decide(&mut self, ticket: &Arc<Ticket>, verdict: Verdict) {
        self.decided.push((Arc::clone(ticket), verdict));
    }

    /// Without a lock: a waker may run any code.
    fn tell(&mut self) {
        self.dropped.clear();
        for (ticket, verdict) in self.decided.drain(..) {
            ticket.decide(verdict);
        }
    }
}

/// Takes tickets out of a queue.
trait Extract {
    fn extract(&mut self, which: impl Fn(&Ticket) -> bool) -> Vec<Arc<Ticket>>;
}

impl Extract for VecDeque<Arc<Ticket>> {
    fn extract(&mut self, which: impl Fn(&Ticket) -> bool) -> Vec<Arc<Ticket>> {
        let (out, rest) = self
            .drain(..)
            .partition::<Vec<_>, _>(|ticket| which(ticket));
        self.extend(rest);
        out
    }
}

/// The gates of all names.
#[derive(Default)]
pub(super) struct Gates {
    of: Mutex<HashMap<Arc<str>, Gate>>,
}

impl Gates {
    /// Lets `change` act on the gate of this name; then does what follows.
    pub(super) fn at<R>(
        &self,
        name: &Arc<str>,
        change: impl FnOnce(&mut Gate, &mut Effects) -> R,
    ) -> (R, Effects) {
        let mut effects = Effects::default();
        let mut gates = self.of.lock();
        let gate = gates.entry(Arc::clone(name)).or_insert_with(Gate::new);
        let result = change(gate, &mut effects);
        if gate.is_unused() {
            gates.remove(name);
        }
        drop(gates);
        effects.tell();
        (result, effects)
    }

    /// Ends everybody's wait.
    pub(super) fn close(&self) {
        let mut effects = Effects::default();
        let mut gates = self.of.lock();
        for gate in gates.values_mut() {
            gate.close(&mut effects);
        }
        drop(gates);
        effects.tell();
    }
}
