//! What the outcome of an attempt, or of a last release, means at its gate. Decided once, under the gate's
//! lock, by whoever sees it first: its caller, the keeper's job, or the keeper's reaper.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::known::Known;
use super::seat::Attempt;
use super::shares::Parted;
use super::ticket::{Patience, Verdict};
use crate::backend::Failure;
use crate::clock::Moment;
use crate::engine::gate::{Gate, Rules};
use crate::engine::hold::Hold;
use crate::engine::hold::effects::Effects;
use crate::engine::hold::state::{HoldState, Left, Level};
use crate::error::Error;
use crate::fencing::FencingToken;

/// An attempt is made on the lane of its caller, then on the keeper's.
const LANES: u8 = 2;

/// What an attempt was answered.
#[derive(Debug, Clone)]
pub(crate) enum Answered {
    Got(Grant),
    /// Held by a stranger; how much longer, if its lease ends.
    Busy(Option<Duration>),
    Rejected(Error),
    /// The hold that was to be joined is not there.
    Missing,
    /// A later try may do better.
    Failed(Failure),
}

/// What was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    /// Just before the command was sent.
    pub(crate) sent_at: Moment,
    /// How long the server had been up, if it was asked.
    pub(crate) server_age: Option<Duration>,
    /// The hold's, if the kind has any.
    pub(crate) token: Option<FencingToken>,
    /// Others who share it need not ask.
    pub(crate) open: bool,
}

/// How a last release was sent.
#[derive(Debug)]
pub(crate) enum SentAs<'a, C> {
    /// As the command in the seat.
    Seat(&'a C),
    /// By the keeper, which repeats it, at that time.
    Keeper(Moment),
}

/// What a last release was answered.
#[derive(Debug, Clone)]
pub(crate) enum ReleaseAnswer {
    /// So many clients heard it, when it could be published.
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
    /// Got, and nobody wants it (any more): it is released.
    Unwanted,
    /// Certainly not got.
    Over,
    /// Unknown, or it has a place: to be tried again under the same hold id.
    Unsettled,
    /// A join was answered: the hold is there.
    Joined,
    /// The hold that was to be joined is lost.
    Missing,
    /// A join that came to nothing; of the hold it says nothing.
    NotJoined,
}

/// What became of a level that was given back.
pub(crate) enum GivenBack<C> {
    /// Others are left.
    Levels(u32),
    Lost(crate::error::LostReason),
    /// It was the last one: the release is started.
    Sent(C),
    /// It was the last one: the keeper sends the release.
    Left,
    /// It was the last one: the next one here has the lock, and Redis need not be told.
    PassedOn,
    /// Others share the hold: there is nothing to say to Redis.
    Done,
    /// It was the last one of those who had the hold alone: it is to be turned into a shared one.
    Turn,
}

impl<C: Clone + PartialEq> Gate<C> {
    /// The attempt whose command this is was answered; `None` when somebody else saw it before.
    pub(crate) fn answered(
        &mut self,
        command: &C,
        answer: Answered,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) -> Option<(Arc<Hold>, Settled)> {
        let attempt = self.seat.answered(command)?;
        self.prompt = false;
        let hold = Arc::clone(&attempt.hold);
        let mut scene = Scene {
            gate: self,
            attempt,
            now,
            rules,
            effects,
        };
        let settled = match answer {
            Answered::Got(grant) if scene.is_join() => scene.joined(grant),
            Answered::Got(grant) => scene.got(grant),
            Answered::Missing => scene.missing(),
            Answered::Busy(ttl) => scene.busy(ttl),
            Answered::Rejected(error) => scene.rejected(error),
            Answered::Failed(failure) => scene.failed(failure),
        };
        if !self.queue.is_empty() {
            // It may have had nothing to do until now.
            self.tell_job();
        }
        Some((hold, settled))
    }

