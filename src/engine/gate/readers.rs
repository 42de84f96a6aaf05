//! Who may read the shared hold in a gate's seat, and how reads begin and end.
//!
//! 1. A caller reads without asking Redis while the lease of the shared hold covers what it needs, and Redis said a
//!    moment ago that no writer waits. Otherwise one caller asks, for itself and for all that come meanwhile.
//! 2. No reader overtakes a writer of this client.
//! 3. Each level of a reader is a read of its own, which ends at its own lease. A writer has one read, with the levels of
//!    any hold.

use std::sync::Arc;

use super::answers::{GivenBack, Grant};
use super::seat::Seat;
use super::shared_hold::SharedHold;
use super::ticket::{Request, Ticket, Verdict};
use crate::clock::Moment;
use crate::engine::gate::Gate;
use crate::engine::hold::state::{HoldState, Left, Level, Phase};
use crate::engine::hold::{Effects, Hold, Origin, Rules, TaskId};
use crate::error::LostReason;
use crate::lease::Term;

/// Who may read.
impl<C: Clone + PartialEq> Gate<C> {
    /// Whether `ticket` may read the hold in the seat if Redis agrees (2).
    pub(super) fn may_read(&self, ticket: &Ticket, now: Moment) -> bool {
        let Seat::Shared { shared, .. } = &self.seat else {
            return false;
        };
        let reads = ticket.request.kind.commands.is_shared() && !shared.is_exclusive();
        let writer = self.queue.first_writer();
        reads && shared.is_valid(now) && writer.is_none_or(|first| first.number > ticket.number)
    }

    /// Whether the first waiter may read the hold in the seat.
    pub(super) fn head_may_read(&self, now: Moment) -> bool {
        let head = self.queue.head();
        head.is_some_and(|head| self.may_read(head, now))
    }

    /// Gives `ticket` a read without asking Redis, if it may have one (1).
    pub(super) fn read_without_asking(
        &mut self,
        ticket: &Arc<Ticket>,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        let (now, rules) = (effects.now, effects.rules);
        let Seat::Shared { shared, .. } = &self.seat else {
            return None;
        };
        let term = ticket.request.lease.term(now);
        let open = shared.is_open(now) && self.may_read(ticket, now);
        let read = open && self.covers(ticket, term, now, rules);
        read.then(|| self.add_read(ticket, term, effects))?
    }

    fn covers(&self, ticket: &Ticket, term: Term, now: Moment, rules: Rules) -> bool {
        let level = ticket.request.level;
        let held = self.seat.held();
        held.is_some_and(|hold| {
            hold.with(|state| state.covers(level, term, rules.watchdog_lease, now))
        })
    }

    /// A command that was sent at `sent_at` was granted to a reader, so every reader ahead of the first writer that
    /// still waits gets a read. Each lease counts from then, or from the arrival of its reader if that was later. A reader
    /// whose lease would outlast the grant asks for itself.
    fn admit_readers(&mut self, sent_at: Moment, effects: &mut Effects) {
        let (now, rules) = (effects.now, effects.rules);
        self.conclude_late_non_readers(effects);
        let mut last = 0;
        while let Some(ticket) = self.queue.next_reader(last).cloned() {
            last = ticket.number;
            if !self.may_read(&ticket, now) {
                return;
            }
            let term = ticket.request.lease.term(sent_at.max(ticket.request.since));
            if !self.covers(&ticket, term, now, rules) {
                self.try_at_once = true;
                continue;
            }
            self.queue.remove(ticket.number);
            let Some(read) = self.add_read(&ticket, term, effects) else {
                self.queue.insert(ticket);
                return;
            };
            self.deliver(&ticket, read, effects);
        }
    }

    /// Concludes the tickets whose wait is over and that may not read the hold in the seat. Readers ask for themselves.
    fn conclude_late_non_readers(&mut self, effects: &mut Effects) {
        let now = effects.now;
        let mut may_ask = Vec::new();
        while let Some(ticket) = self.queue.take_late(now) {
            if self.may_read(&ticket, now) {
                may_ask.push(ticket);
            } else {
                self.conclude(&ticket, Verdict::Busy(None), effects);
            }
        }
        self.try_at_once |= !may_ask.is_empty();
        for ticket in may_ask {
            self.queue.insert(ticket);
        }
    }

