//! What the keeper's job for a name does next.
//!
//! 1. Every step but the last either changes the gate or waits for something: the step that finds nothing to
//!    do ends the job, under the same lock.
//! 2. Who waits can rely on a job: it ends only when there is no queue, no attempt, no grant that lies
//!    uncollected, and no release that somebody's next try depends on.

use std::sync::Arc;

use super::joint::Joint;
use super::seat::{Attempt, Seat};
use super::ticket::{Patience, Ticket};
use crate::clock::Moment;
use crate::engine::gate::{Gate, Rules};
use crate::engine::hold::Hold;
use crate::engine::hold::effects::Effects;
use crate::engine::hold::kind::Kind;

pub(crate) enum Step<C> {
    /// See the attempt at the hold through whose command this is, started at that time.
    FinishAttempt(Arc<Hold>, C, Moment),
    /// See the last release of the hold through that was started at that time.
    FinishRelease(Arc<Hold>, C, Moment),
    /// The keeper repeats the release in the seat: wait for a change.
    AwaitRelease,
    /// Send the last release, and right behind it the try for the head of the queue.
    HandOver { hold: Arc<Hold> },
    /// Watch over our own hold, whichever that is: others wait behind it, or its grant is not collected, which it is to be by
    /// `collect_by`.
    Watch { collect_by: Option<Moment> },
    /// Get the lock for the head of the queue; at once when `prompt`. When that is because of a release of
    /// ours: how many other clients heard it.
    Serve {
        head: Arc<Ticket>,
        prompt: bool,
        released: Option<u32>,
        /// By when a share is to be collected that was granted before.
        collect_by: Option<Moment>,
    },
    /// Somebody waits, and the lock is left to others until then.
    Leave(Moment),
    /// Nothing to do; listen a while longer.
    Linger,
    /// The job has ended, and with it the mark of a waiting writer, if there was one: its kind, and when it was first
    /// left. Redis is to be told.
    Over { mark: Option<(Kind, Moment)> },
}

impl<C: Clone + PartialEq> Gate<C> {
    /// What the job has to do next. One that still listens to the channel does not end yet.
    pub(crate) fn step(
        &mut self,
        now: Moment,
        rules: Rules,
        listening: bool,
        effects: &mut Effects,
    ) -> Step<C> {
        self.looks_at = Moment::NEVER;
        if let Some(step) = self.under_way(now, rules) {
            return step;
        }
        if (self.seat.is_free() || self.is_head_joinable(now))
            && let Some(step) = self.next_in_line(now, rules, effects)
        {
            return step;
        }
        if listening {
            return Step::Linger;
        }
        self.job = None;
        self.wakeups.listening(false);
        // Under the same lock: without a job nobody would take it away.
        let mark = self.take_mark_away();
        Step::Over { mark }
    }

    /// What is to be done for what has the seat, if anything.
    fn under_way(&mut self, now: Moment, rules: Rules) -> Option<Step<C>> {
        let others = !self.queue.is_empty();
        let joinable = self.is_head_joinable(now);
        match &mut self.seat {
            Seat::Free => None,
            Seat::Trying(Attempt {
                hold,
                command,
                since,
                ..
            })
            | Seat::Shared {
                join:
                    Some(Attempt {
                        hold,
                        command,
                        since,
                        ..
                    }),
                ..
            } => Some(Step::FinishAttempt(
                Arc::clone(hold),
                command.clone(),
                *since,
            )),
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
            Seat::Shared { .. } if joinable => None,
            Seat::Shared { joint, .. } => {
                let collect_by = collect_by(joint, rules);
                (others || collect_by.is_some()).then_some(Step::Watch { collect_by })
            }
            Seat::Held { uncollected, .. } => {
                uncollected.take_if(|(ticket, _)| !ticket.is_decided());
                let collect_by = uncollected
                    .as_ref()
                    .map(|(_, since)| *since + rules.command_timeout);
                (others || collect_by.is_some()).then_some(Step::Watch { collect_by })
            }
        }
    }

    /// Whether the first who waits may share the hold in the seat.
    pub(super) fn is_head_joinable(&self, now: Moment) -> bool {
        let head = self.queue.head();
        head.is_some_and(|head| self.is_joinable(head, now))
    }

    /// The seat is free, or is to be shared: the first who still waits.
    fn next_in_line(
        &mut self,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) -> Option<Step<C>> {
        while let Some(head) = self.queue.head().cloned() {
            let late = matches!(head.request.patience, Patience::Until(end) if now >= end);
            // Its caller would say so itself, if anybody polled it.
            let Some(word) = self.last_word(&head, now).filter(|_| late) else {
                let collect_by = match &mut self.seat {
                    Seat::Shared { joint, .. } => collect_by(joint, rules),
                    _ => None,
                };
                if self.seat.is_free()
                    && let Some(until) = self.row.leave(now)
                {
                    return Some(Step::Leave(until));
                }
                return Some(Step::Serve {
                    head,
                    prompt: std::mem::take(&mut self.prompt),
                    released: self.wakeups.take_released(),
                    collect_by,
                });
            };
            self.queue.remove(head.number);
            self.conclude(&head, word, effects);
            self.prompt = true;
        }
        None
    }

    /// The head of the queue gets the free seat, or asks for a share of the hold in it, by the attempt that
    /// `attempt` makes. False when it is not its turn any more.
    pub(crate) fn call_up(
        &mut self,
        head: &Arc<Ticket>,
        now: Moment,
        attempt: impl FnOnce(Option<&Arc<Hold>>) -> (Arc<Hold>, C),
    ) -> bool {
        let joins = matches!(&self.seat, Seat::Shared { join: None, .. });
        let open = self.seat.is_free() || (joins && self.is_joinable(head, now));
        let free = open && self.queue.remove(head.number).is_some();
        if free {
            let (hold, command) = attempt(self.seat.held());
            self.sit(hold, head, command, now);
        }
        free
    }

    /// Takes a grant back that lies uncollected for too long; its hold is to be given back by one level.
    pub(crate) fn take_back(
        &mut self,
        now: Moment,
        rules: Rules,
    ) -> Option<(Arc<Hold>, Arc<Ticket>)> {
        let ticket = self
            .seat
            .take_uncollected(now.minus(rules.command_timeout))?;
        Some((ticket.revoke()?, ticket))
    }

    /// Nothing was heard of `hold`'s command in time: the command, to be ended. By 2, a job sees to the rest.
    /// A release is left to the keeper, who awaits what was sent first.
    pub(crate) fn overdue(&mut self, hold: &Arc<Hold>, effects: &mut Effects) -> Option<C> {
        let command = self
            .seat
            .commands()
            .find_map(|(of, command)| Arc::ptr_eq(of, hold).then(|| command.clone()));
        match &mut self.seat {
            Seat::Trying(attempt) if Arc::ptr_eq(&attempt.hold, hold) => {
                attempt.overdue = true;
                self.tell_job();
            }
            Seat::Releasing { hold: over, .. } if Arc::ptr_eq(over, hold) => {
                effects.release(hold);
            }
            _ => {}
        }
        command
    }
}

/// By when the share is to be collected that was granted first.
fn collect_by(joint: &mut Joint, rules: Rules) -> Option<Moment> {
    let (_, since) = joint.uncollected()?;
    Some(since + rules.command_timeout)
}

#[cfg(test)]
#[path = "next_tests.rs"]
mod tests;
