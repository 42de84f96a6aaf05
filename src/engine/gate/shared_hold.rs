//! A shared hold: the one hold in Redis that several callers of this client have reads of.
//!
//! 1. It has a level for each read, and the watchdog keeps that level if it keeps the read. So the shared hold is renewed
//!    while some read needs that, and ends with the last read.
//! 2. Reads come, go and change only under the gate's lock.
//! 3. An exclusive one, a writer's, has reads of one owner. Other readers wait until it is downgraded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::hold::state::{HoldState, Left, Level};
use crate::engine::hold::{Effects, Hold};
use crate::script::Reply;

/// For how long after the answer "no writer waits" others may read without asking.
const OPEN_FOR: Duration = Duration::from_millis(50);

pub(super) struct SharedHold {
    hold: Arc<Hold>,
    exclusive: bool,
    /// The reads by number, each with its level of the shared hold.
    reads: BTreeMap<u64, (Arc<Hold>, Level)>,
    /// Just before the command was sent that was answered "no writer waits".
    no_writer_at: Moment,
}

fn level(read: &Arc<Hold>, effects: &mut Effects) -> Level {
    if effects.change(read, |state| state.is_watched()) {
        Level::Watchdog
    } else {
        Level::Fixed
    }
}

impl SharedHold {
    /// `hold` was granted, with the level of its first read.
    pub(super) fn new(hold: Arc<Hold>, exclusive: bool) -> Self {
        Self {
            hold,
            exclusive,
            reads: BTreeMap::new(),
            no_writer_at: Moment::default(),
        }
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Adds the first read. The shared hold has its level already.
    pub(super) fn begin(&mut self, read: &Arc<Hold>, effects: &mut Effects) {
        let level = level(read, effects);
        self.reads.insert(read.number, (Arc::clone(read), level));
        effects.begins(read);
    }

    /// Adds a read. Returns false if the shared hold is over.
    pub(super) fn add(&mut self, read: &Arc<Hold>, effects: &mut Effects) -> bool {
        let now = effects.now;
        let level = level(read, effects);
        let entered = effects.change(&self.hold, |state| state.enter(level, now));
        let is_in = matches!(entered, Ok(Some(_)));
        if is_in {
            self.begin(read, effects);
        }
        is_in
    }

    /// Adapts the level of `read`, whose own levels changed (1).
    pub(super) fn sync(&mut self, read: &Arc<Hold>, effects: &mut Effects) {
        let now = effects.now;
        let wanted = level(read, effects);
        let Some((_, level)) = self.reads.get_mut(&read.number) else {
            return;
        };
        if *level != wanted {
            let before = std::mem::replace(level, wanted);
            effects.change(&self.hold, |state| {
                if matches!(state.enter(wanted, now), Ok(Some(_))) {
                    state.leave(before, now, now);
                }
            });
        }
    }

    /// Removes a read. Returns what is left of the shared hold; its last release is overdue at a command time-out from now.
    pub(super) fn remove(&mut self, read: &Arc<Hold>, effects: &mut Effects) -> Option<Left> {
        let now = effects.now;
        let (_, level) = self.reads.remove(&read.number)?;
        let finish_by = effects.finish_by();
        let left = effects.change(&self.hold, |state| state.leave(level, now, finish_by));
        if matches!(left, Left::Lost(_)) {
            // It is lost with the others.
            self.reads.insert(read.number, (Arc::clone(read), level));
        }
        Some(left)
    }

    pub(super) fn reads(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.reads.values().map(|(read, _)| read)
    }

    pub(super) fn has(&self, read: &Hold) -> bool {
        self.reads.contains_key(&read.number)
    }

    pub(super) fn has_one_read(&self) -> bool {
        self.reads.len() == 1
    }

    pub(super) fn is_valid(&self, now: Moment) -> bool {
        now < self.hold.valid_until()
    }

    /// A command that was sent at `sent_at` was granted. If no writer waits, others may read without asking.
    pub(super) fn set_open(&mut self, reply: Reply, sent_at: Moment) {
        let is_open = self.hold.kind.commands.is_shared() && reply != Reply::WriterWaits;
        if is_open {
            self.no_writer_at = self.no_writer_at.max(sent_at);
        } else {
            self.shut();
        }
    }

    /// A writer waits.
    pub(super) fn shut(&mut self) {
        self.no_writer_at = Moment::default();
    }

    pub(super) fn is_open(&self, now: Moment) -> bool {
        now < self.no_writer_at + OPEN_FOR
    }

    /// From now on strangers may share it.
    pub(super) fn downgrade(&mut self, change: impl FnOnce(&mut HoldState), effects: &mut Effects) {
        self.exclusive = false;
        effects.change(&self.hold, change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::made_tests::{LEASE, RULES, origin};
    use crate::error::LostReason;

    /// A hold with two reads, at `now`.
    fn shared(now: Moment, effects: &mut Effects) -> (SharedHold, [Arc<Hold>; 2]) {
        let term = LEASE.term(now);
        let hold = Hold::trying(origin(1), Moment::NEVER);
        assert!(hold.with(|state| state.grant(Level::Watchdog, term, now)));
        let reads = [2, 3].map(|number| Hold::read(&hold, origin(number), Level::Watchdog, term));
        let mut shared = SharedHold::new(hold, false);
        shared.begin(&reads[0], effects);
        assert!(shared.add(&reads[1], effects));
        (shared, reads)
    }

    /// The keeper may look at a read more than once.
    #[test]
    fn a_read_that_left_is_not_among_the_reads() {
        let now = Moment::from_nanos(1_000);
        let mut effects = Effects::at(now, RULES);
        let (mut shared, reads) = shared(now, &mut effects);
        assert!(shared.has(&reads[0]) && shared.has(&reads[1]) && !shared.has_one_read());
        shared.remove(&reads[0], &mut effects);
        assert!(!shared.has(&reads[0]) && shared.has(&reads[1]) && shared.has_one_read());
        let _ = effects.carry_out();
    }

    /// Whoever found the loss reports it for all reads that are there.
    #[test]
    fn a_read_that_leaves_a_lost_hold_is_lost_with_the_others() {
        let now = Moment::from_nanos(1_000);
        let mut effects = Effects::at(now, RULES);
        let (mut shared, reads) = shared(now, &mut effects);
        assert!(shared.hold().with(|state| state.lose(LostReason::Missing)));
        let left = shared.remove(&reads[0], &mut effects);
        assert!(matches!(left, Some(Left::Lost(LostReason::Missing))));
        assert!(shared.reads().count() == 2 && shared.has(&reads[0]));
        let _ = effects.carry_out();
    }
}
