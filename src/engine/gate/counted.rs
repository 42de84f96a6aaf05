//! The gate of a counted lock: which seat a hold has, and what a busy answer says of requests that ask for different numbers
//! of permits.
//!
//! 1. Requests are served in the order of the calls, whatever they ask for. So if the lock is busy for the head of the queue,
//!    it is for all behind it.
//! 2. A busy answer counts for who asks for as much or more. When the head asks for less, it tries at once.
//!
//! For a lock that is not counted every request asks for one, and the only seat is that of the gate.

use std::sync::Arc;

use super::seat::Seat;
use super::ticket::{Ticket, Verdict};
use crate::clock::Moment;
use crate::engine::gate::Gate;
use crate::engine::hold::{Effects, Hold};

impl<C: Clone + PartialEq> Gate<C> {
    /// The seat that `hold` has, if it has one: its own, or the gate's.
    pub(super) fn seat_of(&self, hold: &Hold) -> &Seat<C> {
        self.own_seats.of(hold).unwrap_or(&self.seat)
    }

    pub(super) fn seat_of_mut(&mut self, hold: &Hold) -> &mut Seat<C> {
        self.own_seats.of_mut(hold).unwrap_or(&mut self.seat)
    }

    pub(super) fn seats(&self) -> impl Iterator<Item = &Seat<C>> {
        std::iter::once(&self.seat).chain(self.own_seats.iter())
    }

    /// The lock is busy for the head, and so for all behind it: concludes the tickets in the queue whose wait is over.
    pub(super) fn conclude_late(&mut self, now: Moment, effects: &mut Effects) {
        loop {
            if !self.recheck_head() {
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

    /// The lock is known to be busy for the head, and so for all behind it; or the head asks for less than that answer was
    /// about, and tries at once. Returns false then.
    pub(super) fn recheck_head(&mut self) -> bool {
        let wants = |head: &Arc<Ticket>| head.request.kind.commands.wants();
        let less = self
            .queue
            .head()
            .is_some_and(|head| wants(head) < self.busy_for);
        if less && self.forget_busy() {
            self.try_at_once = true;
            self.notify_job();
        }
        !less
    }
}

#[cfg(test)]
#[path = "counted_tests.rs"]
mod tests;
