//! What the answer to an attempt, or to a last release, means at its gate. Whoever sees it first applies it under the
//! gate's lock: its caller, the keeper's job, or the keeper's reaper.

use std::sync::Arc;
use std::time::Duration;

use super::seat::{Attempt, Seat};
use super::ticket::{Patience, Ticket, Verdict};
use crate::backend::{Class, Failure};
use crate::clock::Moment;
use crate::engine::gate::{Gate, LastAnswer};
use crate::engine::hold::state::{HoldState, Left, Level};
use crate::engine::hold::{Effects, Hold};
use crate::error::{Error, LostReason};
use crate::script::Reply;

/// An attempt may meet two broken connections: its caller's lane, and the keeper's.
const LANES: u8 = 2;

#[derive(Debug, Clone)]
pub(crate) enum Answered {
    Got(Grant),
    /// Held by a stranger; how much longer, if its lease ends.
    Busy(Option<Duration>),
    Rejected(Error),
    /// The hold to be joined does not exist.
    Missing,
    /// A later try may do better.
    Failed(Failure),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    /// Just before the command was sent.
    pub(crate) sent_at: Moment,
    /// How long the server had been up, if it was asked.
    pub(crate) server_age: Option<Duration>,
    /// What else Redis said.
    pub(crate) reply: Reply,
}

impl Grant {
    /// How many of the requests that the try was for are granted, the first ones.
    pub(super) fn granted(&self) -> u64 {
        match self.reply {
            Reply::Done(granted)
            | Reply::NextIsBusy(granted, _)
            | Reply::OthersWait(granted, _) => granted,
            _ => 1,
        }
    }
}

#[derive(Debug)]
pub(crate) enum SentAs<'a, C> {
    /// As the command in the seat.
    Seat(&'a C),
    /// By the keeper, at this time; the keeper repeats it.
    Keeper(Moment),
}

#[derive(Debug, Clone)]
pub(crate) enum ReleaseAnswer {
    /// How many clients heard it, if it was published.
    Ended {
        heard_by: Option<u32>,
    },
    Missing,
    Rejected(Error),
    /// A later try may do better.
    Failed(Failure),
}

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Held,
    /// Granted, but nobody wants it any more: it is released.
    Unwanted,
    /// Certainly not granted.
    Over,
    /// The outcome is unknown, or the attempt has a place: it is made again under the same hold id.
    Unsettled,
    /// A join was answered: the shared hold exists.
    Joined,
    /// The shared hold is lost.
    Missing,
    /// A join failed, which says nothing about the shared hold.
    NotJoined,
}

/// What became of a level that was given back.
pub(crate) enum GivenBack<C> {
    /// How many levels are left.
    Levels(u32),
    Lost(LostReason),
    /// It was the last one, and its release was sent.
    Sent(C),
    /// It was the last one, and the keeper sends the release.
    LeftToKeeper,
    /// It was the last one, and the next waiter here has the lock, without a command to Redis.
    PassedOn,
    /// The read is over; others go on reading, so there is nothing to send.
    ReadEnded,
    /// The writer's read is over; the hold is to be downgraded for the others.
    Downgrade,
}

impl<C: Clone + PartialEq> Gate<C> {
    /// The seat that `hold` has, if it has one: its own, or the gate's.
    pub(super) fn seat_of(&self, hold: &Hold) -> &Seat<C> {
        self.own_seats.get(&hold.number).unwrap_or(&self.seat)
    }

    pub(super) fn seat_of_mut(&mut self, hold: &Hold) -> &mut Seat<C> {
        let own = self.own_seats.get_mut(&hold.number);
        own.unwrap_or(&mut self.seat)
    }

    pub(super) fn seats(&self) -> impl Iterator<Item = &Seat<C>> {
        std::iter::once(&self.seat).chain(self.own_seats.values())
    }

