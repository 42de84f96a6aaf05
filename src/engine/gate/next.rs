//! What the keeper's job for a name does next.
//!
//! 1. Every step but the last changes the gate or waits for something. The step that finds nothing to do ends the job,
//!    under the same lock.
//! 2. Whoever waits can rely on a job: it ends only when there is no queue, no attempt, no uncollected grant, and no
//!    release that somebody's next try depends on.
//! 3. A caller may not be polled when its turn comes, and so may those behind it. If a grant is not collected within
//!    [`CALL_AFTER`], the first waiters behind it are *called*: they are woken, and the first of them that is polled takes
//!    the lock over. If none is polled, the lock is given up for other clients. Those that did not come are passed over:
//!    they start again, at their place in the queue, once they are polled. So unpolled callers delay others by 100 ms,
//!    [`MOST_CALLED`] of them together: to wake a longer queue at each late grant would cost a busy process too much.
//! 4. While a writer of this client waits, or a request for permits, Redis has a note that it does. The step after the last
//!    one left removes it.

use std::sync::Arc;
use std::time::Duration;

use super::seat::Seat;
use super::ticket::{CALL_AFTER, Patience, Ticket, Uncollected, Verdict};
use crate::backend::Failure;
use crate::clock::Moment;
use crate::engine::gate::{Gate, LastAnswer, WriterWaits};
use crate::engine::hold::kind::Kind;
use crate::engine::hold::{Effects, Hold, Rules};
use crate::lease::LeaseMs;

const MOST_CALLED: usize = 256;

pub(crate) enum Step<C> {
    /// Complete the attempt at the hold, whose command was started at that time.
    FinishAttempt(Arc<Hold>, C, Moment),
    /// Complete the last release of the hold, whose command was started at that time.
    FinishRelease(Arc<Hold>, C, Moment),
    /// The keeper repeats the release in the seat: wait for a change.
    AwaitRelease,
    /// Send the last release, and right behind it the try for the head of the queue.
    HandOver { hold: Arc<Hold> },
    /// Watch over our own hold: others wait behind it, or its grant is to be collected by `collect_by`.
    Watch { collect_by: Option<Moment> },
    /// Get the lock for the head of the queue.
    Serve {
        head: Arc<Ticket>,
        at_once: bool,
        /// By when the uncollected read that is due first is to be collected.
        collect_by: Option<Moment>,
    },
    /// The lock is left to others until then.
    LeaveFree(Moment),
    /// Nothing to do; listen a while longer.
    Linger,
    /// The job has ended.
    Over,
}

impl<C: Clone + PartialEq> Gate<C> {
    /// What the job has to do next. A job that still listens to the channel does not end yet.
    pub(crate) fn step(&mut self, listening: bool, effects: &mut Effects) -> Step<C> {
        let (now, rules) = (effects.now, effects.rules);
        self.job_sleeps_until = Moment::NEVER;
        if let Some(step) = self.under_way(now, rules) {
            return step;
        }
        let serves = match &self.seat {
            Seat::Free => true,
            Seat::Shared { .. } => self.head_may_read(now),
            _ => false,
        };
        if serves && let Some(step) = self.next_in_line(effects) {
            return step;
        }
        if listening {
            return Step::Linger;
        }
        self.job = None;
        self.succession.forget_gap();
        self.wakeups.set_listening(false);
        Step::Over
    }

    /// What is to be done for what has the seat, if anything.
    fn under_way(&mut self, now: Moment, rules: Rules) -> Option<Step<C>> {
        if let Some(attempt) = self.seat.attempt() {
            let (hold, command) = (Arc::clone(&attempt.hold), attempt.command.clone());
            return Some(Step::FinishAttempt(hold, command, attempt.since));
        }
        let others = !self.queue.is_empty();
        match &self.seat {
            // Grants of holds with a seat of their own may have to be collected.
            Seat::Free if !others => {
                let collect_by = self.collect_by(rules)?;
                let collect_by = Some(collect_by);
                Some(Step::Watch { collect_by })
            }
            Seat::Free | Seat::Trying(_) => None,
            Seat::HandingOver { hold } => Some(Step::HandOver {
                hold: Arc::clone(hold),
            }),
            Seat::Releasing {
                hold,
                command: Some(command),
                since,
                ..
            } => Some(Step::FinishRelease(
                Arc::clone(hold),
                command.clone(),
                *since,
            )),
            Seat::Releasing { next, .. } => {
                (others || next.is_some()).then_some(Step::AwaitRelease)
            }
            Seat::Shared { .. } if self.head_may_read(now) => None,
            Seat::Shared { .. } | Seat::Held { .. } => {
                let collect_by = self.collect_by(rules);
                (others || collect_by.is_some()).then_some(Step::Watch { collect_by })
            }
        }
    }

