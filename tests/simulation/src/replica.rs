//! A replica of a server: it has what the server had a moment ago, and takes its place.
//!
//! The server sends all its data at once, so a replica is always as the server was at one moment. Reality sends each change
//! for itself; what a replica lacks is the same: the last changes.

use watchlock_test::core::{Options, Store};

use crate::world::Micros;

/// A replica, as its master sees it.
pub(crate) struct Replica {
    /// What it has.
    data: Store,
    /// What is on its way to it.
    sent: Store,
    /// How long anything takes from one to the other.
    lag: Micros,
    /// The number of the master's changes in what was sent last, and in what the replica is known to have.
    sent_changes: u64,
    acknowledged: u64,
    /// Changes with each take-over: what was sent before is of another master.
    term: u64,
    is_under_way: bool,
    stalled_until: Micros,
    took_over_at: Option<Micros>,
}

/// A step of the replication, due at a time.
pub(crate) struct Due {
    pub(crate) at: Micros,
    pub(crate) term: u64,
}

impl Replica {
    pub(crate) fn new(lag: Micros) -> Self {
        Self {
            data: Store::new(Options::default()),
            sent: Store::new(Options::default()),
            lag,
            sent_changes: 0,
            acknowledged: 0,
            term: 0,
            is_under_way: false,
            stalled_until: 0,
            took_over_at: None,
        }
    }

    /// Sends what the master has, if the replica lacks something of it and nothing is under way. Returns when it arrives.
    pub(crate) fn send(&mut self, master: &Store, changes: u64, at: Micros) -> Option<Due> {
        if self.is_under_way || self.sent_changes == changes {
            return None;
        }
        self.sent.copy_data_from(master);
        (self.sent_changes, self.is_under_way) = (changes, true);
        let at = at.max(self.stalled_until) + self.lag;
        Some(Due {
            at,
            term: self.term,
        })
    }

    /// What was sent has arrived. Returns when the master knows that.
    pub(crate) fn arrived(&mut self, term: u64, at: Micros) -> Option<Due> {
        let is_of_now = term == self.term;
        if is_of_now {
            std::mem::swap(&mut self.data, &mut self.sent);
        }
        is_of_now.then(|| Due {
            at: at + self.lag,
            term,
        })
    }

    /// The master knows what the replica has.
    pub(crate) fn acknowledges(&mut self, term: u64) {
        if term == self.term {
            self.acknowledged = self.sent_changes;
            self.is_under_way = false;
        }
    }

    /// Whether the replica is known to have the first so many changes.
    pub(crate) fn has(&self, changes: u64) -> bool {
        self.acknowledged >= changes
    }

    /// Nothing leaves the master until then.
    pub(crate) fn stall(&mut self, until: Micros) {
        self.stalled_until = self.stalled_until.max(until);
    }

    /// It takes over: `master` has its data now. The master that was is its replica, once it has been sent everything.
    pub(crate) fn take_over(&mut self, master: &mut Store, at: Micros) {
        master.copy_data_from(&self.data);
        self.term += 1;
        self.is_under_way = false;
        (self.stalled_until, self.took_over_at) = (at, Some(at));
    }

    /// When it last took over.
    pub(crate) fn took_over_at(&self) -> Option<Micros> {
        self.took_over_at
    }
}
