//! When the keeper looks at which hold: deadline-ordered, one entry a hold.
//!
//! An entry only ever moves forward while it is there: a deadline that a caller sets is not lost to what the
//! keeper plans at the same time. To look too early costs a look.
//!
//! Whoever asks for a look has changed the hold's state before. So an entry that is early enough can be
//! relied on without the lock: if the keeper takes it out at this moment, it reads the state afterwards.
//!
//! A new entry wakes the keeper only if it comes before its next planned look, so that a tight loop of
//! lock and unlock costs no thread wake-ups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::hold::Hold;
use crate::clock::Moment;

#[derive(Default)]
pub(crate) struct Schedule {
    inner: Mutex<Inner>,
}

struct Inner {
    looks: BTreeMap<(Moment, u64), Arc<Hold>>,
    /// When the keeper looks next without being woken.
    planned: Moment,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            looks: BTreeMap::new(),
            planned: Moment::NEVER,
        }
    }
}

impl Schedule {
    /// Looks at `hold` at `moment`, or before. Whether the keeper must be woken for it.
    pub(crate) fn no_later_than(&self, hold: &Arc<Hold>, moment: Moment) -> bool {
        if look_at(hold) <= moment {
            return false;
        }
        let mut inner = self.inner.lock();
        // It may have moved forward since.
        look_at(hold) > moment && inner.put(hold, moment)
    }

    /// Looks at `hold` no more.
    pub(crate) fn forget(&self, hold: &Hold) {
        let mut inner = self.inner.lock();
        let key = (look_at(hold), hold.number);
        if inner.looks.remove(&key).is_some() {
            set_look_at(hold, Moment::NEVER);
        }
    }

    /// Whether something is to be looked at now.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        let inner = self.inner.lock();
        inner.looks.keys().next().is_some_and(|key| key.0 <= now)
    }

    /// Takes out what is to be looked at up to `due`; and what comes up to `soon`, as far as it fills up the
    /// last `batch`.
    pub(crate) fn take(&self, due: Moment, soon: Moment, batch: usize) -> Vec<Arc<Hold>> {
        let mut inner = self.inner.lock();
        let mut taken = Vec::new();
        while let Some(first) = inner.looks.first_entry() {
            let moment = first.key().0;
            let fills_up = moment <= soon && !taken.len().is_multiple_of(batch);
            if moment > due && !fills_up {
                break;
            }
            let hold = first.remove();
            set_look_at(&hold, Moment::NEVER);
            taken.push(hold);
        }
        taken
    }

    /// The keeper plans its next look: at `latest`, or when the first entry is due.
    pub(crate) fn plan(&self, latest: Moment) -> Moment {
        let mut inner = self.inner.lock();
        let first = inner.looks.keys().next().map_or(Moment::NEVER, |key| key.0);
        inner.planned = first.min(latest);
        inner.planned
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inner.lock().looks.is_empty()
    }
}

impl Inner {
    fn put(&mut self, hold: &Arc<Hold>, moment: Moment) -> bool {
        let before = look_at(hold);
        if before != Moment::NEVER {
            self.looks.remove(&(before, hold.number));
        }
        self.looks.insert((moment, hold.number), Arc::clone(hold));
        set_look_at(hold, moment);
        let wake = moment < self.planned;
        if wake {
            self.planned = moment;
        }
        wake
    }
}

/// Only written under the schedule's lock. Read without it, it may be too old: then the lock is taken for nothing,
/// or, as the head of this file says, the keeper is just taking the entry out.
fn look_at(hold: &Hold) -> Moment {
    Moment::from_nanos(hold.look_at.load(Ordering::Relaxed))
}

fn set_look_at(hold: &Hold, moment: Moment) {
    hold.look_at.store(moment.as_nanos(), Ordering::Relaxed);
}
