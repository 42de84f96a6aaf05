//! The gate: the local front of one name in one client.
//!
//! 1. One of {an attempt, a hold, a release} of a name is in the [seat](super::gate::seat) at a time, so that a
//!    process asks Redis for a name with one voice. Late releases of lost or tainted holds need no seat: by
//!    I3 they can touch nothing but their own field.
//! 2. Behind the seat waits a queue, first come first served. Only the keeper's job serves it, so no caller
//!    that is not polled holds anybody up (I9).
//! 3. Busy is said only on knowledge: a hold of this client that is valid, or an answer to somebody who still
//!    waits for the lock and listens for its release, whose holder's lease is not over, and since which nobody was
//!    heard to release.
//! 4. Nobody waits behind a hold that its own owner has: an owner is sent to enter it, whether it comes when
//!    the hold is there already or waits when it is granted.
//! 5. The gate does no I/O and wakes nobody: it is changed under a lock, and its [`Effects`] are carried out
//!    afterwards.
//!
//! This file is who comes and goes; what answers mean is in [`outcomes`](super::gate::answers), what the keeper's
//! job does next in [`steps`](super::gate::next). `C` is a command in flight.

pub(crate) mod answers;
pub(crate) mod fair;
pub(crate) mod gates;
pub(crate) mod handover;
mod joining;
pub(crate) mod joint;
pub(crate) mod known;
#[cfg(test)]
mod model_tests;
pub(crate) mod next;
mod passing;
pub(crate) mod queue;
pub(crate) mod row;
pub(crate) mod seat;
pub(crate) mod shares;
pub(crate) mod ticket;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use self::handover::Wakeups;
use self::known::Known;
use self::queue::{Queue, Waits};
use self::row::Row;
use self::seat::{Attempt, Seat, Vacated};
use self::ticket::{Patience, Ticket, Verdict};
use super::hold::Hold;
use super::hold::effects::Effects;
use super::hold::kind::Kind;
use super::hold::state::{HoldState, RenewalPlan};
use crate::clock::Moment;
use crate::error::Error;

/// So many waiters of a client, at most, have a place in a queue that Redis keeps; the others wait behind them. Each
/// grant costs Redis a pass over that queue.
const PLACES: usize = 64;

/// The times that a gate goes by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) command_timeout: Duration,
    /// For how long those who wait for ever keep trying while every try fails.
    pub(crate) unavailable_after: Duration,
    pub(crate) plan: RenewalPlan,
    /// Whether holds are passed on.
    pub(crate) passes_on: bool,
}

/// The keeper's job for a name, as the gate sees it.
#[derive(Default)]
pub(crate) struct Job {
    /// Told when something changed at the gate; a permit is kept.
    pub(crate) changed: Notify,
}

pub(crate) struct Gate<C> {
    seat: Seat<C>,
    queue: Queue<Arc<Ticket>>,
    job: Option<Arc<Job>>,
    known: Known,
    /// Since when every try failed, instead of being answered "got it" or "busy": the start of the first of them.
    failing_since: Option<Moment>,
    wakeups: Wakeups,
    /// Whether the head must try at once: it is new, or the seat was just given up.
    prompt: bool,
    row: Row,
    /// By when the job looks at the gate without being told, while it only waits.
    looks_at: Moment,
    marked: Option<Mark>,
}

/// Redis is told that somebody here waits to have the lock alone.
struct Mark {
    since: Moment,
    /// Of which kind the lock is for that one.
    kind: Kind,
    /// Redis is being told that nobody does any more.
    leaves: bool,
}

impl<C> Default for Gate<C> {
    fn default() -> Self {
        Self {
            seat: Seat::Free,
            queue: Queue::default(),
            job: None,
            known: Known::Nothing,
            failing_since: None,
            wakeups: Wakeups::default(),
            prompt: false,
            row: Row::default(),
            looks_at: Moment::NEVER,
            marked: None,
        }
    }
}

/// Where an acquire finds itself.
pub(crate) enum Arrival<C> {
    /// In the seat: the caller sends the first try.
    First(C),
    /// Beside the hold in the seat: the caller sends the join.
    Join(Arc<Hold>, C),
    /// It has a share of the hold in the seat.
    In(Arc<Hold>),
    Queued,
    Busy,
    /// Its owner holds the lock: it can enter.
    Again,
}

