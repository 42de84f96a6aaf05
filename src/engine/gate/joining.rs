//! Who may share the hold in a gate's seat, and who waits to have the lock alone.
//!
//! 1. A share is had without asking while the joint hold's lease covers what it needs, and Redis said a moment ago
//!    that nobody waits to have the lock alone. Otherwise one asks, for all who come meanwhile.
//! 2. Nobody passes one of this client who waits to have the lock alone.
//! 3. Redis is told of those who wait to have the lock alone (a *mark*), and when none does any more.
//! 4. A mark is heeded for the watchdog's lease, and not for a third of it after that, over and over: there may be clients
//!    that do not heed it, and those that do must not wait for ever; a writer that comes later is heeded, too.

use std::sync::Arc;
use std::time::Duration;

use super::seat::Seat;
use super::ticket::{Ticket, Verdict};
use crate::clock::Moment;
use crate::engine::gate::{Gate, Mark, Rules};
use crate::engine::hold::Hold;
use crate::engine::hold::effects::Effects;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::state::RenewalPlan;
use crate::lease::Term;

impl<C: Clone + PartialEq> Gate<C> {
    /// By 2: whether `ticket` could have a share of the hold in the seat, if Redis has nothing against it.
    pub(super) fn is_joinable(&self, ticket: &Ticket, now: Moment) -> bool {
        let Seat::Shared { joint, .. } = &self.seat else {
            return false;
        };
        let shares = ticket.request.kind.commands.is_shared() && !joint.exclusive;
        let alone = self.queue.first_alone();
        shares && joint.is_valid(now) && alone.is_none_or(|first| first.number > ticket.number)
    }

    /// By 1.
    pub(super) fn enter_unasked(
        &mut self,
        ticket: &Arc<Ticket>,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        if !self.is_joinable(ticket, now) {
            return None;
        }
        let Seat::Shared { joint, .. } = &self.seat else {
            return None;
        };
        let term = ticket.request.lease.term(now);
        let open = joint.is_open(now) && self.covers(ticket, term, now, rules);
        // What its owner has it would have been sent to enter: this is its first.
        open.then(|| self.share(ticket, term, now, effects))?
    }

    fn covers(&self, ticket: &Ticket, term: Term, now: Moment, rules: Rules) -> bool {
        let level = ticket.request.level;
        let held = self.seat.held();
        held.is_some_and(|hold| hold.with(|state| state.covers(level, term, rules.plan, now)))
    }

    /// Delivers a share to `ticket`, which waits. While a job runs it sees to it that it is collected.
    pub(super) fn deliver(
        &mut self,
        ticket: &Arc<Ticket>,
        share: Arc<Hold>,
        now: Moment,
        effects: &mut Effects,
    ) {
        if let Seat::Shared { joint, .. } = &mut self.seat
            && self.job.is_some()
        {
            joint.await_collection(ticket, now);
        }
        ticket.decide(Verdict::Granted(share), effects);
    }

    /// The lock was granted to one who shares it, by a command that was sent at `sent_at`: so it is to all who wait,
    /// up to the first who wants it alone and goes on waiting. Each lease counts from then, or from when its reader came if
    /// that was later. A reader whose lease would end after what was granted asks for itself.
    pub(super) fn let_in(
        &mut self,
        sent_at: Moment,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) {
        self.tell_shut_out(now, effects);
        let mut last = 0;
        while let Some(ticket) = self.queue.next_sharing(last).cloned() {
            last = ticket.number;
            if !self.is_joinable(&ticket, now) {
                return;
            }
            let term = ticket.request.lease.term(sent_at.max(ticket.request.since));
            if !self.covers(&ticket, term, now, rules) {
                self.prompt = true;
                continue;
            }
            self.queue.remove(ticket.number);
            let Some(share) = self.share(&ticket, term, now, effects) else {
                self.queue.insert(ticket);
                return;
            };
            self.deliver(&ticket, share, now, effects);
        }
    }

    /// Answers those whose wait is over and who may not share the hold in the seat. The others ask for themselves.
    fn tell_shut_out(&mut self, now: Moment, effects: &mut Effects) {
        let mut may_ask = Vec::new();
        while let Some(ticket) = self.queue.take_over(now) {
            if self.is_joinable(&ticket, now) {
                may_ask.push(ticket);
            } else {
                self.conclude(&ticket, Verdict::Busy(None), effects);
            }
        }
        for ticket in may_ask {
            self.prompt = true;
            self.queue.insert(ticket);
        }
    }