    /// When the job looks at the uncollected grant that is due first: to call those behind it, or to take it back.
    fn collect_by(&mut self, rules: Rules) -> Option<Moment> {
        // When several have reads of a hold, giving one back frees nothing for others.
        let several = matches!(&self.seat, Seat::Shared { shared, .. } if !shared.has_one_read());
        let calls = !self.queue.is_empty() && !several;
        let grant = self.uncollected()?;
        let end = grant.kept_until(rules.command_timeout);
        if grant.called || !calls {
            return Some(end);
        }
        Some(end.min(grant.since + CALL_AFTER))
    }

    /// Serves the first who still waits, unless the lock is left to others: the seat is free, or is to be shared.
    fn next_in_line(&mut self, effects: &mut Effects) -> Option<Step<C>> {
        let (now, rules) = (effects.now, effects.rules);
        self.conclude_late_heads(effects);
        if let Some(until) = self.succession.left_until(now) {
            self.try_at_once = true;
            return Some(Step::LeaveFree(until));
        }
        Some(Step::Serve {
            head: self.queue.head().cloned()?,
            at_once: std::mem::take(&mut self.try_at_once),
            collect_by: self.collect_by(rules),
        })
    }

    /// Concludes the first tickets if their wait is over. Their callers would return by themselves, if anybody polled them.
    fn conclude_late_heads(&mut self, effects: &mut Effects) {
        let now = effects.now;
        while let Some(head) = self.queue.head().cloned()
            && matches!(head.request.patience, Patience::Until(end) if now >= end)
            && let Some(verdict) = self.final_verdict(&head, now)
        {
            self.queue.remove(head.number);
            self.conclude(&head, verdict, effects);
            self.try_at_once = true;
            self.recheck_head(now);
        }
    }

    /// `ticket` got its grant, and has not collected it yet.
    pub(super) fn expect_collection(&mut self, ticket: &Arc<Ticket>, effects: &Effects) {
        // Those in front that were collected are dropped.
        self.uncollected();
        let limit = effects.rules.command_timeout;
        let until = |grant: &Uncollected| grant.kept_until(limit);
        let new = Uncollected {
            ticket: Arc::clone(ticket),
            since: effects.now,
            called: false,
        };
        let ahead = |grant: &Uncollected| until(grant) <= until(&new);
        let place = self.uncollected.partition_point(ahead);
        if let Some(first) = self.uncollected.front_mut().filter(|_| place == 0) {
            // Called waiters that are polled meanwhile find only the new grant, so they are called again for this one.
            first.called = false;
        }
        self.uncollected.insert(place, new);
    }

    /// The uncollected grant that is taken back first.
    fn uncollected(&mut self) -> Option<&mut Uncollected> {
        while let Some(grant) = self.uncollected.front()
            && !grant.ticket.is_decided()
        {
            self.uncollected.pop_front();
        }
        self.uncollected.front_mut()
    }

    pub(super) fn take_uncollected(&mut self) -> Option<Arc<Ticket>> {
        self.uncollected.pop_front().map(|grant| grant.ticket)
    }

    /// The lease that a try for `ticket` asks for: the longest of the readers whom its grant lets in, so that none of them
    /// has to ask again.
    pub(crate) fn lease_to_ask(&self, ticket: &Ticket) -> LeaseMs {
        let own = ticket.request.lease;
        if !ticket.request.kind.commands.is_shared() {
            return own;
        }
        let others = self.queue.readers().map(|reader| reader.request.lease);
        others.fold(own, LeaseMs::max)
    }

    /// Puts the attempt that `attempt` makes for the head of the queue into the free seat, or its join beside the shared
    /// hold. Returns false if it is not the head's turn any more.
    pub(crate) fn try_head(
        &mut self,
        head: &Arc<Ticket>,
        now: Moment,
        attempt: impl FnOnce(Option<&Arc<Hold>>) -> (Arc<Hold>, C),
    ) -> bool {
        let joins = self.seat.may_join() && self.may_read(head, now);
        let open = self.seat.is_free() || joins;
        // One that starts again has the same number.
        let starts = open && head.is_waiting() && self.queue.remove(head.number).is_some();
        if starts {
            let (hold, command) = attempt(self.seat.held());
            self.start_attempt(hold, head, command, now);
        } else if open {
            // The head got a hold that was passed on, or left. The next one has the same reason to try.
            self.try_at_once = true;
        }
        starts
    }

