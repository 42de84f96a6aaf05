//! The gate of a lock whose queue Redis keeps: who of those who wait here has a place in it, and what that changes.

use std::sync::Arc;

use super::seat::Seat;
use super::ticket::Ticket;
use crate::engine::gate::{Gate, PLACES};
use crate::engine::hold::Hold;
use crate::engine::hold::kind::Kind;

/// What is to be asked of Redis for those who wait here.
pub(crate) enum Asks {
    /// None of them may have a place, or it is not the moment to ask for all again.
    Nothing,
    /// As many as have one, by this kind of lock: that their places are kept.
    Vouch(Kind, usize),
    Places(Asked),
}

/// Those for whom places are asked.
pub(crate) struct Asked {
    /// The last of this client that has one; theirs are behind it.
    pub(crate) ahead: Option<Arc<Hold>>,
    pub(crate) holds: Vec<Arc<Hold>>,
    /// Whether some of these never had one.
    pub(crate) has_new: bool,
}

impl<C: Clone + PartialEq> Gate<C> {
    /// What the first in the queue need that may have places in the queue that Redis keeps. `hold` makes the hold ids of
    /// those who have none yet; `lost`: some of them lost theirs. Whoever leaves from now on gives its place back, being
    /// released.
    pub(crate) fn asks(&self, lost: bool, mut hold: impl FnMut(&Arc<Ticket>) -> Arc<Hold>) -> Asks {
        // Whoever is tried for is not in the queue meanwhile, and ahead of those that are.
        let tried = match &self.seat {
            Seat::Trying(attempt) => Some(&attempt.ticket),
            _ => None,
        };
        let tried_place = tried.and_then(|ticket| ticket.unsettled());
        if lost && tried_place.is_some() {
            // All are asked for together, once that one is back in the queue or has the lock.
            return Asks::Nothing;
        }
        let first = self.queue.iter().take(PLACES);
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
        let Some(kind) = holds.first().map(|hold| hold.kind.clone()) else {
            return Asks::Nothing;
        };
        let Some(first) = (if lost { Some(0) } else { first_new }) else {
            return Asks::Vouch(kind, holds.len());
        };
        let asked = holds.split_off(first);
        Asks::Places(Asked {
            ahead: holds.pop().or(tried_place),
            holds: asked,
            has_new: first_new.is_some(),
        })
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