    /// The shared hold `hold` is over: the ticket of a join that is under way waits with the others.
    pub(super) fn requeue_join(&mut self, hold: &Arc<Hold>) {
        if let Seat::Shared { shared, join } = &mut self.seat
            && Arc::ptr_eq(shared.hold(), hold)
            && let Some(join) = join.take()
        {
            self.discarded.push(join.command);
            if join.ticket.is_waiting() {
                self.queue.insert(join.ticket);
            }
        }
    }

    /// `hold` was granted to `ticket`: it has the seat, the ticket gets its first read, and other readers get theirs.
    pub(super) fn grant_reads(
        &mut self,
        hold: &Arc<Hold>,
        ticket: &Arc<Ticket>,
        grant: Grant,
        effects: &mut Effects,
    ) {
        let request = &ticket.request;
        let term = request.lease.term(grant.sent_at);
        let read = Hold::read(hold, ticket.origin(&hold.id), request.level, term);
        let mut shared = SharedHold::new(Arc::clone(hold), !request.kind.commands.is_shared());
        shared.begin(&read, effects);
        shared.set_open(grant.reply, grant.sent_at);
        self.seat = Seat::Shared { shared, join: None };
        effects.look(&read);
        self.owner_holds(request.owner.as_ref(), &read, effects);
        if request.kind.commands.is_writer() {
            // The grant removed the note.
            self.writer_waits = None;
        }
        self.deliver(ticket, read, effects);
        self.admit_readers(grant.sent_at, effects);
    }

    pub(super) fn join_granted(
        &mut self,
        ticket: &Arc<Ticket>,
        grant: Grant,
        effects: &mut Effects,
    ) {
        let now = effects.now;
        let term = ticket.request.lease.term(grant.sent_at);
        if let Seat::Shared { shared, .. } = &mut self.seat {
            effects.change(shared.hold(), |state| state.prolong(term, now));
            shared.set_open(grant.reply, grant.sent_at);
        }
        if ticket.is_waiting() {
            let reads = self.may_read(ticket, now);
            match reads.then(|| self.add_read(ticket, term, effects)) {
                Some(Some(read)) => self.deliver(ticket, read, effects),
                // The answer came too late.
                _ => self.queue.insert(Arc::clone(ticket)),
            }
        }
        self.admit_readers(grant.sent_at, effects);
    }

    /// A join was refused because a writer waits elsewhere, so the next reader asks, too.
    pub(super) fn join_refused(&mut self) {
        if let Seat::Shared { shared, .. } = &mut self.seat {
            shared.shut();
        }
    }
}

/// How reads begin, change and end.
impl<C: Clone + PartialEq> Gate<C> {
    /// Gives `ticket` a read of the hold in the seat, unless that is over.
    fn add_read(
        &mut self,
        ticket: &Arc<Ticket>,
        term: Term,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        let Seat::Shared { shared, .. } = &mut self.seat else {
            return None;
        };
        let (request, hold) = (&ticket.request, Arc::clone(shared.hold()));
        let origin = ticket.origin(&hold.id);
        self.add(&hold, request, origin, term, effects)
    }

    fn add(
        &mut self,
        hold: &Arc<Hold>,
        request: &Request,
        origin: Origin,
        term: Term,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        let shared = self.seat.shared_hold(hold)?;
        let read = Hold::read(hold, origin, request.level, term);
        if !shared.add(&read, effects) {
            return None;
        }
        effects.look(&read);
        effects.look(hold);
        self.owner_holds(request.owner.as_ref(), &read, effects);
        Some(read)
    }