    /// Gives a level of `hold` back. With the last one the hold is passed on; or the release is started by `send`, if
    /// there is one, or left to the job, which sends the next try along with it, or to the keeper.
    pub(crate) fn give_back(
        &mut self,
        hold: &Arc<Hold>,
        level: Level,
        now: Moment,
        rules: Rules,
        send: Option<impl FnOnce() -> C>,
        effects: &mut Effects,
    ) -> GivenBack<C> {
        let finish_by = now + rules.command_timeout;
        if hold.shared_hold().is_some() {
            match self.leave_share(hold, level, now, finish_by, effects) {
                Ok(count) => return GivenBack::Levels(count),
                Err(Parted::Lost(reason)) => return GivenBack::Lost(reason),
                Err(Parted::Done) => return GivenBack::Done,
                Err(Parted::Turn) => return GivenBack::Turn,
                Err(Parted::Last) => {}
            }
        } else {
            match effects.change(hold, |state| state.leave(level, now, finish_by)) {
                Left::Levels(count) => return GivenBack::Levels(count),
                Left::Lost(reason) => return GivenBack::Lost(reason),
                Left::Last => {}
            }
        }
        let hold = hold.in_redis();
        if !self.seat.held().is_some_and(|held| Arc::ptr_eq(held, hold)) {
            // Not the seat's any more: what has it now is left alone.
            effects.release(hold);
            return GivenBack::Left;
        }
        if self.pass_on(hold, now, rules, effects) {
            return GivenBack::PassedOn;
        }
        self.tell_job();
        if self.may_hand_over(hold, now) {
            self.seat.hand_over(hold);
            return GivenBack::Left;
        }
        let command = send.map(|send| send());
        self.seat.release(hold, command.clone(), None, now);
        if let Some(command) = command {
            self.expect_echo(hold);
            GivenBack::Sent(command)
        } else {
            effects.release(hold);
            GivenBack::Left
        }
    }

    /// The job sent the release of a hold that is handed over, and `next` along with it.
    pub(crate) fn handed_over(
        &mut self,
        hold: &Arc<Hold>,
        command: C,
        next: Option<Attempt<C>>,
        now: Moment,
    ) {
        self.expect_echo(hold);
        self.seat.release(hold, Some(command), next, now);
    }

    /// A last release of `hold` was answered. Whether that was the end: what failed is repeated by the keeper, and
    /// those who wait behind it hear of it when it goes on for too long. After the end an answer changes nothing.
    pub(crate) fn release_answered(
        &mut self,
        hold: &Arc<Hold>,
        sent: &SentAs<'_, C>,
        answer: ReleaseAnswer,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) -> bool {
        if hold.has_ended() {
            return !matches!(answer, ReleaseAnswer::Failed(_));
        }
        let (result, told) = match answer {
            ReleaseAnswer::Ended { heard_by } => (Ok(()), heard_by),
            ReleaseAnswer::Missing => {
                let found = effects.change(hold, |state| state.found_nothing());
                (found.map_err(Error::lost), None)
            }
            ReleaseAnswer::Rejected(error) => (Err(error), None),
            ReleaseAnswer::Failed(failure) => {
                let (command, sent_at) = match *sent {
                    SentAs::Seat(command) => (Some(command), self.seat.released_since(hold)),
                    SentAs::Keeper(sent_at) => (None, Some(sent_at)),
                };
                if let Some(sent_at) = sent_at.filter(|_| failure.is_unanswered()) {
                    effects.change(hold, |state| state.release_may_have_run(sent_at));
                }
                self.wakeups.release_answered(hold.number, None);
                if self.seat.release_failed(hold, command) {
                    let since = self.failing_since.or(sent_at).unwrap_or(now);
                    self.fails(failure, since);
                    self.give_up(now, rules, effects);
                    self.tell_job();
                }
                effects.release(hold);
                return false;
            }
        };
        self.row.freed(now);
        self.end_release(hold, result, told, effects);
        true
    }