impl<C: Clone + PartialEq> Gate<C> {
    /// An acquire arrives. `attempt` makes what is put into a free seat, or a join of the hold that it is given.
    pub(crate) fn arrive(
        &mut self,
        ticket: &Arc<Ticket>,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
        attempt: impl FnOnce(Option<&Arc<Hold>>) -> (Arc<Hold>, C),
    ) -> Arrival<C> {
        if self.may_enter(ticket, now) {
            return Arrival::Again;
        }
        if let Some(share) = self.enter_unasked(ticket, now, rules, effects) {
            return Arrival::In(share);
        }
        let is_open = self.seat.is_free() && !self.row.is_left(now);
        if is_open && self.queue.is_empty() {
            // By 3: whoever was told what is known is gone.
            self.known = Known::Nothing;
            self.failing_since = None;
            let (hold, command) = attempt(None);
            self.sit(hold, ticket, command.clone(), now);
            return Arrival::First(command);
        }
        let unasked = matches!(&self.seat, Seat::Shared { join: None, .. });
        if unasked && self.queue.is_empty() && self.is_joinable(ticket, now) {
            let (hold, command) = attempt(self.seat.held());
            self.sit(Arc::clone(&hold), ticket, command.clone(), now);
            return Arrival::Join(hold, command);
        }
        if ticket.request.patience == Patience::Once {
            if self.knows_busy(ticket, now) {
                return Arrival::Busy;
            }
            self.doubt();
        }
        // Those ahead may be of kinds that only poll: from now on the job is to listen, too.
        let first_to_listen = ticket.place().listens && !self.queue.has_listeners();
        if self.queue.is_empty() || first_to_listen || self.has_place_for(ticket) {
            self.tell_job();
        }
        self.queue.insert(Arc::clone(ticket));
        Arrival::Queued
    }

    /// Whether the job is to give `ticket`, which is about to wait, a place in the queue that Redis keeps.
    fn has_place_for(&self, ticket: &Ticket) -> bool {
        ticket.may_have_place() && self.queue.len() < PLACES
    }

    pub(crate) fn head(&self) -> Option<Arc<Ticket>> {
        self.queue.head().cloned()
    }

    /// By 4: whether `ticket` can enter the hold in the seat.
    fn may_enter(&self, ticket: &Ticket, now: Moment) -> bool {
        let request = &ticket.request;
        if let Seat::Shared { .. } = &self.seat {
            let owner = request.owner.as_ref();
            return owner.is_some_and(|owner| owner.has(request.kind.names(), now));
        }
        let held = self.seat.held().filter(|hold| now < hold.valid_until());
        let commands = &request.kind.commands;
        held.is_some_and(|hold| commands.may_enter(hold.owner, request.owner_number()))
    }

    /// Takes the seat for an attempt, or a place beside the hold in it for a join.
    fn sit(&mut self, hold: Arc<Hold>, ticket: &Arc<Ticket>, command: C, now: Moment) {
        let attempt = Attempt {
            hold,
            ticket: Arc::clone(ticket),
            command,
            since: now,
            early: false,
            overdue: false,
        };
        match &mut self.seat {
            Seat::Shared { join, .. } => *join = Some(attempt),
            seat => seat.try_for(attempt),
        }
    }

    /// The caller of `ticket` is gone. A grant that it did not collect, to be given back.
    pub(crate) fn withdraw(
        &mut self,
        ticket: &Arc<Ticket>,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        let uncollected = ticket.close();
        let told = self.seat.is_trying_for(ticket) || self.is_head(ticket) || self.is_marked();
        if self.queue.remove(ticket.number).is_some() && told {
            self.prompt = true;
        }
        if told {
            // The next one is the head now, or the attempt is the job's to see through.
            self.tell_job();
        }
        if told && matches!(self.known, Known::Busy(_)) {
            // By 3: it was known by what this one was told.
            self.known = Known::Nothing;
        }
        self.abandon(ticket, effects);
        uncollected
    }

    /// Decides the wait of one who does not get the lock now.
    fn conclude(&self, ticket: &Arc<Ticket>, verdict: Verdict, effects: &mut Effects) {
        ticket.decide(verdict, effects);
        self.abandon(ticket, effects);
    }

    /// Nobody will repeat the attempt of `ticket` whose outcome is unknown. One that is in flight is seen to
    /// when it is answered.
    fn abandon(&self, ticket: &Arc<Ticket>, effects: &mut Effects) {
        if !self.seat.is_trying_for(ticket)
            && let Some(hold) = ticket.take_unsettled()
        {
            effects.change(&hold, HoldState::give_up);
            effects.release(&hold);
        }
    }