    /// Adds a level to `read`, which is a writer's: as [`HoldState::enter`]. Its count is not written to Redis yet.
    pub(crate) fn enter_read(
        &mut self,
        read: &Arc<Hold>,
        level: Level,
        effects: &mut Effects,
    ) -> Result<Option<u32>, LostReason> {
        let now = effects.now;
        let hold = read.in_redis();
        effects.change(hold, |state| state.expire(now));
        let count = effects.change(read, |state| state.enter(level, now))?;
        if let Some(shared) = self.seat.shared_hold(hold) {
            shared.sync(read, effects);
        }
        effects.look(hold);
        Ok(count)
    }

    /// One more read of the shared hold for the holder of `read`. `None` if either is over.
    pub(crate) fn read_beside(
        &mut self,
        read: &Arc<Hold>,
        request: &Request,
        number: u64,
        term: Term,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        let hold = read.in_redis();
        if !self.seat.shared_hold(hold)?.has(read) {
            return None;
        }
        let now = effects.now;
        let held = effects.change(read, |state| {
            state.expire(now);
            state.phase() == Phase::Held
        });
        let mut origin = request.origin(&hold.id, number, read.task());
        if read.kind.commands.is_shared() {
            origin.entered_by = read.entered_by;
        }
        held.then(|| self.add(hold, request, origin, term, effects))?
    }

    /// Gives a level of `read` back. Returns `None` if that was the last level of the last read.
    pub(super) fn leave_read(
        &mut self,
        read: &Arc<Hold>,
        level: Level,
        effects: &mut Effects,
    ) -> Option<GivenBack<C>> {
        let (now, finish_by) = (effects.now, effects.finish_by());
        let hold = read.in_redis();
        let (valid_until, ends) = effects.change(hold, |state| {
            state.expire(now);
            (state.valid_until(), state.lease_ends())
        });
        let left = effects.change(read, |state| {
            state.carried_to(valid_until, ends);
            state.leave(level, now, finish_by)
        });
        match (left, self.seat.shared_hold(hold)) {
            (Left::Lost(reason), _) => Some(GivenBack::Lost(reason)),
            (_, None) => {
                let reason = hold.lost_reason(now).unwrap_or(LostReason::Missing);
                Some(GivenBack::Lost(reason))
            }
            (Left::Levels(count), Some(shared)) => {
                shared.sync(read, effects);
                effects.look(read);
                Some(GivenBack::Levels(count))
            }
            (Left::Last, Some(_)) => self.end_read(read, effects),
        }
    }

    /// `read` is over. Returns `None` if it was the last one.
    fn end_read(&mut self, read: &Arc<Hold>, effects: &mut Effects) -> Option<GivenBack<C>> {
        let hold = read.in_redis();
        let shared = self.seat.shared_hold(hold);
        let left = shared.and_then(|shared| shared.remove(read, effects));
        match left {
            Some(Left::Last) => {
                self.requeue_join(hold);
                // What is left here are reads that ended before their callers took them.
                self.uncollected.clear();
                None
            }
            Some(Left::Lost(reason)) => Some(GivenBack::Lost(reason)),
            Some(Left::Levels(_)) if read.kind.commands.is_writer() => Some(GivenBack::Downgrade),
            Some(Left::Levels(_)) | None => Some(GivenBack::ReadEnded),
        }
    }

    /// The leases of `read` ended while its shared hold goes on. The last read ends the shared hold, whose release waits
    /// for as long as that read was promised the lock; so does the downgrade behind a writer's. Returns false if the read
    /// ended before.
    pub(crate) fn expire_read(&mut self, read: &Arc<Hold>, effects: &mut Effects) -> bool {
        let hold = read.in_redis();
        let shared = self.seat.shared_hold(hold);
        let Some(shared) = shared.filter(|shared| shared.has(read)) else {
            return false;
        };
        let end = effects.change(read, |state| state.lease_ends());
        if shared.has_one_read() {
            effects.change(hold, |state| {
                state.owe(end);
                state.lose(LostReason::Expired)
            });
            self.vacate(hold);
            effects.release(hold);
            return true;
        }
        match self.end_read(read, effects) {
            Some(GivenBack::Downgrade) => effects.downgrade_at(hold, end),
            // It is lost, and reported, with the others.
            Some(GivenBack::Lost(_)) => return false,
            _ => {}
        }
        true
    }

