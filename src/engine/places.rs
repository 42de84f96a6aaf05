//! The gate of a lock whose queue Redis keeps: who of those who wait here has a place in it, and what that changes.

use std::sync::Arc;

use super::effects::Effects;
use super::gate::{Gate, PLACES};
use super::hold::Hold;
use super::kind::Kind;
use super::seat::Seat;
use super::state::Level;
use super::ticket::Ticket;

/// Whether a hold was made just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IsNew(pub(crate) bool);

impl<C: Clone + PartialEq> Gate<C> {
    /// Those of the first in the queue that may have places in the queue that Redis keeps, with their hold ids: by
    /// `hold` for who has none yet, and what is to keep them alive. Whoever leaves from now on gives its place back, being
    /// released.
    pub(crate) fn places(
        &self,
        mut hold: impl FnMut(&Arc<Ticket>) -> Arc<Hold>,
    ) -> Vec<(Arc<Hold>, IsNew, Level)> {
        let first = self.queue.iter().take(PLACES);
        let places = first.filter(|ticket| ticket.may_have_place());
        let places = places.map(|ticket| {
            let level = ticket.request.level;
            if let Some(hold) = ticket.unsettled() {
                return (hold, IsNew(false), level);
            }
            let hold = hold(ticket);
            ticket.set_unsettled(Some(&hold));
            (hold, IsNew(true), level)
        });
        places.collect()
    }

    /// Whether who is tried for has a place, if anybody is: it is ahead of those in the queue.
    pub(crate) fn seat_has_place(&self) -> bool {
        match &self.seat {
            Seat::Trying(attempt) => attempt.ticket.unsettled().is_some(),
            _ => true,
        }
    }

    /// The lock was handed over to the hold that this is true of, and it is not the turn of that one here: it gives the
    /// lock back, and its place with it. The hold, to be released.
    pub(crate) fn give_back_place(
        &mut self,
        is_it: impl Fn(&Hold) -> bool,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        let mut waiting = self.queue.iter().take(PLACES);
        let (ticket, hold) = waiting.find_map(|ticket| {
            let hold = ticket.unsettled().filter(|hold| is_it(hold))?;
            Some((Arc::clone(ticket), hold))
        })?;
        self.abandon(&ticket, effects);
        self.prompt = true;
        self.tell_job();
        Some(hold)
    }

    /// Where the first `count` of those who have places are told of their turn.
    pub(crate) fn channels(&self, count: usize) -> Vec<Box<str>> {
        let holds = self.queue.iter().take(PLACES);
        let holds = holds.filter_map(|ticket| ticket.unsettled());
        let channels = holds.filter_map(|hold| {
            let queue = hold.kind.commands.queue()?;
            Some(queue.channel(hold.kind.names(), &hold.id))
        });
        channels.take(count).collect()
    }

    /// Whether Redis keeps a queue for who is at this gate: all are of one kind then.
    pub(crate) fn has_redis_queue(&self) -> bool {
        let head = self.queue.head().map(|ticket| &ticket.request.kind);
        let kind = head.or_else(|| self.occupant().map(|hold| &hold.kind));
        kind.is_some_and(Kind::has_queue)
    }

    /// A last release of `hold` is being sent: its message comes back, where all listen to one channel. In a queue that
    /// Redis keeps it is for the next one alone, and whoever hears it has to try.
    pub(crate) fn expect_echo(&mut self, hold: &Hold) {
        if !hold.kind.has_queue() {
            self.wakeups.expect_echo(hold.number);
        }
    }
}
