//! The gate of a lock whose queue Redis keeps: which of its waiters have a place there, and what that changes.

use std::sync::Arc;

use super::seat::Seat;
use super::ticket::Ticket;
use crate::engine::gate::{Gate, MOST_PLACES};
use crate::engine::hold::Hold;
use crate::engine::hold::state::Phase;

/// What to send to Redis for the places of the tickets that wait here.
pub(crate) enum PlaceCommand {
    /// Nobody here may have a place, or a ticket is being tried and its place is asked for again with all others later.
    Nothing,
    /// Vouch for the places of these holds.
    Vouch(Vec<Arc<Hold>>),
    Enqueue {
        /// The last hold of this client that has a place; the places of `holds` are behind it.
        ahead: Option<Arc<Hold>>,
        holds: Vec<Arc<Hold>>,
        /// Whether some of `holds` never had one.
        has_new: bool,
    },
}

impl<C: Clone + PartialEq> Gate<C> {
    /// What to send for the places of the first tickets in the queue. `hold` makes the hold of a ticket that has none yet;
    /// `lost`: some places were lost. A ticket that leaves from now on gives its place back: its hold is released.
    pub(crate) fn place_command(
        &self,
        lost: bool,
        mut hold: impl FnMut(&Arc<Ticket>) -> Arc<Hold>,
    ) -> PlaceCommand {
        // The ticket being tried counts as first. It may have the lock, and have given it back, before a request for all
        // places runs, which would give it a place again.
        let tried_place = match &self.seat {
            Seat::Trying(attempt)
            | Seat::Releasing {
                next: Some(attempt),
                ..
            } => attempt.ticket.unsettled(),
            _ => None,
        };
        if lost && tried_place.is_some() {
            return PlaceCommand::Nothing;
        }
        let first = self.queue.iter().take(MOST_PLACES);
        let waiting: Vec<_> = first.filter(|ticket| ticket.may_have_place()).collect();
        let first_new = waiting.iter().position(|t| t.unsettled().is_none());
        let place = |ticket: &&Arc<Ticket>| {
            ticket.unsettled().unwrap_or_else(|| {
                let hold = hold(ticket);
                ticket.set_unsettled(Some(&hold));
                hold
            })
        };
        let mut holds: Vec<_> = waiting.iter().map(place).collect();
        if holds.is_empty() {
            return PlaceCommand::Nothing;
        }
        let Some(first) = (if lost { Some(0) } else { first_new }) else {
            return PlaceCommand::Vouch(holds);
        };
        let behind = holds.split_off(first);
        PlaceCommand::Enqueue {
            ahead: holds.pop().or(tried_place),
            holds: behind,
            has_new: first_new.is_some(),
        }
    }

    /// The ticket of `hold`, which is released, left the queue.
    pub(super) fn leaves_place(&mut self, hold: &Arc<Hold>) {
        if hold.kind.has_queue() {
            self.left_places.retain(|left| left.phase() != Phase::Ended);
            self.left_places.push(Arc::clone(hold));
        }
    }

    /// The holds of tickets that left, whose places Redis may still have. A try that arrives before their releases would
    /// use these places, and overtake other clients.
    pub(crate) fn take_left_places(&mut self) -> Vec<Arc<Hold>> {
        self.left_places.retain(|left| left.phase() != Phase::Ended);
        std::mem::take(&mut self.left_places)
    }

    /// The channels that wake the first `count` tickets that have places.
    pub(crate) fn channels(&self, count: usize) -> Vec<Box<str>> {
        let first = self.queue.iter().take(MOST_PLACES);
        let holds = first.filter_map(|ticket| ticket.unsettled());
        let channels = holds.filter_map(|hold| {
            let queue = hold.kind.commands.queue()?;
            Some(queue.channel(&hold.kind.names, &hold.id))
        });
        channels.take(count).collect()
    }
}