    /// Takes back a grant that was not collected in time; its hold is to be given back by one level. Before that it calls
    /// the waiters behind it (3).
    pub(crate) fn take_back(&mut self, effects: &mut Effects) -> Option<(Arc<Hold>, Arc<Ticket>)> {
        let (now, rules) = (effects.now, effects.rules);
        let by = self.collect_by(rules)?;
        let grant = self.uncollected().filter(|_| by <= now)?;
        if now < grant.kept_until(rules.command_timeout) {
            grant.called = true;
            let first = self.queue.iter().take(MOST_CALLED);
            first.for_each(|ticket| ticket.call(effects));
            return None;
        }
        let ticket = self.take_uncollected()?;
        let hold = ticket.revoke()?;
        self.pass_over(u64::MAX, effects);
        Some((hold, ticket))
    }

    /// The caller of `ticket`, which was called, is polled. Returns the grant that it may take over, to be given back by
    /// one level: then `ticket` is next.
    pub(crate) fn present(
        &mut self,
        ticket: &Arc<Ticket>,
        effects: &mut Effects,
    ) -> Option<(Arc<Hold>, Arc<Ticket>)> {
        ticket.is_present();
        if !self.calls() || !self.is_queued(ticket) || !self.may_take_over(ticket) {
            return None;
        }
        let uncollected = self.take_uncollected()?;
        let hold = uncollected.revoke()?;
        self.pass_over(ticket.number, effects);
        Some((hold, uncollected))
    }

    /// Whether the uncollected grant, given back, is enough for `ticket` and for those ahead of it that are polled.
    fn may_take_over(&mut self, ticket: &Ticket) -> bool {
        let reads = ticket.request.kind.commands.is_shared();
        let frees_nothing = matches!(&self.seat, Seat::Shared { shared, .. }
            if !shared.has_one_read() || reads && !shared.is_exclusive());
        let wants = |ticket: &Ticket| ticket.request.kind.commands.wants();
        let is_counted = ticket.request.kind.commands.leaves_the_seat();
        let Some(free) = self.uncollected().map(|grant| wants(&grant.ticket)) else {
            return false;
        };
        let up_to_it = |other: &&Arc<Ticket>| other.number <= ticket.number;
        let mut first = self.queue.iter().take_while(up_to_it);
        !frees_nothing
            && first.all(|other| other.is_called() || !is_counted || wants(other) <= free)
    }

    /// Whether waiters were called, and the first that is polled gets the lock.
    pub(super) fn calls(&mut self) -> bool {
        self.uncollected().is_some_and(|grant| grant.called)
    }

    /// Takes the first waiters out of the queue, up to number `end`, if they were called and have not been polled since. They
    /// start again when they are polled.
    fn pass_over(&mut self, end: u64, effects: &mut Effects) {
        while let Some(head) = self.queue.head().cloned()
            && head.number < end
            && head.is_called()
            && !self.seat.is_trying_for(&head)
        {
            self.queue.remove(head.number);
            self.conclude(&head, Verdict::Again, effects);
        }
    }

    /// The command of the attempt at `hold` that is under way, and its ticket.
    pub(crate) fn attempt_at(&self, hold: &Arc<Hold>) -> Option<(C, Arc<Ticket>)> {
        let tries = self.seat.tries();
        let attempt = tries.filter(|attempt| Arc::ptr_eq(&attempt.hold, hold))?;
        Some((attempt.command.clone(), Arc::clone(&attempt.ticket)))
    }

    /// The command of the attempt of `ticket` that is under way.
    pub(crate) fn attempt_of(&self, ticket: &Arc<Ticket>) -> Option<C> {
        let tries = self.seat.tries();
        let attempt = tries.filter(|attempt| Arc::ptr_eq(&attempt.ticket, ticket));
        attempt.map(|attempt| attempt.command.clone())
    }

    /// The result of a ticket whose wait is over: the last error, or busy.
    pub(crate) fn final_verdict(&self, ticket: &Ticket, now: Moment) -> Option<Verdict> {
        if self.knows_busy(ticket, now) {
            return Some(Verdict::Busy(None));
        }
        match &self.last_answer {
            LastAnswer::Nothing => None,
            LastAnswer::Busy(until) => Some(Verdict::Busy(*until)),
            LastAnswer::Failed(failure) => Some(Verdict::failed(failure.clone())),
        }
    }