    /// By 3: what is known may be over by now, and nobody would have heard of it. Those who wait, ask.
    fn doubt(&mut self) {
        if self.seat.is_free() && matches!(self.known, Known::Busy(_)) {
            self.known = Known::Nothing;
            self.prompt = true;
            self.tell_job();
        }
    }

    /// Whether somebody who was told that the lock is busy hears of its release.
    fn hears(&self) -> bool {
        let tries = match &self.seat {
            Seat::Trying(attempt) => attempt.ticket.place().listens,
            _ => false,
        };
        tries || self.queue.has_listeners()
    }

    /// By 3.
    fn knows_busy(&self, ticket: &Ticket, now: Moment) -> bool {
        match &self.seat {
            Seat::Held { hold, .. } if now < hold.valid_until() => true,
            Seat::Shared { joint, .. } if joint.is_valid(now) && !self.is_joinable(ticket, now) => {
                true
            }
            Seat::HandingOver { .. } | Seat::Releasing { .. } => false,
            _ => match self.known {
                Known::Busy(until) => self.hears() && until.is_none_or(|until| now < until),
                Known::Nothing | Known::Failed(_) => false,
            },
        }
    }

    /// What one whose wait is over hears: the last error, or busy.
    pub(crate) fn last_word(&self, ticket: &Ticket, now: Moment) -> Option<Verdict> {
        if self.knows_busy(ticket, now) {
            return Some(Verdict::Busy(None));
        }
        match &self.known {
            Known::Nothing => None,
            Known::Busy(until) => Some(Verdict::Busy(*until)),
            Known::Failed(failure) => Some(Verdict::failed(failure.clone())),
        }
    }

    /// Messages came on the channel: how many are not the echo of our own releases.
    pub(crate) fn hear(&mut self, messages: u32) -> u32 {
        let news = self.wakeups.news(messages);
        if news > 0 && matches!(self.known, Known::Busy(_)) {
            self.known = Known::Nothing;
        }
        news
    }

    /// Whether messages of the channel arrive from now on.
    pub(crate) fn listening(&mut self, live: bool) {
        self.wakeups.listening(live);
    }

    /// One more channel is subscribed.
    pub(crate) fn hears_more(&mut self) {
        self.wakeups.hears_more();
    }

    /// A queue that Redis keeps says whether the next wake-up is for this client.
    pub(crate) fn next_is_ours(&mut self, ours: bool) {
        self.wakeups.next_is_ours(ours);
    }

    /// Ends everybody's wait.
    pub(crate) fn close(&mut self, effects: &mut Effects) {
        for ticket in self.queue.take_if(|_| true) {
            self.conclude(&ticket, Verdict::failed(Error::Closed), effects);
        }
        if let Seat::Trying(attempt)
        | Seat::Shared {
            join: Some(attempt),
            ..
        } = &self.seat
        {
            self.conclude(&attempt.ticket, Verdict::failed(Error::Closed), effects);
        }
        self.let_go(effects);
        self.tell_job();
    }

    /// Frees the seat of a hold that is lost, or left to its lease; the next one here may try.
    pub(crate) fn vacate(&mut self, hold: &Arc<Hold>) {
        self.take_join_back(hold);
        match self.seat.vacate(hold) {
            Vacated::NotHere => return,
            Vacated::Free => self.prompt = true,
            Vacated::Next(ticket) => {
                self.queue.remove(ticket.number);
                self.prompt = false;
                // It was told to the next try already.
                self.wakeups.take_released();
            }
        }
        self.known = Known::Nothing;
        self.tell_job();
    }

    /// The attempt of `ticket`, while its command is in flight.
    pub(crate) fn is_trying_for(&self, ticket: &Arc<Ticket>) -> bool {
        self.seat.is_trying_for(ticket)
    }

    fn is_head(&self, ticket: &Ticket) -> bool {
        let head = self.queue.head();
        head.is_some_and(|head| head.number == ticket.number)
    }

    pub(crate) fn is_queued(&self, ticket: &Ticket) -> bool {
        self.queue.contains(ticket.number)
    }

    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The hold in the seat that others wait behind.
    pub(crate) fn watched(&self) -> Option<&Arc<Hold>> {
        self.seat.held().filter(|_| self.has_queue())
    }

    /// Whether somebody who waits is to be woken by messages.
    pub(crate) fn has_listeners(&self) -> bool {
        self.queue.has_listeners()
    }