    /// Applies the answer to the attempt that `command` is of. `None` if somebody else did.
    pub(crate) fn answered(
        &mut self,
        command: &C,
        answer: Answered,
        effects: &mut Effects,
    ) -> Option<(Arc<Hold>, Settled)> {
        let mut attempt = self.seat.answered(command)?;
        let beside = std::mem::take(&mut attempt.beside);
        let counted = attempt.hold.kind.commands.leaves_the_seat();
        let tried = counted.then(|| (attempt.clone(), answer.clone()));
        self.try_at_once = false;
        let hold = Arc::clone(&attempt.hold);
        let held = self.seat.held();
        let is_join = held.is_some_and(|held| Arc::ptr_eq(held, &hold));
        let answered = AnsweredAttempt {
            gate: self,
            attempt,
            is_join,
            effects,
        };
        let settled = answered.settle(answer);
        if let Some((tried, answer)) = tried {
            self.settle_counted(beside, &tried, &answer, effects);
        }
        if !self.queue.is_empty() {
            // The job may have had nothing to do until now.
            self.notify_job();
        }
        Some((hold, settled))
    }

    /// Gives a level of `hold` back. If others are left, the write of their count begins here, under the lock that passing
    /// the hold on takes. With the last one the hold is passed on, or its release is started by `send`, or left to the job,
    /// which sends the next try along with it, or to the keeper.
    pub(crate) fn give_back(
        &mut self,
        hold: &Arc<Hold>,
        level: Level,
        send: Option<impl FnOnce() -> C>,
        effects: &mut Effects,
    ) -> GivenBack<C> {
        let (now, finish_by) = (effects.now, effects.finish_by());
        let left = if hold.shared_hold().is_some() {
            self.leave_read(hold, level, effects)
        } else {
            match effects.change(hold, |state| state.leave(level, now, finish_by)) {
                Left::Levels(count) => Some(GivenBack::Levels(count)),
                Left::Lost(reason) => Some(GivenBack::Lost(reason)),
                Left::Last => None,
            }
        };
        match &left {
            Some(GivenBack::Levels(_)) => effects.change(hold, HoldState::write_begins),
            Some(GivenBack::Downgrade) => effects.change(hold.in_redis(), HoldState::write_begins),
            _ => {}
        }
        left.unwrap_or_else(|| self.begin_release(hold.in_redis(), send, effects))
    }

    /// The last level of `hold` was given back.
    fn begin_release(
        &mut self,
        hold: &Arc<Hold>,
        send: Option<impl FnOnce() -> C>,
        effects: &mut Effects,
    ) -> GivenBack<C> {
        let now = effects.now;
        self.held_at = now;
        let held = self.seat_of(hold).held();
        if !held.is_some_and(|held| Arc::ptr_eq(held, hold)) {
            effects.release(hold);
            return GivenBack::LeftToKeeper;
        }
        let counted = hold.kind.commands.leaves_the_seat();
        // A hold with a seat of its own is not passed on while a try for the head is under way.
        let may_stay = !counted || self.seat.is_free();
        let waits = may_stay && self.job.is_some() && !self.queue.is_empty();
        // Where Redis keeps the queue, Redis decides whose turn it is, so no window is needed.
        let stays = waits && (hold.kind.has_queue() || self.succession.stays(now));
        if stays && self.pass_on(hold, effects) {
            return GivenBack::PassedOn;
        }
        self.notify_job();
        // The release of a hold with a seat of its own delays no try, so nothing is handed over.
        if stays && !counted && self.wakeups.allow_handover() {
            let hold = Arc::clone(hold);
            self.seat = Seat::HandingOver { hold };
            return GivenBack::LeftToKeeper;
        }
        let command = send.map(|send| send());
        self.seat_of_mut(hold)
            .release(hold, command.clone(), None, now);
        if let Some(command) = command {
            self.expect_echo(hold);
            GivenBack::Sent(command)
        } else {
            effects.release(hold);
            GivenBack::LeftToKeeper
        }
    }

    /// The job sent the last release of `hold` as `command`, and with it the try `next` for the head of the queue.
    pub(crate) fn handed_over(
        &mut self,
        hold: &Arc<Hold>,
        command: C,
        next: Option<(Arc<Ticket>, Arc<Hold>, C)>,
        now: Moment,
    ) {
        self.expect_echo(hold);
        let next = next.map(|(ticket, hold, command)| Attempt {
            early: true,
            ..Attempt::new(hold, ticket, command, now)
        });
        self.seat.release(hold, Some(command), next, now);
    }