    /// The last release of `hold` is answered, or given up: the name is free for the next one here. `told`: so
    /// many clients, when it was published.
    pub(crate) fn end_release(
        &mut self,
        hold: &Arc<Hold>,
        result: Result<(), Error>,
        told: Option<u32>,
        effects: &mut Effects,
    ) {
        self.wakeups.release_answered(hold.number, told);
        if result.is_ok() {
            self.failing_since = None;
        }
        effects.change(hold, |state| state.end(result));
        self.vacate(hold);
        if effects.change(hold, |state| state.is_tainted() | state.takes_place_back()) {
            // What was sent for it may still run, after this, or ran after it.
            effects.release(hold);
        }
    }

    /// The try, or release, that began at `since` failed: nobody knows whether the lock is free.
    fn fails(&mut self, failure: Failure, since: Moment) {
        self.failing_since.get_or_insert(since);
        self.known = Known::Failed(failure);
    }

    /// Gives up for those who would wait for ever, when tries have failed for long enough.
    pub(super) fn give_up(&mut self, now: Moment, rules: Rules, effects: &mut Effects) {
        let patience = rules.unavailable_after;
        let failing = self
            .failing_since
            .filter(|since| since.until(now) >= patience);
        let (Known::Failed(failure), Some(_)) = (&self.known, failing) else {
            return;
        };
        let error = Error::from(failure.clone());
        let over = self.queue.take_if(|ticket| {
            let request = &ticket.request;
            request.patience == Patience::Forever && request.since.until(now) >= patience
        });
        for ticket in over {
            self.conclude(&ticket, Verdict::failed(error.clone()), effects);
        }
    }
}

/// One outcome at one gate; the seat is free.
struct Scene<'a, C> {
    gate: &'a mut Gate<C>,
    attempt: Attempt<C>,
    now: Moment,
    rules: Rules,
    effects: &'a mut Effects,
}

