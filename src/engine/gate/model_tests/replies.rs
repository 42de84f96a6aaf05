//! Tries and their answers, and releases that the keeper completes.

use super::*;
use crate::engine::gate::succession::{REST, SHORTEST};
use crate::error::NotReplicated;

impl World {
    pub(super) fn start_try(&mut self, ticket: &Arc<Ticket>) -> (Arc<Hold>, usize) {
        let hold = ticket.unsettled().unwrap_or_else(|| self.new_hold(ticket));
        let request = &ticket.request;
        let waits = request.kind.commands.is_writer() && request.patience != Patience::Once;
        let notes = self.leaves_notes && waits;
        if notes {
            self.heeded(ticket);
        }
        let waits = ticket.may_have_place();
        if waits {
            ticket.set_unsettled(Some(&hold));
        }
        let command = self.send(&hold, What::Acquires { notes, waits }, KEEPER);
        (hold, command)
    }

    /// As `Core::lose` and `Core::clean_up_lost`.
    pub(super) fn lose(&mut self, hold: &Arc<Hold>) {
        let hold = self.gate.current_hold(hold);
        if hold.with(|state| state.lose(LostReason::Missing)) {
            self.at(|gate, effects| {
                for share in gate.reads_of(&hold) {
                    effects.change(&share, |state| state.lose(LostReason::Missing));
                }
                gate.vacate(&hold);
                effects.release(&hold);
            });
        }
    }

    /// As `RenewalQuestion::answered`.
    pub(super) fn hear(&mut self, command: usize) {
        let hold = Arc::clone(&self.commands[command].hold);
        let gone = self.reply_of(command) == ReplyState::Done(Reply::Gone);
        self.commands[command].ended = true;
        if gone {
            self.lose(&hold);
            let held = self.gate.seat.held();
            let believes = held.is_some_and(|held| held.id == hold.id);
            assert!(!believes, "it is known that Redis does not have the hold");
        }
    }

    /// As `reaper::write_count`, for a downgrade.
    pub(super) fn downgrade_on(&mut self, i: usize) {
        let (hold, command) = self.downgrades[i].clone();
        let Some(command) = command else {
            if hold.phase() == Phase::Held {
                let command = self.send(&hold, What::Downgrades, KEEPER);
                self.downgrades[i].1 = Some(command);
            } else {
                self.downgrades.remove(i);
            }
            return;
        };
        match self.reply_of(command) {
            ReplyState::Done(Reply::Done(_)) => {
                let sent_at = self.commands[command].at;
                self.downgrades.remove(i);
                self.at(|gate, effects| gate.downgraded(&hold, sent_at, effects));
            }
            ReplyState::Done(_) => {
                self.downgrades.remove(i);
                self.lose(&hold);
            }
            _ => self.downgrades[i].1 = None,
        }
    }

    /// As `core::settle_attempt`.
    pub(super) fn settle(&mut self, command: usize) {
        let now = self.now;
        let answer = match self.reply_of(command) {
            ReplyState::Done(Reply::Gone) => Answered::Missing,
            ReplyState::Done(reply) if reply.is_grant() => Answered::Got(Grant {
                sent_at: self.commands[command].at,
                server_age: None,
                reply: match reply {
                    Reply::Done(0) if !self.open => Reply::WriterWaits,
                    reply => reply,
                },
            }),
            ReplyState::Done(_) => Answered::Busy(None),
            ReplyState::Refused => Answered::Failed(Failure::too_late()),
            ReplyState::Unacknowledged => {
                let few = Failure::not_replicated(NotReplicated { wanted: 1, got: 0 });
                Answered::Failed(few.of_grant())
            }
            ReplyState::Silence | ReplyState::InFlight => Answered::Failed(Failure::no_reply()),
        };
        if matches!(answer, Answered::Busy(_)) {
            let mut waiting: Vec<_> = self.gate.queue.iter().cloned().collect();
            if let Seat::Trying(attempt) = &self.gate.seat {
                waiting.push(Arc::clone(&attempt.ticket));
            }
            self.found_busy = waiting;
        }
        let shut = match &answer {
            Answered::Got(grant) => {
                let shared = self.commands[command].hold.kind.commands.is_shared();
                Some(!shared || grant.reply == Reply::WriterWaits)
            }
            Answered::Busy(_) => Some(self.commands[command].what == What::Joins),
            _ => None,
        };
        self.permits_answered(command);
        let early = matches!(&self.gate.seat, Seat::Trying(attempt) if attempt.early);
        let tried_for = match &self.gate.seat {
            Seat::Trying(attempt) if attempt.command == command => attempt.ticket.number,
            _ => 0,
        };
        let busy = matches!(answer, Answered::Busy(_));
        let settled = self.at(|gate, effects| gate.answered(&command, answer, effects));
        if let Some((_, settled)) = &settled {
            self.check_known(*settled, busy, early && tried_for != 0);
        }
        if settled.is_some() {
            self.shut = shut.unwrap_or(self.shut);
        }
        match settled {
            Some((hold, Settled::Missing)) => self.lose(&hold),
            Some((hold, Settled::Held)) => {
                self.check_turn(&hold, tried_for);
                if !early {
                    self.window_opened = now;
                }
            }
            _ => {}
        }
    }

