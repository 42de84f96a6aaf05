//! A joint hold: the one hold in Redis that several callers of this client have shares of.
//!
//! 1. It has a level for each share, kept alive by the watchdog if and only if the share is. So it is renewed while
//!    some share needs that, and ends with the last.
//! 2. Shares come, go and change under the gate's lock only.
//! 3. An exclusive one has shares of one owner; those who share it otherwise wait until it is turned.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::ticket::Ticket;
use crate::clock::Moment;
use crate::engine::hold::Hold;
use crate::engine::hold::effects::Effects;
use crate::engine::hold::state::{HoldState, Left, Level};

/// For how long after an answer that nobody waits to have it alone others may enter without asking.
const OPEN: Duration = Duration::from_millis(50);

pub(crate) struct Joint {
    pub(crate) hold: Arc<Hold>,
    pub(crate) exclusive: bool,
    shares: BTreeMap<u64, Share>,
    /// Who was granted a share, and when, until they took it.
    uncollected: VecDeque<(Arc<Ticket>, Moment)>,
    /// Just before the command was sent that was answered that nobody waits to have it alone.
    asked: Moment,
}

struct Share {
    hold: Arc<Hold>,
    /// What it has of the joint hold.
    level: Level,
}

fn level(share: &Arc<Hold>, effects: &mut Effects) -> Level {
    if effects.change(share, |state| state.is_watched()) {
        Level::Watchdog
    } else {
        Level::Fixed
    }
}

impl Joint {
    /// `hold` was granted, with the level of its first share.
    pub(crate) fn new(hold: Arc<Hold>, exclusive: bool) -> Self {
        Self {
            hold,
            exclusive,
            shares: BTreeMap::new(),
            uncollected: VecDeque::new(),
            asked: Moment::default(),
        }
    }

    /// The first share, whose level the joint hold has by its grant.
    pub(crate) fn begin(&mut self, share: &Arc<Hold>, effects: &mut Effects) {
        let level = level(share, effects);
        let hold = Arc::clone(share);
        self.shares.insert(share.number, Share { hold, level });
    }

    /// One share more. False when the joint hold is over.
    pub(crate) fn add(&mut self, share: &Arc<Hold>, now: Moment, effects: &mut Effects) -> bool {
        let level = level(share, effects);
        let entered = effects.change(&self.hold, |state| state.enter(level, now));
        if entered.is_ok() {
            self.begin(share, effects);
        }
        entered.is_ok()
    }

    /// The levels of `share` changed: by 1 so may what it has of the joint hold.
    pub(crate) fn sync(&mut self, share: &Arc<Hold>, now: Moment, effects: &mut Effects) {
        let wanted = level(share, effects);
        let Some(entry) = self.shares.get_mut(&share.number) else {
            return;
        };
        if entry.level != wanted {
            let before = std::mem::replace(&mut entry.level, wanted);
            effects.change(&self.hold, |state| {
                // One that is over has no levels to keep.
                if state.enter(wanted, now).is_ok() {
                    state.leave(before, now, now);
                }
            });
        }
    }

    /// One share less. What that leaves of the joint hold; a last release is overdue at `finish_by`.
    pub(crate) fn remove(
        &mut self,
        share: &Arc<Hold>,
        now: Moment,
        finish_by: Moment,
        effects: &mut Effects,
    ) -> Option<Left> {
        let Share { level, .. } = self.shares.remove(&share.number)?;
        Some(effects.change(&self.hold, |state| state.leave(level, now, finish_by)))
    }

    pub(crate) fn shares(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.shares.values().map(|share| &share.hold)
    }

    pub(crate) fn has(&self, share: &Hold) -> bool {
        self.shares.contains_key(&share.number)
    }

    /// Whether one share is all there is.
    pub(crate) fn is_single(&self) -> bool {
        self.shares.len() == 1
    }

    /// Whether it is held at `now`.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        now < self.hold.valid_until()
    }

    /// The answer to a command that was sent at `sent_at`: whether others may enter without asking.
    pub(crate) fn opened(&mut self, sent_at: Moment, open: bool) {
        self.asked = if open {
            self.asked.max(sent_at)
        } else {
            Moment::default()
        };
    }

    pub(crate) fn is_open(&self, now: Moment) -> bool {
        now < self.asked + OPEN
    }

    /// Somebody must see to it that `ticket` takes its share.
    pub(crate) fn await_collection(&mut self, ticket: &Arc<Ticket>, now: Moment) {
        self.uncollected.push_back((Arc::clone(ticket), now));
    }

    /// The one who was granted a share first and did not take it, and when that was.
    pub(crate) fn uncollected(&mut self) -> Option<(&Arc<Ticket>, Moment)> {
        while let Some((ticket, _)) = self.uncollected.front()
            && !ticket.is_decided()
        {
            self.uncollected.pop_front();
        }
        let first = self.uncollected.front();
        first.map(|(ticket, since)| (ticket, *since))
    }

    /// Who was granted a share and did not take it yet.
    #[cfg(test)]
    pub(crate) fn lying(&self) -> impl Iterator<Item = &Arc<Ticket>> {
        let tickets = self.uncollected.iter().map(|(ticket, _)| ticket);
        tickets.filter(|ticket| ticket.is_decided())
    }

    /// The share that nobody took since `moment`, or before. It counts as collected from now on.
    pub(crate) fn take_uncollected(&mut self, moment: Moment) -> Option<Arc<Ticket>> {
        let (_, since) = self.uncollected.front()?;
        if *since > moment {
            return None;
        }
        let (ticket, _) = self.uncollected.pop_front()?;
        Some(ticket)
    }

    /// It is exclusive no more: strangers of its kind may be beside it from now on.
    pub(crate) fn turned(&mut self, change: impl FnOnce(&mut HoldState), effects: &mut Effects) {
        self.exclusive = false;
        effects.change(&self.hold, change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::made_tests::{LEASE, origin};

    /// The keeper may look at one more than once, and whoever is left is not that one.
    #[test]
    fn a_share_that_left_is_none_of_those_that_are_there() {
        let (now, mut effects) = (Moment::from_nanos(1_000), Effects::default());
        let term = LEASE.term(now);
        let hold = Hold::trying(origin(1), Moment::NEVER);
        assert!(hold.with(|state| state.grant(Level::Watchdog, term, now)));
        let shares = [2, 3].map(|number| Hold::read(&hold, origin(number), Level::Watchdog, term));
        let mut joint = Joint::new(hold, false);
        joint.begin(&shares[0], &mut effects);
        assert!(joint.add(&shares[1], now, &mut effects));
        assert!(joint.has(&shares[0]) && joint.has(&shares[1]) && !joint.is_single());
        joint.remove(&shares[0], now, now, &mut effects);
        assert!(!joint.has(&shares[0]) && joint.has(&shares[1]) && joint.is_single());
        let _ = effects.carry_out();
    }
}