impl<C: Clone + PartialEq> Scene<'_, C> {
    fn got(&mut self, grant: Grant) -> Settled {
        let Attempt { hold, ticket, .. } = &self.attempt;
        let (now, level) = (self.now, ticket.request.level);
        let term = ticket.request.lease.term(grant.sent_at);
        let commands = &ticket.request.kind.commands;
        if commands.is_shared() {
            let most = self.rules.plan.lease;
            self.effects
                .change(hold, |state| state.assure(most, grant.sent_at));
        }
        ticket.set_unsettled(None);
        self.gate.known = Known::Nothing;
        if !ticket.is_waiting() {
            return self.unwanted();
        }
        if !self
            .effects
            .change(hold, |state| state.grant(level, term, now))
        {
            let since = self.attempt.since;
            self.gate.fails(Failure::too_late(), since);
            let settled = self.unwanted();
            self.requeue(|| Verdict::failed(Failure::too_late()));
            self.gate.give_up(now, self.rules, self.effects);
            return settled;
        }
        hold.keep(grant.token, grant.server_age);
        self.gate.failing_since = None;
        if !self.attempt.early {
            self.gate.row.begin(now);
        }
        if commands.has_reads() {
            let (open, rules) = (grant.open, self.rules);
            self.gate
                .grant_shares(hold, ticket, term, open, now, rules, self.effects);
            return Settled::Held;
        }
        // While a job runs it sees to it that the grant is collected.
        let uncollected = self.gate.job.is_some();
        let uncollected = uncollected.then(|| (Arc::clone(ticket), now));
        self.gate.seat.hold(Arc::clone(hold), uncollected);
        if let Some(owner) = &ticket.request.owner {
            owner.insert(hold);
            self.gate.admit(owner.number, self.effects);
        }
        self.gate.tell_busy(now, self.effects);
        // The ticket waits, and we have its gate's lock: it is delivered.
        ticket.decide(Verdict::Granted(Arc::clone(hold)), self.effects);
        Settled::Held
    }

    /// Whether what was answered is a join of the hold that has the seat.
    fn is_join(&self) -> bool {
        let held = self.gate.seat.held();
        held.is_some_and(|held| Arc::ptr_eq(held, &self.attempt.hold))
    }

    /// The hold in the seat may be shared with the ticket, and with others who wait.
    fn joined(&mut self, grant: Grant) -> Settled {
        let ticket = &self.attempt.ticket;
        let term = ticket.request.lease.term(grant.sent_at);
        self.gate.known = Known::Nothing;
        self.gate.failing_since = None;
        let (open, now, rules) = (grant.open, self.now, self.rules);
        self.gate
            .join_granted(ticket, term, open, now, rules, self.effects);
        Settled::Joined
    }

    /// Redis does not have the hold that was to be joined: whoever wants one starts afresh.
    fn missing(&mut self) -> Settled {
        let ticket = &self.attempt.ticket;
        if ticket.is_waiting() {
            // Also who tries once: it was not told of the lock yet.
            self.gate.queue.insert(Arc::clone(ticket));
        }
        self.gate.prompt = true;
        Settled::Missing
    }

    /// Released by the keeper; the seat is kept until that is answered.
    fn unwanted(&mut self) -> Settled {
        let hold = &self.attempt.hold;
        self.effects.change(hold, HoldState::give_up);
        self.gate.seat.release(hold, None, None, self.now);
        self.effects.release(hold);
        Settled::Unwanted
    }

    fn busy(&mut self, ttl: Option<Duration>) -> Settled {
        if self.is_join() {
            self.gate.join_refused();
        }
        self.gate.failing_since = None;
        let until = ttl.map(|ttl| self.now + ttl);
        self.gate.known = Known::Busy(until);
        self.gate.tell_busy(self.now, self.effects);
        self.requeue(|| Verdict::Busy(until));
        if self.attempt.early {
            // It may have been answered by the hold before.
            self.gate.known = Known::Nothing;
            self.gate.prompt = true;
        }
        self.not_got()
    }

    fn rejected(&mut self, error: Error) -> Settled {
        self.gate.known = Known::Nothing;
        self.gate.prompt = true;
        self.attempt
            .ticket
            .decide(Verdict::failed(error), self.effects);
        self.not_got()
    }

    fn failed(&mut self, failure: Failure) -> Settled {
        let Attempt { hold, ticket, .. } = &self.attempt;
        // A join starts nothing that would have to be undone.
        if failure.is_unanswered() && !self.is_join() {
            self.effects.change(hold, HoldState::taint);
        }
        if hold.is_tainted() && !self.is_join() {
            ticket.set_unsettled(Some(hold));
        }
        // Relaxed: only counted under the gate's lock.
        let breaks = ticket
            .breaks
            .fetch_add(u8::from(failure.is_of_connection()), Ordering::Relaxed);
        let cut = failure.is_of_connection() && breaks < LANES;
        self.gate.fails(failure.clone(), self.attempt.since);
        if cut
            && ticket.request.patience == Patience::Once
            && self.is_early()
            && ticket.is_waiting()
        {
            // An idle connection that was cut says so at the first command, on each lane.
            self.gate.queue.insert(Arc::clone(ticket));
            self.gate.prompt = true;
        } else {
            self.requeue(|| Verdict::failed(failure));
        }
        self.gate.give_up(self.now, self.rules, self.effects);
        self.not_got()
    }

    /// Whether there is time for one more try within a command time-out.
    fn is_early(&self) -> bool {
        self.attempt.ticket.request.since + self.rules.command_timeout / 2 > self.now
    }

    /// Back to the queue, or the end of the wait.
    fn requeue(&mut self, verdict: impl FnOnce() -> Verdict) {
        let ticket = &self.attempt.ticket;
        if ticket.is_over(self.now) {
            ticket.decide(verdict(), self.effects);
        } else if ticket.is_waiting() {
            self.gate.queue.insert(Arc::clone(ticket));
        }
    }

    fn not_got(&mut self) -> Settled {
        let Attempt { hold, ticket, .. } = &self.attempt;
        let has_place = ticket
            .unsettled()
            .is_some_and(|kept| Arc::ptr_eq(&kept, hold));
        let unsettled = hold.is_tainted() || has_place;
        if !self.gate.queue.contains(ticket.number) {
            self.gate.abandon(ticket, self.effects);
        }
        if self.is_join() {
            Settled::NotJoined
        } else if unsettled {
            Settled::Unsettled
        } else {
            Settled::Over
        }
    }
}