    /// Leaves a read with one fixed level to its lease: it has no holder any more, and still keeps writers out. If a writer
    /// has the read, the shared hold is left to its lease with it. Returns false if there are other levels, or other reads
    /// beside a writer's.
    pub(crate) fn leave_behind(
        &mut self,
        read: &Arc<Hold>,
        number: u64,
        effects: &mut Effects,
    ) -> bool {
        let now = effects.now;
        let hold = read.in_redis();
        let shared = self.seat.shared_hold(hold);
        let Some(shared) = shared.filter(|shared| shared.has(read)) else {
            return false;
        };
        if read.kind.commands.is_writer() {
            return shared.has_one_read()
                && effects.change(read, |state| state.let_expire(Level::Fixed))
                && effects.change(hold, |state| state.let_expire(Level::Fixed));
        }
        let ends_at = effects.change(read, |state| state.lease_ends());
        // Nobody relies on it, so it lasts to the end of its lease.
        let term = Term {
            sent_at: now,
            valid_until: ends_at,
            ends_at,
        };
        let origin = Origin {
            kind: read.kind.clone(),
            id: read.id.clone(),
            number,
            lease: read.lease,
            owner: None,
            entered_by: number,
            task: TaskId::default(),
        };
        if !effects.change(read, |state| state.let_expire(Level::Fixed)) {
            return false;
        }
        let left = Hold::abandoned_read(hold, origin, term);
        if shared.add(&left, effects) {
            shared.remove(read, effects);
            effects.look(&left);
        }
        true
    }

    /// The client ends. Leaves a shared hold that nobody here holds any more to its lease in Redis. Not before it is
    /// downgraded, or others could not read; and whoever finds a loss cleans up after it.
    pub(crate) fn leave_abandoned_reads(&mut self, effects: &mut Effects) {
        let Seat::Shared { shared, .. } = &self.seat else {
            return;
        };
        let is_ours = !shared.is_exclusive() && shared.hold().phase() == Phase::Held;
        if is_ours && shared.reads().all(|read| read.is_abandoned) {
            let hold = Arc::clone(shared.hold());
            effects.change(&hold, |state| state.end(Ok(())));
            self.vacate(&hold);
        }
    }

    /// Redis downgraded `hold`, by a command that was sent at `sent_at`.
    pub(crate) fn downgraded(&mut self, hold: &Arc<Hold>, sent_at: Moment, effects: &mut Effects) {
        let rules = effects.rules;
        let shared = self.seat.shared_hold(hold);
        if let Some(shared) = shared.filter(|shared| shared.is_exclusive()) {
            let assure = |state: &mut HoldState| state.assure(rules.watchdog_lease, sent_at);
            shared.downgrade(assure, effects);
            effects.look(hold);
            self.try_at_once = true;
            self.notify_job();
        }
    }

    /// How many levels the holder of `hold` has.
    pub(crate) fn levels_of(&self, hold: &Hold, now: Moment) -> u32 {
        let valid = self.reads().filter(|read| now < read.valid_until());
        let levels = valid.filter(|read| read.is_level_with(hold)).count();
        // `hold` is not among them if it is over.
        u32::try_from(levels).map_or(u32::MAX, |levels| levels.max(hold.count()))
    }

    /// The reads of `hold`, which is lost with all of them.
    pub(crate) fn reads_of(&mut self, hold: &Arc<Hold>) -> Vec<Arc<Hold>> {
        let shared = self.seat.shared_hold(hold);
        shared.map_or_else(Vec::new, |shared| shared.reads().cloned().collect())
    }

    /// All reads of the hold in the seat.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &Arc<Hold>> {
        let shared = match &self.seat {
            Seat::Shared { shared, .. } => Some(shared),
            _ => None,
        };
        shared.into_iter().flat_map(SharedHold::reads)
    }
}

#[cfg(test)]
#[path = "readers_tests.rs"]
mod tests;