    /// Answers those in the queue whose wait is over: a hold of this client, or a busy answer, decides them.
    pub(super) fn tell_busy(&mut self, now: Moment, effects: &mut Effects) {
        while let Some(ticket) = self.queue.take_over(now) {
            self.conclude(&ticket, Verdict::Busy(None), effects);
        }
    }

    /// The hold of a join that is under way is over: who asked waits with the others.
    pub(super) fn take_join_back(&mut self, hold: &Arc<Hold>) {
        if let Seat::Shared { joint, join } = &mut self.seat
            && Arc::ptr_eq(&joint.hold, hold)
            && let Some(join) = join.take()
            && join.ticket.is_waiting()
        {
            self.queue.insert(join.ticket);
        }
    }

    /// `hold` was granted to `ticket`, by a command whose answer is worth `term`: it has the seat, and its first share
    /// is the ticket's. Others who may have one get it, too. `open`: nobody waits to have the lock alone.
    #[expect(clippy::too_many_arguments, reason = "all that an answer says")]
    pub(super) fn grant_shares(
        &mut self,
        hold: &Arc<Hold>,
        ticket: &Arc<Ticket>,
        term: Term,
        open: bool,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) {
        let share = self.first_share(hold, ticket, term, effects);
        if let Some(joint) = self.seat.joint(hold) {
            joint.opened(term.sent_at, open);
        }
        if ticket.request.kind.commands.wants_it_alone() {
            // The grant took the mark away.
            self.marked = None;
        }
        self.deliver(ticket, share, now, effects);
        self.let_in(term.sent_at, now, rules, effects);
    }

    /// The join of `ticket` was granted, by a command whose answer is worth `term`.
    pub(super) fn join_granted(
        &mut self,
        ticket: &Arc<Ticket>,
        term: Term,
        open: bool,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) {
        if let Seat::Shared { joint, .. } = &mut self.seat {
            effects.change(&joint.hold, |state| state.prolong(term, now));
            joint.opened(term.sent_at, open);
        }
        let asks = ticket.is_waiting() && self.is_joinable(ticket, now);
        let share = asks.then(|| self.share(ticket, term, now, effects));
        match share.flatten() {
            Some(share) => self.deliver(ticket, share, now, effects),
            // The answer came too late, or nobody wants it.
            None if ticket.is_waiting() => self.queue.insert(Arc::clone(ticket)),
            None => {}
        }
        self.let_in(term.sent_at, now, rules, effects);
    }

    /// A join was refused: somebody elsewhere waits to have the lock alone, so from now on others ask, too.
    pub(super) fn join_refused(&mut self) {
        if let Seat::Shared { joint, .. } = &mut self.seat {
            joint.opened(Moment::default(), false);
        }
    }

    /// Who waits here to have the lock alone.
    pub(crate) fn first_alone(&self) -> Option<&Arc<Ticket>> {
        self.queue.first_alone()
    }

    /// For how much longer others are to heed that somebody here waits to have the lock alone, as a lock of `kind`. By
    /// 4 that ends, and begins anew, whoever waits.
    pub(crate) fn heeded_for(&mut self, kind: &Kind, now: Moment, plan: RenewalPlan) -> Duration {
        let heeded = plan.lease.duration();
        let again = heeded + plan.period();
        let mark = self.marked.take();
        let mark = mark.filter(|mark| !mark.leaves && now < mark.since + again);
        let mark = mark.unwrap_or_else(|| Mark {
            since: now,
            kind: kind.clone(),
            leaves: false,
        });
        now.until(self.marked.insert(mark).since + heeded)
    }

    /// Nobody waits here any more to have the lock alone, and Redis is to be told, once: of this mark, which was first
    /// left then.
    pub(crate) fn take_mark_away(&mut self) -> Option<(Kind, Moment)> {
        let trying = match &self.seat {
            Seat::Trying(attempt) => attempt.ticket.request.kind.commands.wants_it_alone(),
            Seat::Releasing {
                next: Some(next), ..
            } => next.ticket.request.kind.commands.wants_it_alone(),
            _ => false,
        };
        if trying || self.queue.first_alone().is_some() {
            return None;
        }
        let mark = self.marked.as_mut().filter(|mark| !mark.leaves)?;
        mark.leaves = true;
        Some((mark.kind.clone(), mark.since))
    }

    /// Redis was told that the mark is gone that was first left at `since`, or forgets it by itself.
    pub(crate) fn mark_is_away(&mut self, since: Moment) {
        self.marked
            .take_if(|mark| mark.leaves && mark.since == since);
    }

    pub(super) fn is_marked(&self) -> bool {
        self.marked.is_some()
    }
}