    /// Checks what is known of the lock after an answer to an attempt.
    fn check_known(&self, settled: Settled, busy: bool, early: bool) {
        let has_it = matches!(settled, Settled::Held | Settled::Joined);
        let trouble = self.gate.failing_since.is_some();
        // The grant of the last permit says that the next request is busy.
        let nothing = self.is_counted() || matches!(self.gate.last_answer, LastAnswer::Nothing);
        assert!(
            !(trouble && (busy || has_it)),
            "{settled:?}: an answer ends the trouble"
        );
        assert!(nothing || !has_it, "{settled:?}: it is not a stranger's");
        assert!(nothing || !(busy && early), "answered by the hold before");
    }

    /// As `core::settle_release`. Returns whether the release is over.
    pub(super) fn settle_release(
        &mut self,
        hold: &Arc<Hold>,
        in_seat: Option<usize>,
        command: usize,
        since: Moment,
    ) -> bool {
        let answer = match self.reply_of(command) {
            ReplyState::Done(Reply::Gone) => ReleaseAnswer::Missing,
            ReplyState::Done(Reply::Woke(clients)) => ReleaseAnswer::Ended {
                heard_by: Some(clients),
            },
            ReplyState::Done(_) => ReleaseAnswer::Ended { heard_by: None },
            ReplyState::Refused => ReleaseAnswer::Failed(Failure::too_late()),
            ReplyState::Unacknowledged | ReplyState::Silence | ReplyState::InFlight => {
                ReleaseAnswer::Failed(Failure::no_reply())
            }
        };
        let sent = match &in_seat {
            Some(command) => SentAs::Seat(command),
            None => SentAs::Keeper(since),
        };
        let over = self.at(|gate, effects| gate.release_answered(hold, &sent, answer, effects));
        if over {
            self.permits.came_back |= self.is_counted();
            self.check_outcome(hold);
        }
        let closes_window = |last: &mut Arc<Hold>| over && Arc::ptr_eq(last, hold);
        let closes = self.closes_window.take_if(closes_window).is_some();
        self.check_gap(closes);
        over
    }

    /// After a window has closed, the lock is left free, but for at most 5 % of the time.
    fn check_gap(&mut self, closes: bool) {
        let until = self.gate.succession.left_until(self.now);
        let rests = self.now < self.rest_until;
        assert!(until.is_some() || rests || !closes, "left to nobody else");
        if let Some(until) = until.filter(|until| *until != self.left_until) {
            let length = self.now.until(until);
            assert!(!rests && length >= SHORTEST, "left free too often");
            (self.left_until, self.rest_until) = (until, until + length * REST);
        }
    }

    pub(super) fn reap(&mut self, i: usize) {
        let hold = Arc::clone(&self.reaps[i].0);
        let reaping = std::mem::replace(&mut self.reaps[i].1, Reaping::Over);
        self.reaps[i].1 = match reaping {
            Reaping::Begun => {
                let behind = hold.with(|state| state.is_tainted() | state.takes_place_back());
                if let Some(command) = self.gate.release_of(&hold) {
                    Reaping::Sent(Some(command), command, self.now, behind)
                } else {
                    let command = self.send(&hold, What::Releases, KEEPER);
                    Reaping::Sent(None, command, self.now, behind)
                }
            }
            Reaping::Sent(in_seat, command, since, behind) => {
                let over = self.settle_release(&hold, in_seat, command, since);
                let tainted = hold.is_tainted();
                match over {
                    false => Reaping::Begun,
                    // Repeated for as long as an old acquire may still run.
                    true if tainted && !self.is_laid(&hold) => Reaping::Again,
                    true if behind && !tainted => Reaping::Begun,
                    true => Reaping::Over,
                }
            }
            Reaping::Again => Reaping::Begun,
            Reaping::Over => Reaping::Over,
        };
    }

    /// Whether no acquire of the hold can run any more, and Redis has neither the hold nor its place.
    pub(super) fn is_laid(&self, hold: &Arc<Hold>) -> bool {
        let number = field(hold);
        self.has_no_ghost(hold) && !self.has(number) && !self.places.has(number)
    }

    pub(super) fn has_no_ghost(&self, hold: &Arc<Hold>) -> bool {
        let of_hold = |c: &&Command| {
            let acquires = matches!(c.what, What::Acquires { .. }) && c.hold.id == hold.id;
            acquires || c.others.iter().any(|place| place.id == hold.id)
        };
        let mut ghosts = self.commands.iter().filter(of_hold);
        ghosts.all(|c| c.executed.is_some() || c.refused)
    }
}