    /// Applies the answer to a last release of `hold`. Returns whether that was the end. The keeper repeats a release
    /// that failed; if releases fail for too long, those who wait behind it get the error. After the end an answer
    /// changes nothing.
    pub(crate) fn release_answered(
        &mut self,
        hold: &Arc<Hold>,
        sent: &SentAs<'_, C>,
        answer: ReleaseAnswer,
        effects: &mut Effects,
    ) -> bool {
        if hold.has_ended() {
            return !matches!(answer, ReleaseAnswer::Failed(_));
        }
        let (result, heard_by) = match answer {
            ReleaseAnswer::Ended { heard_by } => (Ok(()), heard_by),
            ReleaseAnswer::Missing => {
                let found = effects.change(hold, |state| state.found_nothing());
                (found.map_err(Error::lost), None)
            }
            ReleaseAnswer::Rejected(error) => (Err(error), None),
            ReleaseAnswer::Failed(failure) => {
                self.release_failed(hold, sent, failure, effects);
                return false;
            }
        };
        self.end_release(hold, result, heard_by, effects);
        true
    }

    fn release_failed(
        &mut self,
        hold: &Arc<Hold>,
        sent: &SentAs<'_, C>,
        failure: Failure,
        effects: &mut Effects,
    ) {
        let (command, sent_at) = match *sent {
            SentAs::Seat(command) => {
                let release = self.seat_of(hold).release_of(hold);
                (Some(command), release.map(|of| of.1))
            }
            SentAs::Keeper(sent_at) => (None, Some(sent_at)),
        };
        if let Some(sent_at) = sent_at.filter(|_| failure.is_unanswered()) {
            effects.change(hold, |state| state.release_may_have_run(sent_at));
        }
        self.wakeups.release_answered(hold.number, None);
        let in_seat = self.seat_of_mut(hold).release_failed(hold, command);
        if in_seat && !self.own_seats.contains_key(&hold.number) {
            self.command_failed(failure, sent_at.unwrap_or(effects.now));
            self.give_up(effects);
            self.notify_job();
        }
        effects.release(hold);
    }

    /// The last release of `hold` is answered, or given up: the next one here may try. `heard_by`: how many clients heard
    /// it, if it was published.
    pub(crate) fn end_release(
        &mut self,
        hold: &Arc<Hold>,
        result: Result<(), Error>,
        heard_by: Option<u32>,
        effects: &mut Effects,
    ) {
        let others = self.wakeups.release_answered(hold.number, heard_by);
        // Where Redis keeps the queue, Redis decides whose turn it is, so no gap is needed.
        let alone = self.seat.next().is_none() && !hold.kind.has_queue();
        if alone && self.seat.release_of(hold).is_some() {
            self.succession.released(others, effects.now);
        }
        // A server whose replicas acknowledge nothing takes releases.
        let refused = match &self.last_answer {
            LastAnswer::Failed(failure) if failure.of_grant => Some(failure.clone()),
            _ => None,
        };
        if result.is_ok() && refused.is_none() {
            self.failing_since = None;
        }
        effects.change(hold, |state| state.end(result));
        self.vacate(hold);
        if let Some(failure) = refused {
            // The next try waits as behind any failure.
            self.last_answer = LastAnswer::Failed(failure);
            self.try_at_once = false;
        }
        if effects.change(hold, |state| state.is_tainted() | state.takes_place_back()) {
            // An acquire that was sent for it may run, or have run, after this release.
            effects.release(hold);
        }
    }

    /// A try, or release, that began at `since` failed: nobody knows whether the lock is free.
    fn command_failed(&mut self, failure: Failure, since: Moment) {
        self.failing_since.get_or_insert(since);
        self.last_answer = LastAnswer::Failed(failure);
    }

    pub(super) fn forget_busy(&mut self, now: Moment) -> bool {
        let busy = matches!(self.last_answer, LastAnswer::Busy(_));
        if busy {
            self.last_answer = LastAnswer::Nothing;
            self.held_at = now;
        }
        busy
    }

    /// The lock is busy for the head, and so for all behind it: concludes the tickets in the queue whose wait is over.
    pub(super) fn conclude_late(&mut self, effects: &mut Effects) {
        let now = effects.now;
        loop {
            if !self.recheck_head(now) {
                return;
            }
            let Some(head) = self.head().filter(|head| head.is_over(now)) else {
                break;
            };
            self.queue.remove(head.number);
            self.conclude(&head, Verdict::Busy(None), effects);
        }
        while let Some(ticket) = self.queue.take_late(now) {
            self.conclude(&ticket, Verdict::Busy(None), effects);
        }
    }