    /// As [`final_verdict`](Self::final_verdict), for a caller that waits no longer. If somebody was known to have the lock
    /// less than a command time-out ago, it was busy.
    pub(crate) fn verdict_at_end(
        &self,
        ticket: &Ticket,
        command_timeout: Duration,
        now: Moment,
    ) -> Option<Verdict> {
        let was_held = now < self.held_at + command_timeout;
        let known = self.final_verdict(ticket, now);
        known.or_else(|| was_held.then_some(Verdict::Busy(None)))
    }

    /// As [`verdict_at_end`](Self::verdict_at_end), for a ticket whose try began at `since` and has no answer: none if that
    /// silence is the result. One shorter than a command time-out says less than the answer before it. Of several that a
    /// try is for, those behind the head have that answer, too.
    pub(crate) fn verdict_without_answer(
        &self,
        ticket: &Ticket,
        since: Moment,
        command_timeout: Duration,
        now: Moment,
    ) -> Option<Verdict> {
        let is_known = now < since + command_timeout || self.is_queued(ticket);
        let known = is_known.then(|| self.verdict_at_end(ticket, command_timeout, now));
        known.flatten()
    }

    /// The wait of `ticket` is over, and the command for it that was submitted at `since` has no answer. The try goes on:
    /// to end it would leave its outcome unknown.
    pub(crate) fn end_wait(&mut self, ticket: &Arc<Ticket>, since: Moment, effects: &mut Effects) {
        let (now, limit) = (effects.now, effects.rules.command_timeout);
        if self.seat.is_trying_for(ticket) {
            let known = self.verdict_without_answer(ticket, since, limit, now);
            let silent = || Verdict::failed(Failure::slow_reply(limit));
            ticket.decide(known.unwrap_or_else(silent), effects);
        }
    }

    /// `hold`'s command was not answered in time. Returns the command, to be ended. A job completes an attempt (2); the
    /// keeper completes a release, and awaits what was sent first.
    pub(crate) fn overdue(&mut self, hold: &Arc<Hold>, effects: &mut Effects) -> Option<C> {
        let mut commands = self.seat_of(hold).commands();
        let command = commands.find_map(|(of, command)| Arc::ptr_eq(of, hold).then_some(command));
        let command = command.cloned();
        drop(commands);
        match self.seat_of_mut(hold) {
            Seat::Trying(attempt) if Arc::ptr_eq(&attempt.hold, hold) => {
                attempt.overdue = true;
                self.notify_job();
            }
            Seat::Releasing { hold: over, .. } if Arc::ptr_eq(over, hold) => {
                effects.release(hold);
            }
            _ => {}
        }
        command
    }
}

/// The note in Redis that a writer, or a request for permits, waits.
impl<C: Clone + PartialEq> Gate<C> {
    pub(crate) fn first_writer(&self) -> Option<&Arc<Ticket>> {
        self.queue.first_writer()
    }

    /// A note is being left that a writer of `kind` waits here.
    pub(crate) fn note_writer_waits(&mut self, kind: &Kind, now: Moment) {
        let note = self.writer_waits.take().filter(|note| !note.withdrawn);
        self.writer_waits = note.or_else(|| {
            Some(Box::new(WriterWaits {
                since: now,
                kind: kind.clone(),
                withdrawn: false,
            }))
        });
    }

    /// Returns the note if no writer waits here any more, once, so that it is removed from Redis: the kind, and since
    /// when the note is there.
    pub(crate) fn withdraw_writer_waits(&mut self) -> Option<(Kind, Moment)> {
        self.writer_waits.as_ref()?;
        // Only readers send joins.
        let trying = self.seat.tries();
        let writes =
            trying.is_some_and(|attempt| attempt.ticket.request.kind.commands.leaves_notes());
        if writes || self.queue.first_writer().is_some() {
            return None;
        }
        let note = self.writer_waits.as_mut().filter(|note| !note.withdrawn)?;
        note.withdrawn = true;
        Some((note.kind.clone(), note.since))
    }

    /// Whether Redis may have a note that is needed.
    pub(crate) fn needs_note(&self) -> bool {
        let note = self.writer_waits.as_ref();
        note.is_some_and(|note| !note.withdrawn)
    }

    /// The note that was first left at `since` is removed from Redis, or ends by itself.
    pub(crate) fn writer_waits_withdrawn(&mut self, since: Moment) {
        self.writer_waits
            .take_if(|note| note.withdrawn && note.since == since);
    }
}

#[cfg(test)]
#[path = "next_tests.rs"]
mod tests;
