//! The gate of a counted lock: what an answer says of requests that ask for different numbers of permits.
//!
//! 1. Requests are served in the order of the calls, whatever they ask for. So if the lock is busy for the head of the queue,
//!    it is for all behind it.
//! 2. A busy answer counts for requests of as much or more. When the head asks for less, it tries at once.
//! 3. A try is for the head and those right behind it that ask for the same, because several may be granted at once. Redis
//!    grants the first of them, as many as fit. They stay in the queue meanwhile.
//! 4. A grant says whether the next request finds the lock busy. If so, requests that come while the job listens wait
//!    without a try. And a hold that is given back is passed on to the head if the head asks for as much, no try is
//!    under way, and no request of another client waited at the time of the grant.
//!
//! Other locks pass none of this: each of their requests asks for one, and the only seat is that of the gate.

use std::sync::Arc;

use super::answers::{Answered, AnsweredAttempt, Grant, Settled};
use super::seat::{Attempt, Seat};
use super::ticket::{Patience, Ticket};
use crate::backend::Failure;
use crate::clock::Moment;
use crate::engine::gate::{Gate, LastAnswer};
use crate::engine::hold::state::HoldState;
use crate::engine::hold::{Effects, Hold};
use crate::script::Reply;

/// The most requests of one try.
const MOST_TOGETHER: u32 = 64;
/// The most permits that one command asks for.
const MOST_PERMITS: u32 = 1_024;

impl<C: Clone + PartialEq> Gate<C> {
    /// The tickets behind `head` that a try for it asks for, too, if it is first: some more than were granted lately.
    pub(crate) fn beside(&self, head: &Ticket) -> Vec<Arc<Ticket>> {
        if !self.is_head(head) {
            return Vec::new();
        }
        let wants = head.request.kind.commands.wants();
        let most = self.together.min(MOST_PERMITS / wants).saturating_sub(1);
        let alike = |ticket: &&Arc<Ticket>| {
            let request = &ticket.request;
            request.kind.commands.wants() == wants && request.lease == head.request.lease
        };
        let behind = self.queue.iter().skip(1).take(most as usize);
        behind.take_while(alike).cloned().collect()
    }

    /// Records the tickets that the try in the seat asks for beside the head.
    pub(crate) fn tries_beside(&mut self, beside: Vec<(Arc<Ticket>, Arc<Hold>)>) {
        if let Seat::Trying(attempt) = &mut self.seat {
            attempt.beside = beside;
        }
    }

    /// Applies the answer to a try to the tickets beside the head, and what it says of the next request.
    pub(super) fn settle_counted(
        &mut self,
        beside: Vec<(Arc<Ticket>, Arc<Hold>)>,
        tried: &Attempt<C>,
        answer: &Answered,
        effects: &mut Effects,
    ) {
        let now = effects.now;
        let asked = 1 + beside.len() as u64;
        let wants = tried.ticket.request.kind.commands.wants();
        let granted = match answer {
            Answered::Got(grant) => grant.granted().clamp(1, asked),
            _ => 0,
        };
        for ((ticket, hold), place) in beside.into_iter().zip(1..) {
            let mut answered = AnsweredAttempt {
                gate: &mut *self,
                attempt: Attempt {
                    hold,
                    ticket,
                    ..tried.clone()
                },
                is_join: false,
                effects: &mut *effects,
            };
            match answer {
                Answered::Got(grant) if place < granted => answered.got_beside(*grant),
                answer => answered.not_got_beside(answer),
            }
        }
        if matches!(answer, Answered::Failed(_)) && asked > 1 {
            // Each ticket has to be asked for again.
            self.together = 2;
        } else if granted > 0 {
            let next = if granted < asked {
                granted + 1
            } else {
                (2 * granted).max(self.together.into())
            };
            self.together =
                u32::try_from(next).map_or(MOST_TOGETHER, |next| next.min(MOST_TOGETHER));
        }
        let Answered::Got(Grant {
            reply: Reply::NextIsBusy(_, left) | Reply::OthersWait(_, left),
            ..
        }) = answer
        else {
            return;
        };
        let in_part = granted < asked;
        let once = |head: &Arc<Ticket>| head.request.patience == Patience::Once;
        // A single try that came meanwhile has to be made.
        if tried.early || !in_part && self.queue.head().is_some_and(once) {
            return;
        }
        // An earlier try, whose answer was lost, may have got permits for it.
        if self
            .queue
            .head()
            .is_some_and(|head| head.unsettled().is_some())
        {
            return;
        }
        let until = left.map(|left| tried.since + left);
        self.last_answer = LastAnswer::Busy(until);
        self.try_at_once = false;
        self.wakeups.answered_busy();
        self.busy_for = if in_part { wants } else { 1 };
        if until.is_none_or(|until| now < until) {
            self.conclude_late(effects);
        }
        self.recheck_head(now);
    }

    /// Whether no permit is left for `ticket`, though nobody waits here: the job still listens, and would have heard of one.
    pub(super) fn is_full_for(&self, ticket: &Ticket, now: Moment) -> bool {
        let LastAnswer::Busy(until) = self.last_answer else {
            return false;
        };
        let request = &ticket.request;
        let wants = request.kind.commands.wants();
        let counts = request.patience != Patience::Once && wants >= self.busy_for;
        let listens = self.job.is_some() && self.wakeups.hear_holder();
        counts && listens && until.is_none_or(|until| now < until)
    }

    /// Gives `hold` a seat of its own.
    pub(super) fn give_own_seat(&mut self, hold: &Arc<Hold>) {
        let hold = Arc::clone(hold);
        self.own_seats.insert(hold.number, Seat::Held { hold });
    }
}

impl<C: Clone + PartialEq> AnsweredAttempt<'_, C> {
    /// A ticket beside the head is granted.
    fn got_beside(&mut self, grant: Grant) {
        let Attempt { hold, ticket, .. } = &self.attempt;
        let hold = Arc::clone(hold);
        ticket.set_sent();
        self.gate.queue.remove(ticket.number);
        if self.got(grant) == Settled::Held {
            self.effects.look(&hold);
        }
    }

    /// A ticket beside the head is not granted, or that is unknown. If its caller waits, it is still in the queue.
    fn not_got_beside(&mut self, answer: &Answered) {
        let Attempt { hold, ticket, .. } = &self.attempt;
        let hold = Arc::clone(hold);
        let failure = match answer {
            Answered::Failed(failure) => Some(failure),
            _ => None,
        };
        if !failure.is_some_and(Failure::was_not_sent) {
            ticket.set_sent();
        }
        if failure.is_some_and(Failure::is_unanswered) {
            self.effects.change(&hold, HoldState::taint);
        }
        if hold.is_tainted() && failure.is_none() {
            // An earlier try of it may have got permits, which the tickets ahead of it need.
            ticket.set_unsettled(None);
            self.unwanted();
            return;
        }
        if hold.is_tainted() {
            ticket.set_unsettled(Some(&hold));
        }
        if self.not_got() == Settled::Over {
            self.effects.change(&hold, |state| state.end(Ok(())));
        }
    }
}

#[cfg(test)]
#[path = "counted_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "counted_moments_tests.rs"]
mod moments_tests;