    /// Returns whether the last busy answer counts for the head, and so for all behind it. A head that asks for less
    /// tries at once.
    pub(super) fn recheck_head(&mut self, now: Moment) -> bool {
        let wants = |head: &Arc<Ticket>| head.request.kind.commands.wants();
        let less = self
            .queue
            .head()
            .is_some_and(|head| wants(head) < self.busy_for);
        if less && self.forget_busy(now) {
            self.try_at_once = true;
            self.notify_job();
        }
        !less
    }

    /// The last "busy" may be outdated although nobody heard a release, so the head asks again.
    pub(super) fn recheck_busy(&mut self, now: Moment) {
        if self.seat.is_free() && self.forget_busy(now) {
            self.try_at_once = true;
            self.notify_job();
        }
    }

    /// Whether the gate knows that the lock is busy for `ticket` (rule 3 of [`gate`](crate::engine::gate)).
    pub(super) fn knows_busy(&self, ticket: &Ticket, now: Moment) -> bool {
        match &self.seat {
            Seat::Held { hold } if now < hold.valid_until() => true,
            Seat::Shared { shared, .. } if shared.is_valid(now) && !self.may_read(ticket, now) => {
                true
            }
            Seat::Trying(_)
            | Seat::Shared { join: Some(_), .. }
            | Seat::HandingOver { .. }
            | Seat::Releasing { .. } => false,
            _ => match self.last_answer {
                LastAnswer::Busy(until) => {
                    let published = !ticket.request.kind.commands.rules().is_string;
                    let heard = published && self.wakeups.hear_holder();
                    heard && self.queue.has_listeners() && until.is_none_or(|until| now < until)
                }
                LastAnswer::Nothing | LastAnswer::Failed(_) => false,
            },
        }
    }

    /// Gives up for those who would wait for ever, when tries have failed for long enough.
    fn give_up(&mut self, effects: &mut Effects) {
        let (now, rules) = (effects.now, effects.rules);
        let is_long =
            |since: Moment| since.max(rules.runs_since).until(now) >= rules.unavailable_after;
        let LastAnswer::Failed(failure) = &self.last_answer else {
            return;
        };
        if !self.failing_since.is_some_and(is_long) {
            return;
        }
        let error = Error::from(failure.clone());
        let over = self.queue.take_if(|ticket| {
            let request = &ticket.request;
            request.patience == Patience::Forever && is_long(request.since)
        });
        for ticket in over {
            self.conclude(&ticket, Verdict::failed(error.clone()), effects);
        }
    }
}

/// An attempt that left the seat, with all that its answer changes.
pub(super) struct AnsweredAttempt<'a, C> {
    pub(super) gate: &'a mut Gate<C>,
    pub(super) attempt: Attempt<C>,
    /// Whether it is a join of the hold that has the seat.
    pub(super) is_join: bool,
    pub(super) effects: &'a mut Effects,
}

