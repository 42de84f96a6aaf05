//! What may happen next.

use super::*;
use crate::engine::gate::ticket::Uncollected;

impl World {
    /// Everything that may happen next.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (i, caller) in self.callers.iter().enumerate() {
            choices.extend(self.choices_of(i, caller));
        }
        if self.closes && !self.closed && self.callers.iter().all(|c| matches!(c.at, At::Gone)) {
            choices.push(Choice::Close);
        }
        if self.is_over() {
            return Vec::new();
        }
        if self.job && self.job_is_able() {
            choices.push(Choice::Job);
        }
        let head = self.gate.queue.head();
        let joinable = head.is_some_and(|head| self.gate.may_read(head, self.now));
        let serves = self.gate.seat.is_free() || joinable;
        let wakes = self.polls > 0 || self.places.woken;
        let polls = wakes && self.asleep == Asleep::Poll && serves;
        if self.job && (polls || self.asleep == Asleep::Linger) {
            choices.push(Choice::JobPoll);
        }
        choices.extend(self.choices_of_grants());
        choices.extend(self.choices_of_pass_on());
        for (i, (hold, reaping)) in self.reaps.iter().enumerate() {
            match reaping {
                Reaping::Begun => choices.push(Choice::Reap(i)),
                Reaping::Again if self.has_no_ghost(hold) => choices.push(Choice::Reap(i)),
                Reaping::Sent(_, command, ..)
                    if self.reply_of(*command) != ReplyState::InFlight =>
                {
                    choices.push(Choice::Reap(i));
                }
                Reaping::Sent(..) | Reaping::Again | Reaping::Over => {}
            }
        }
        choices.extend(self.choices_of_reads());
        choices.extend(self.choices_of_counts());
        let mut lanes = BTreeSet::new();
        for (i, command) in self.commands.iter().enumerate() {
            if command.what == What::Asks && !command.ended && command.executed.is_some() {
                choices.push(Choice::Hear(i));
            }
            let asks = command.what == What::Asks;
            let waits = command.executed.is_none() && !command.refused;
            if waits && lanes.insert(command.lane) {
                choices.push(Choice::Execute(command.lane));
                if self.faults > 0 && !command.ended {
                    choices.push(Choice::Refuse(command.lane));
                }
            }
            if command.what == What::Notes {
                // Nobody waits for its reply.
                continue;
            }
            let lost = command.reply_lost || command.ended;
            if self.faults > 0 && !asks && !lost && !command.refused && command.executed.is_some() {
                choices.push(Choice::LoseReply(i));
            }
            let starts = matches!(command.what, What::Acquires { .. });
            let granted = command.executed.is_some_and(Reply::is_grant);
            if self.shortfalls > 0 && starts && granted && !lost && !command.unacknowledged {
                choices.push(Choice::Unacknowledge(i));
            }
            // Silence comes by a fault, behind a reply that was lost, or when nobody polls for the reply.
            if !asks
                && !command.ended
                && !command.refused
                && (self.is_free_to_end(command) || (waits && self.faults > 0))
            {
                choices.push(Choice::Overdue(i));
            }
        }
        let held = self.held_by.is_some_and(|by| by > 0) || !self.read_by.is_empty();
        if self.faults > 0 && held {
            choices.push(Choice::Vanish);
            if self
                .gate
                .seat
                .held()
                .is_some_and(|hold| hold.phase() == Phase::Held)
            {
                choices.push(Choice::Lose);
            }
        }
        choices.extend(self.choices_of_queue());
        choices.extend(self.choices_of_permits());
        let free = self.held_by.is_none() && self.read_by.is_empty();
        let comes = self.strangers > 0 && free && !self.is_queued() && !self.is_counted();
        if self.held_by == Some(0) || comes {
            choices.push(Choice::Stranger);
        }
        choices
    }

    /// What may happen to grants that are not collected.
    fn choices_of_grants(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        let frees_nothing =
            matches!(&self.gate.seat, Seat::Shared { shared, .. } if !shared.has_one_read());
        if self.gate.seats().any(|seat| seat.held().is_some())
            && let Some(grant) = self.not_collecting().next()
            && self.job
            && (self.ticks > 0 || self.is_asleep(&grant.ticket))
        {
            choices.push(Choice::Tick);
            let calls = self.calls > 0 && !grant.called && !frees_nothing;
            if calls && self.gate.has_queue() {
                choices.push(Choice::Call);
            }
        }
        choices
    }

    /// What may happen while holds are passed on.
    fn choices_of_pass_on(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        let held = self.gate.seat.held();
        let passes = held.is_some_and(|hold| hold.kind.commands.rules().passes_on);
        if self.laters > 0 && passes {
            choices.push(Choice::Later);
        }
        if self.asks > 0 && passes && self.gate.has_queue() {
            choices.push(Choice::Ask);
        }
        if self.job && matches!(self.asleep, Asleep::Left(_)) {
            choices.push(Choice::Left);
        }
        choices
    }

    /// What may happen to a hold that is shared, and to notes of writers.
    fn choices_of_reads(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (i, (hold, command)) in self.downgrades.iter().enumerate() {
            let waits =
                command.is_some_and(|command| self.reply_of(command) == ReplyState::InFlight);
            if !waits || hold.phase() != Phase::Held {
                choices.push(Choice::Downgrade(i));
            }
        }
        for (i, (command, _)) in self.removed_notes.iter().enumerate() {
            if self.reply_of(*command) != ReplyState::InFlight {
                choices.push(Choice::NoteRemoved(i));
            }
        }
        let shared = !self.is_counted();
        if shared && self.stranger_note || (self.stranger_notes > 0 && !self.read_by.is_empty()) {
            choices.push(Choice::StrangerNotes);
        }
        choices
    }

    pub(super) fn choices_of(&self, i: usize, caller: &Caller) -> Vec<Choice> {
        let mut choices = Vec::new();
        match &caller.at {
            At::Start if caller.rounds > 0 => {
                if !caller.owner_ended {
                    choices.push(Choice::Look(i));
                }
            }
            At::Looked => choices.push(Choice::Arrive(i)),
            At::Waiting(..) if caller.manner == Manner::Sleeps => {}
            At::Waiting(ticket, first) => {
                let first =
                    first.is_some_and(|command| self.reply_of(command) != ReplyState::InFlight);
                if ticket.is_decided() || ticket.is_called() || first {
                    choices.push(Choice::Poll(i));
                }
                if caller.manner != Manner::Stays {
                    choices.push(Choice::Drop(i));
                }
            }
            At::Holding(entered) => {
                let fixed = caller.side == Side::ReadsFixed;
                if fixed && entered.hold.phase() == Phase::Held {
                    choices.push(Choice::Expire(i));
                }
                if caller.manner == Manner::Detaches {
                    choices.push(Choice::Detach(i));
                }
                if caller.manner == Manner::Drops {
                    choices.push(Choice::Drop(i));
                } else {
                    choices.push(Choice::Unlock(i));
                }
            }
            At::Unlocking(_, command, _) => {
                if self.reply_of(*command) != ReplyState::InFlight {
                    choices.push(Choice::Poll(i));
                }
                if caller.manner == Manner::Drops || self.faults > 0 {
                    choices.push(Choice::Drop(i));
                }
            }
            At::Entering(_, _, command) | At::Leaving(_, _, Some(command)) => {
                if self.reply_of(*command) != ReplyState::InFlight {
                    choices.push(Choice::Poll(i));
                }
                if caller.manner == Manner::Drops {
                    choices.push(Choice::Drop(i));
                }
            }
            At::Leaving(_, _, None) => choices.push(Choice::Write(i)),
            At::Watching(hold) => {
                if hold.phase() == Phase::Ended || matches!(hold.phase(), Phase::Lost(_)) {
                    choices.push(Choice::Poll(i));
                }
            }
            At::Start | At::Detached | At::Gone => {}
        }
        if caller.manner == Manner::Detaches
            && !caller.owner_ended
            && !matches!(caller.at, At::Start | At::Looked)
        {
            choices.push(Choice::EndOwner(i));
        }
        choices
    }

    /// The grants that are not collected.
    pub(super) fn not_collecting(&self) -> impl Iterator<Item = &Uncollected> {
        let grants = self.gate.uncollected.iter();
        grants.filter(|grant| grant.ticket.is_decided())
    }

    /// Whether the caller of `ticket` is not polled.
    pub(super) fn is_asleep(&self, ticket: &Arc<Ticket>) -> bool {
        self.callers.iter().any(|caller| {
            let its = matches!(&caller.at, At::Waiting(own, _) if Arc::ptr_eq(own, ticket));
            its && caller.manner == Manner::Sleeps
        })
    }

    /// Whether it is no fault that a command ends without a reply.
    pub(super) fn is_free_to_end(&self, command: &Command) -> bool {
        let sender = self.callers.get(command.lane);
        command.reply_lost || sender.is_some_and(|caller| caller.manner == Manner::Sleeps)
    }

    /// Whether the job can take a step now.
    pub(super) fn job_is_able(&self) -> bool {
        match self.asleep {
            Asleep::Awake => true,
            Asleep::Command(command) => self.reply_of(command) != ReplyState::InFlight,
            Asleep::Change
            | Asleep::Poll
            | Asleep::Linger
            | Asleep::Collection
            | Asleep::Left(_) => false,
        }
    }

    /// Whether the client was closed and has completed what was in flight.
    pub(super) fn is_over(&self) -> bool {
        let reaps = self
            .reaps
            .iter()
            .all(|(_, reaping)| matches!(reaping, Reaping::Over));
        self.closed && reaps && !self.gate.is_in_flight() && self.places.are_answered()
    }
}
