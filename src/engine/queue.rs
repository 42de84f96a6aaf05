//! Who waits behind a gate: first come first served, and cheap to ask whether a kind of waiter is among
//! them, since thousands may wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ticket::{Patience, Ticket};

#[derive(Default)]
pub(crate) struct Queue {
    /// By number, which is by arrival.
    tickets: BTreeMap<u64, Arc<Ticket>>,
    /// How many of them do not wait for ever.
    bounded: usize,
    /// How many of them have an owner.
    owned: usize,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    pub(crate) fn head(&self) -> Option<&Arc<Ticket>> {
        self.tickets.first_key_value().map(|(_, ticket)| ticket)
    }

    pub(crate) fn contains(&self, ticket: &Ticket) -> bool {
        self.tickets.contains_key(&ticket.number)
    }

    pub(crate) fn any(&self, is: impl FnMut(&Arc<Ticket>) -> bool) -> bool {
        self.tickets.values().any(is)
    }

    /// By arrival: a head that tried in vain goes back to the front.
    pub(crate) fn insert(&mut self, ticket: &Arc<Ticket>) {
        let before = self.tickets.insert(ticket.number, Arc::clone(ticket));
        if before.is_none() {
            self.bounded += usize::from(is_bounded(ticket));
            self.owned += usize::from(ticket.request.owner.is_some());
        }
    }

    pub(crate) fn remove(&mut self, ticket: &Ticket) -> bool {
        let removed = self.tickets.remove(&ticket.number);
        if let Some(ticket) = &removed {
            self.bounded -= usize::from(is_bounded(ticket));
            self.owned -= usize::from(ticket.request.owner.is_some());
        }
        removed.is_some()
    }

    /// Removes those that do not wait for ever and that `decided` is true for.
    pub(crate) fn remove_bounded(&mut self, decided: impl FnMut(&Arc<Ticket>) -> bool) {
        if self.bounded > 0 {
            self.remove_if(decided);
        }
    }

    /// Removes those that have an owner and that `decided` is true for.
    pub(crate) fn remove_owned(&mut self, decided: impl FnMut(&Arc<Ticket>) -> bool) {
        if self.owned > 0 {
            self.remove_if(decided);
        }
    }

    /// Removes those that `decided` is true for.
    pub(crate) fn remove_if(&mut self, mut decided: impl FnMut(&Arc<Ticket>) -> bool) {
        self.tickets.retain(|_, ticket| !decided(ticket));
        self.bounded = self.tickets.values().filter(|t| is_bounded(t)).count();
        self.owned = self
            .tickets
            .values()
            .filter(|t| t.request.owner.is_some())
            .count();
    }
}

fn is_bounded(ticket: &Ticket) -> bool {
    ticket.request.patience != Patience::Forever
}
