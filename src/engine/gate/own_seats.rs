//! The holds of a counted lock, of which a client may have several at once.
//!
//! 1. The seat of the gate is for tries only. A granted hold has a seat of its own, from its grant until it is passed on,
//!    or its last release is answered: a release of one hold delays no other.
//! 2. A grant that is not collected keeps permits from others, so the waiters are called, and the grant is taken back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::seat::{Seat, Vacated};
use super::ticket::{Ticket, Uncollected};
use crate::clock::Moment;
use crate::engine::hold::Hold;

pub(super) struct OwnSeats<C> {
    /// By the number of the hold.
    seats: BTreeMap<u64, Seat<C>>,
    /// In the order in which they are taken back.
    uncollected: VecDeque<Uncollected>,
}

impl<C> Default for OwnSeats<C> {
    fn default() -> Self {
        Self {
            seats: BTreeMap::new(),
            uncollected: VecDeque::new(),
        }
    }
}

impl<C: Clone + PartialEq> OwnSeats<C> {
    pub(super) fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// Gives `hold` a seat of its own.
    pub(super) fn seat(&mut self, hold: &Arc<Hold>) -> &mut Seat<C> {
        let seat = self.seats.entry(hold.number).or_insert(Seat::Free);
        seat.hold(Arc::clone(hold));
        seat
    }

    pub(super) fn of(&self, hold: &Hold) -> Option<&Seat<C>> {
        self.seats.get(&hold.number)
    }

    pub(super) fn of_mut(&mut self, hold: &Hold) -> Option<&mut Seat<C>> {
        self.seats.get_mut(&hold.number)
    }

    /// The hold that has the records of `hold` now, if that has no seat any more.
    pub(super) fn current(&self, hold: &Hold) -> Option<&Arc<Hold>> {
        if self.seats.contains_key(&hold.number) {
            return None;
        }
        let mut held = self.seats.values().filter_map(Seat::held);
        held.find(|held| held.id == hold.id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Seat<C>> {
        self.seats.values()
    }

    /// Removes the seat of `hold`, which is over.
    pub(super) fn vacate(&mut self, hold: &Hold) -> Vacated {
        match self.seats.remove(&hold.number) {
            Some(_) => Vacated::Free,
            None => Vacated::NotHere,
        }
    }

    pub(super) fn expect_collection(&mut self, ticket: &Arc<Ticket>, now: Moment) {
        let until = |grant: &Uncollected| grant.kept_until(Duration::MAX);
        let new = Uncollected::new(ticket, now);
        let place = self
            .uncollected
            .partition_point(|grant| until(grant) <= until(&new));
        if let Some(first) = self.uncollected.front_mut().filter(|_| place == 0) {
            // Called waiters that are polled meanwhile find only the new grant, so they are called again for this one.
            first.called = false;
        }
        self.uncollected.insert(place, new);
    }

    /// The uncollected grant that is taken back first.
    pub(super) fn uncollected(&mut self) -> Option<&mut Uncollected> {
        while let Some(grant) = self.uncollected.front()
            && !grant.ticket.is_decided()
        {
            self.uncollected.pop_front();
        }
        self.uncollected.front_mut()
    }

    pub(super) fn take_uncollected(&mut self) -> Option<Arc<Ticket>> {
        self.uncollected.pop_front().map(|grant| grant.ticket)
    }
}