    /// What is known of others' holds, by which the next try is planned. A look at our own hold is planned without it:
    /// what a refused join was told says nothing of that.
    pub(crate) fn known(&self, now: Moment) -> &Known {
        let looks = self.seat.held().is_some() && !self.is_head_joinable(now);
        if looks { &Known::Nothing } else { &self.known }
    }

    /// The hold, or attempt, in the seat.
    pub(crate) fn occupant(&self) -> Option<&Arc<Hold>> {
        self.seat.occupant()
    }

    /// The attempts and the hold of this client: what is in the seat, and the try sent along with a release.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        let others = self.seat.commands().map(|(hold, _)| hold);
        let occupant = self.occupant();
        let others =
            others.filter(move |hold| occupant.is_none_or(|occupant| !Arc::ptr_eq(hold, occupant)));
        occupant.into_iter().chain(others)
    }

    /// The hold, or attempt, of that hold id.
    pub(crate) fn hold(&self, id: &str) -> Option<&Arc<Hold>> {
        self.holds().find(|hold| &*hold.id == id)
    }

    /// The command of `hold`'s last release, while it is in flight.
    pub(crate) fn release_of(&self, hold: &Arc<Hold>) -> Option<C> {
        match &self.seat {
            Seat::Releasing {
                hold: releasing,
                command,
                ..
            } if Arc::ptr_eq(releasing, hold) => command.clone(),
            _ => None,
        }
    }

    /// The commands in flight.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &C> {
        self.seat.commands().map(|(_, command)| command)
    }

    /// Whether something is under way that must be seen through before the client ends.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.seat.is_in_flight() || self.is_marked()
    }

    /// Whether a task waits that holds the name itself, for long enough, and was not told of before.
    pub(crate) fn waits_for_itself(&self, now: Moment) -> bool {
        let mut tasks = HashSet::new();
        match &self.seat {
            Seat::Shared { joint, .. } => {
                tasks.extend(joint.shares().filter_map(|share| share.task));
            }
            seat => tasks.extend(seat.held().and_then(|hold| hold.task)),
        }
        let mut waiters = self.queue.iter();
        let its_own = |task: &tokio::task::Id| tasks.contains(task);
        waiters
            .any(|ticket| ticket.task.as_ref().is_some_and(its_own) && ticket.told_of_itself(now))
    }

    /// Whether a job has to be started: somebody waits, or an attempt is left that nobody sees through.
    pub(crate) fn start_job(&mut self) -> bool {
        let left = match &self.seat {
            Seat::Trying(attempt)
            | Seat::Shared {
                join: Some(attempt),
                ..
            } => attempt.overdue || !attempt.ticket.is_waiting(),
            _ => false,
        };
        let start = self.job.is_none() && (left || !self.queue.is_empty());
        if start {
            self.job = Some(Arc::default());
        }
        start
    }

    pub(crate) fn job(&self) -> Option<Arc<Job>> {
        self.job.clone()
    }

    /// The job waits, and looks at the gate again at `moment`.
    pub(crate) fn job_looks_at(&mut self, moment: Moment) {
        self.looks_at = moment;
    }

    fn tell_job(&self) {
        if let Some(job) = &self.job {
            job.changed.notify_one();
        }
    }

    pub(crate) fn is_unused(&self) -> bool {
        let at_rest = self.seat.is_free() && self.queue.is_empty();
        at_rest && self.job.is_none() && !self.is_marked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Failure;

    /// Listens, and expects the message of one release of its own.
    fn gate(known: Known) -> Gate<u32> {
        let mut gate = Gate {
            known,
            ..Gate::default()
        };
        gate.wakeups.listening(true);
        gate.wakeups.expect_echo(1);
        gate
    }

    #[test]
    fn a_message_of_somebody_else_ends_what_is_known_of_a_busy_lock() {
        let mut busy = gate(Known::Busy(None));
        assert_eq!(busy.hear(1), 0, "the echo of our own release");
        assert!(matches!(busy.known, Known::Busy(_)));
        assert_eq!(busy.hear(2), 2);
        assert!(matches!(busy.known, Known::Nothing));
    }

    #[test]
    fn a_message_says_nothing_of_what_failed() {
        let mut failed = gate(Known::Failed(Failure::no_reply()));
        assert_eq!(failed.hear(3), 2);
        assert!(matches!(failed.known, Known::Failed(_)));
    }
}