impl<C: Clone + PartialEq> AnsweredAttempt<'_, C> {
    fn settle(mut self, answer: Answered) -> Settled {
        if !matches!(&answer, Answered::Failed(failure) if failure.was_not_sent()) {
            self.attempt.ticket.set_sent();
        }
        match answer {
            Answered::Got(grant) if self.is_join => self.joined(grant),
            Answered::Got(grant) => self.got(grant),
            Answered::Missing if self.is_join => self.missing(),
            // No script that starts a hold answers like this. Such a server would be asked again at once, for ever.
            Answered::Missing => self.rejected(Failure::strange_reply().into()),
            Answered::Busy(ttl) => self.busy(ttl),
            Answered::Rejected(error) => self.rejected(error),
            Answered::Failed(failure) => self.failed(failure),
        }
    }

    pub(super) fn got(&mut self, grant: Grant) -> Settled {
        let Attempt { hold, ticket, .. } = &self.attempt;
        let (now, request) = (self.effects.now, &ticket.request);
        // A reader's try may ask for more than its own lease.
        let term = hold.lease.term(grant.sent_at);
        let own = request.lease.term(grant.sent_at);
        let commands = &request.kind.commands;
        if commands.is_shared() {
            let most = self.effects.rules.watchdog_lease;
            self.effects
                .change(hold, |state| state.assure(most, grant.sent_at));
        }
        if hold.kind.has_queue() {
            let ours = matches!(grant.reply, Reply::NextIsOurs(_));
            self.gate.wakeups.set_next_is_ours(ours);
        }
        ticket.set_unsettled(None);
        self.gate.last_answer = LastAnswer::Nothing;
        if !ticket.is_waiting() {
            return self.unwanted();
        }
        let in_time = self.effects.change(hold, |state| {
            request.limit(state, grant.sent_at);
            now < own.valid_until && state.grant(request.level, term, now)
        });
        if !in_time {
            let settled = self.unwanted();
            let Attempt { ticket, since, .. } = &self.attempt;
            if ticket.request.level == Level::Watchdog {
                // The grants of all callers with the watchdog's lease come too late.
                self.gate.command_failed(Failure::too_late(), *since);
            }
            let verdict = || Verdict::failed(Failure::too_late());
            let late_since = ticket
                .grant_was_late(*since)
                .max(self.effects.rules.runs_since);
            let late_for = late_since.until(now);
            if late_for >= self.effects.rules.unavailable_after {
                // Its lease is shorter than the way to the server. Others must not wait behind it for that long.
                ticket.decide(verdict(), self.effects);
            } else {
                self.requeue(verdict);
            }
            self.gate.give_up(self.effects);
            return settled;
        }
        hold.keep(grant.reply.token(), grant.server_age);
        self.gate.failing_since = None;
        if commands.leaves_the_seat() && !matches!(grant.reply, Reply::NextIsBusy(..)) {
            // A request of another client may have waited longer, so nothing is passed on.
            self.gate.succession.leave();
        } else if !self.attempt.early {
            self.gate.succession.got(now);
        }
        if commands.has_reads() {
            self.gate.grant_reads(hold, ticket, grant, self.effects);
            return Settled::Held;
        }
        if commands.leaves_the_seat() {
            self.gate.give_own_seat(hold);
            // The grant removed the note.
            self.gate.writer_waits = None;
            self.gate.deliver(ticket, Arc::clone(hold), self.effects);
            // There may be more.
            self.gate.try_at_once = true;
            return Settled::Held;
        }
        let held = Arc::clone(hold);
        self.gate.seat = Seat::Held { hold: held };
        self.gate
            .owner_holds(request.owner.as_ref(), hold, self.effects);
        self.gate.conclude_late(self.effects);
        self.gate.deliver(ticket, Arc::clone(hold), self.effects);
        Settled::Held
    }

    /// Redis granted a join: its ticket, and readers that wait, get reads of the hold in the seat.
    fn joined(&mut self, grant: Grant) -> Settled {
        self.gate.last_answer = LastAnswer::Nothing;
        self.gate.failing_since = None;
        let ticket = &self.attempt.ticket;
        self.gate.join_granted(ticket, grant, self.effects);
        Settled::Joined
    }

    /// Redis does not have the hold that was to be joined, so its ticket tries for a new one.
    fn missing(&mut self) -> Settled {
        let ticket = &self.attempt.ticket;
        if ticket.is_waiting() {
            // A single try, too: this answer says nothing about the lock.
            self.gate.queue.insert(Arc::clone(ticket));
        }
        self.gate.try_at_once = true;
        Settled::Missing
    }

    /// The keeper releases the hold, which keeps the seat until that is answered.
    pub(super) fn unwanted(&mut self) -> Settled {
        let hold = &self.attempt.hold;
        self.effects.change(hold, HoldState::give_up);
        if hold.kind.commands.leaves_the_seat() {
            // The next one need not wait for it.
            self.gate.try_at_once = true;
            self.gate.give_own_seat(hold);
        }
        let seat = self.gate.seat_of_mut(hold);
        seat.release(hold, None, None, self.effects.now);
        self.effects.release(hold);
        Settled::Unwanted
    }

    fn busy(&mut self, ttl: Option<Duration>) -> Settled {
        if self.is_join {
            self.gate.join_refused();
        }
        self.gate.failing_since = None;
        self.attempt.ticket.was_busy();
        let until = ttl.map(|ttl| self.attempt.since + ttl);
        self.gate.last_answer = LastAnswer::Busy(until);
        self.gate.busy_for = self.attempt.ticket.request.kind.commands.wants();
        self.gate.wakeups.answered_busy();
        self.requeue(|| Verdict::Busy(until));
        // A lease that has ended since the try was sent does not decide for tickets that came meanwhile.
        if !self.attempt.early && until.is_none_or(|until| self.effects.now < until) {
            self.gate.conclude_late(self.effects);
        }
        self.gate.recheck_head(self.effects.now);
        if self.attempt.early {
            // The hold before it may have been the busy one.
            self.gate.forget_busy(self.effects.now);
            self.gate.try_at_once = true;
        } else {
            self.gate.succession.forget_gap();
        }
        self.not_got()
    }

    fn rejected(&mut self, error: Error) -> Settled {
        self.gate.last_answer = LastAnswer::Nothing;
        self.gate.try_at_once = true;
        let ticket = &self.attempt.ticket;
        ticket.decide(Verdict::failed(error), self.effects);
        self.not_got()
    }

    fn failed(&mut self, failure: Failure) -> Settled {
        if failure.of_grant {
            return self.grant_failed(failure);
        }
        let Attempt { hold, ticket, .. } = &self.attempt;
        // A join starts nothing that would have to be undone.
        if !self.is_join {
            if failure.is_unanswered() {
                self.effects.change(hold, HoldState::taint);
            }
            if hold.is_tainted() {
                ticket.set_unsettled(Some(hold));
            }
        }
        let connection_broke = failure.is_of_connection() && ticket.connection_broke() < LANES;
        let (since, rules, now) = (self.attempt.since, self.effects.rules, self.effects.now);
        let known = self.attempt.overdue.then(|| {
            let since = since.max(rules.runs_since);
            let limit = rules.command_timeout;
            self.gate.verdict_without_answer(ticket, since, limit, now)
        });
        let over = known.flatten();
        let over = over.unwrap_or_else(|| Verdict::failed(failure.clone()));
        if !ticket.is_waiting() && failure.class == Class::Unreached {
            // Its caller took it back before it was sent. That says nothing about the server, and the next one has not been
            // tried for.
            self.gate.try_at_once = true;
        } else {
            self.gate.command_failed(failure, since);
        }
        let once = ticket.request.patience == Patience::Once;
        if connection_broke && once && self.is_early() && ticket.is_waiting() {
            // Only the first command on an idle connection finds out that it was cut, on each lane.
            self.gate.queue.insert(Arc::clone(ticket));
            self.gate.try_at_once = true;
        } else {
            self.requeue(|| over);
        }
        self.gate.give_up(self.effects);
        self.not_got()
    }

    /// It was granted, but it does not count: too few replicas have it. Its ticket tries for another hold once this one is
    /// released; if its wait is over, its caller waits for the release.
    fn grant_failed(&mut self, failure: Failure) -> Settled {
        let Attempt { hold, ticket, .. } = &self.attempt;
        self.effects.change(hold, HoldState::give_up);
        // In the gate's own seat, also one that counts: the next try would find what this one got.
        self.gate.seat.release(hold, None, None, self.effects.now);
        self.effects.release(hold);
        ticket.set_unsettled(None);
        ticket.set_refused(hold);
        self.gate
            .command_failed(failure.clone(), self.attempt.since);
        if failure.is_transient() {
            self.requeue(|| Verdict::failed(failure));
        } else {
            ticket.decide(Verdict::failed(failure), self.effects);
        }
        self.gate.give_up(self.effects);
        Settled::Unwanted
    }

    /// Whether there is time for one more try within a command time-out.
    fn is_early(&self) -> bool {
        self.attempt.ticket.request.since + self.effects.rules.command_timeout / 2
            > self.effects.now
    }

    /// Puts the ticket back into the queue, or ends its wait.
    fn requeue(&mut self, verdict: impl FnOnce() -> Verdict) {
        let ticket = &self.attempt.ticket;
        if ticket.is_over(self.effects.now) {
            ticket.decide(verdict(), self.effects);
        } else if ticket.is_waiting() {
            self.gate.queue.insert(Arc::clone(ticket));
        }
    }

    pub(super) fn not_got(&mut self) -> Settled {
        let Attempt { hold, ticket, .. } = &self.attempt;
        let unsettled = ticket.unsettled();
        let has_place = unsettled.is_some_and(|kept| Arc::ptr_eq(&kept, hold));
        let unsettled = hold.is_tainted() || has_place;
        if !self.gate.queue.contains(ticket.number) {
            self.gate.abandon(ticket, self.effects);
        }
        if self.is_join {
            Settled::NotJoined
        } else if unsettled {
            Settled::Unsettled
        } else {
            Settled::Over
        }
    }
}
