//! How a step is taken, and the steps that neither callers nor the keeper take.

use super::*;
use crate::engine::gate::succession::PASS_ON_FOR;
use crate::engine::gate::ticket::CALL_AFTER;

impl World {
    pub(super) fn step(&mut self, choice: Choice) {
        self.take(choice);
        self.check(choice);
    }

    /// Only the step, without the checks.
    pub(super) fn take(&mut self, choice: Choice) {
        self.take_step(choice);
        self.see_permits();
    }

    fn take_step(&mut self, choice: Choice) {
        match choice {
            Choice::Look(i) => self.look(i),
            Choice::Arrive(i) => self.arrive(i),
            Choice::Poll(i) => self.poll(i),
            Choice::Drop(i) => self.drop_future(i),
            Choice::Unlock(i) => {
                let At::Holding(entered) = std::mem::replace(&mut self.callers[i].at, At::Gone)
                else {
                    return;
                };
                self.give_back(&entered, Some(i), i);
            }
            Choice::Detach(i) => self.detach(i),
            Choice::EndOwner(i) => self.end_owner(i),
            Choice::Close => self.closed = true,
            Choice::Job => self.job_step(),
            Choice::JobPoll if self.asleep == Asleep::Linger => {
                self.listening = false;
                self.listens_no_more();
                self.at(|gate, _| gate.wakeups.set_listening(false));
                self.job_step();
            }
            Choice::JobPoll => {
                if !std::mem::take(&mut self.places.woken) {
                    self.polls -= 1;
                }
                self.gate.try_at_once = true;
                self.job_step();
            }
            Choice::Tick => {
                // The others wait for a sleeping caller once.
                self.ticks = self.ticks.saturating_sub(1);
                self.uncollected_for(RULES.command_timeout);
            }
            Choice::Call => {
                self.calls -= 1;
                self.uncollected_for(CALL_AFTER);
            }
            Choice::Later | Choice::Left | Choice::Ask => self.while_passed(choice),
            Choice::Hear(i) => self.hear(i),
            Choice::Reap(i) => self.reap(i),
            Choice::Message => self.hear_of_permits(),
            Choice::Overdue(i) => {
                if !self.is_free_to_end(&self.commands[i]) {
                    self.faults -= 1;
                }
                self.faulted = true;
                self.commands[i].ended = true;
                // The connection is replaced, so a command on its way may arrive at any time.
                self.commands[i].lane = 1_000 + i;
                let hold = Arc::clone(&self.commands[i].hold);
                self.at(|gate, effects| gate.overdue(&hold, effects));
            }
            Choice::Execute(lane) => self.execute(lane),
            Choice::Refuse(lane) => {
                self.faults -= 1;
                self.faulted = true;
                let next = self.next_of(lane);
                self.commands[next].refused = true;
            }
            Choice::LoseReply(i) => {
                self.faults -= 1;
                self.faulted = true;
                self.commands[i].reply_lost = true;
            }
            Choice::Unacknowledge(i) => {
                self.shortfalls -= 1;
                self.faulted = true;
                self.commands[i].unacknowledged = true;
            }
            Choice::Expire(i) => {
                let At::Holding(entered) = &self.callers[i].at else {
                    return;
                };
                let share = Arc::clone(&entered.hold);
                if share.with(|state| state.lose(LostReason::Expired)) {
                    self.at(|gate, effects| gate.expire_read(&share, effects));
                }
            }
            Choice::Downgrade(i) => self.downgrade_on(i),
            Choice::Write(i) => self.write_count(i),
            Choice::Count(i) => self.count_on(i),
            Choice::NoteRemoved(i) => {
                let (_, since) = self.removed_notes.remove(i);
                self.at(|gate, _| gate.writer_waits_withdrawn(since));
            }
            Choice::Vanish => {
                self.faults -= 1;
                self.held_by = None;
                self.read_by.clear();
            }
            Choice::Lose => {
                self.faults -= 1;
                let hold = Arc::clone(self.gate.seat.held().unwrap());
                self.lose(&hold);
            }
            Choice::Placed(command) => self.placed(command),
            Choice::Forget | Choice::ForgetFirst => self.forget(choice),
            Choice::Vouch => self.vouch(),
            stranger => self.stranger_step(stranger),
        }
    }

    /// What strangers do.
    fn stranger_step(&mut self, choice: Choice) {
        match choice {
            Choice::StrangerNotes if self.is_counted() => self.stranger_wants_permit(),
            Choice::StrangerNotes => self.stranger_notes(),
            Choice::Stranger if self.is_queued() => self.stranger_in_turn(),
            Choice::Stranger if self.is_counted() => self.stranger_with_permit(),
            Choice::Stranger => self.stranger(),
            Choice::StrangerWaits | Choice::StrangerDies => self.stranger_queues(choice),
            _ => {}
        }
    }

    /// `span` passes, and nobody collects the grant.
    fn uncollected_for(&mut self, span: Duration) {
        self.now = self.now + span;
        self.asleep = Asleep::Awake;
        let taken = self.at(Gate::take_back);
        if let Some((hold, ticket)) = taken {
            self.give_back(&ticket.request.entered(hold), None, usize::MAX);
        }
    }

    fn stranger(&mut self) {
        if self.held_by.is_none() {
            self.strangers -= 1;
            self.held_by = Some(0);
        } else {
            self.held_by = None;
            self.polls += 1;
        }
    }

    /// What happens while holds are passed on.
    fn while_passed(&mut self, choice: Choice) {
        match choice {
            Choice::Later => {
                self.laters -= 1;
                self.now = self.now + PASS_ON_FOR;
            }
            Choice::Left => {
                let Asleep::Left(until) = self.asleep else {
                    return;
                };
                self.now = self.now.max(until);
                self.asleep = Asleep::Awake;
            }
            Choice::Ask => {
                self.asks -= 1;
                let hold = Arc::clone(self.gate.seat.held().unwrap());
                self.send(&hold, What::Asks, KEEPER);
            }
            _ => {}
        }
    }

    fn stranger_notes(&mut self) {
        if self.stranger_note {
            // Waiters get a message.
            self.polls += 1;
        } else {
            self.stranger_notes -= 1;
        }
        self.stranger_note = !self.stranger_note;
    }
}
