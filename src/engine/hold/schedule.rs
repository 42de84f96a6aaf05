//! When the keeper looks at which hold: one entry a hold, ordered by time.
//!
//! 1. An entry only ever moves to an earlier time while it is there. So what the keeper plans does not overwrite the
//!    deadline that a caller sets at the same time. A look that comes too early does no harm.
//! 2. A caller changes the hold's state before it asks for a look. So it may rely on an entry that is early enough
//!    without taking the lock: if the keeper takes the entry out at this moment, it reads the state afterwards.
//! 3. A new entry wakes the keeper only if it comes before the keeper's next planned look. So a tight loop of lock and
//!    unlock does not wake the keeper's thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::engine::hold::Hold;

/// All holds that the keeper looks at later.
#[derive(Default)]
pub(crate) struct Schedule {
    inner: Mutex<Looks>,
}

struct Looks {
    looks: BTreeMap<(Moment, u64), Arc<Hold>>,
    /// When the keeper looks next if nobody wakes it.
    planned: Moment,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            looks: BTreeMap::new(),
            planned: Moment::NEVER,
        }
    }
}

impl Schedule {
    /// Plans a look at `hold` at `moment` or before. Returns whether the caller must wake the keeper for it.
    pub(crate) fn no_later_than(&self, hold: &Arc<Hold>, moment: Moment) -> bool {
        if look_at(hold) <= moment {
            return false;
        }
        let mut inner = self.inner.lock();
        // It may have moved to an earlier time before the lock was taken.
        look_at(hold) > moment && inner.put(hold, moment)
    }

    /// Removes the entry of `hold`. Takes no lock if there is none. An entry that is added at this very moment may stay: it
    /// costs one look.
    pub(crate) fn forget(&self, hold: &Hold) {
        if look_at(hold) == Moment::NEVER {
            return;
        }
        let mut inner = self.inner.lock();
        let key = (look_at(hold), hold.number);
        if inner.looks.remove(&key).is_some() {
            set_look_at(hold, Moment::NEVER);
        }
    }

    pub(crate) fn is_due(&self, now: Moment) -> bool {
        let inner = self.inner.lock();
        inner.looks.keys().next().is_some_and(|key| key.0 <= now)
    }

    /// Takes out all entries up to `due`, and fills up the last `batch` with entries up to `soon`.
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

    /// Plans the keeper's next look: when the first entry is due, but not after `latest`.
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

impl Looks {
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

/// Relaxed: only the schedule writes it, under its lock. A read without the lock may return an old time. If that is too
/// late, the caller takes the lock for nothing; if it is early enough, the keeper is taking the entry out just now, and
/// reads the hold's state afterwards (2: the state is changed before a look is asked for).
fn look_at(hold: &Hold) -> Moment {
    Moment::from_nanos(hold.look_at.load(Ordering::Relaxed))
}

fn set_look_at(hold: &Hold, moment: Moment) {
    hold.look_at.store(moment.as_nanos(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::made_tests::hold;

    fn at(ms: u64) -> Moment {
        Moment::default() + Duration::from_millis(ms)
    }

    fn numbers(taken: &[Arc<Hold>]) -> Vec<u64> {
        taken.iter().map(|hold| hold.number).collect()
    }

    #[test]
    fn the_keeper_is_only_woken_for_what_comes_before_its_next_look() {
        let schedule = Schedule::default();
        assert!(schedule.is_empty());
        assert!(
            schedule.no_later_than(&hold(1), at(50)),
            "it sleeps for ever"
        );
        assert!(
            !schedule.no_later_than(&hold(2), at(50)),
            "it wakes up then"
        );
        assert!(schedule.no_later_than(&hold(3), at(40)));
        assert!(!schedule.is_empty());
        assert_eq!(schedule.plan(at(45)), at(40), "the first entry");
        assert_eq!(schedule.plan(at(30)), at(30), "it looks before");
        assert!(!schedule.no_later_than(&hold(4), at(35)));
        assert!(!schedule.no_later_than(&hold(5), at(30)));
        assert!(schedule.no_later_than(&hold(6), at(29)));
    }

    #[test]
    fn an_entry_only_moves_forward() {
        let schedule = Schedule::default();
        let one = hold(1);
        schedule.no_later_than(&one, at(50));
        for later in [50, 51] {
            assert!(!schedule.no_later_than(&one, at(later)));
            assert_eq!(look_at(&one), at(50));
        }
        schedule.no_later_than(&one, at(20));
        assert!(schedule.is_due(at(20)) && !schedule.is_due(at(19)));
        assert_eq!(numbers(&schedule.take(at(100), at(100), 100)), [1], "once");
        assert!(schedule.is_empty());
        assert_eq!(schedule.plan(at(99)), at(99), "it has no entry any more");
        assert!(
            schedule.no_later_than(&one, at(98)),
            "and may get one again"
        );
        assert_eq!(numbers(&schedule.take(at(98), at(98), 100)), [1]);
    }

    #[test]
    fn what_is_forgotten_is_not_looked_at() {
        let schedule = Schedule::default();
        let (one, other) = (hold(1), hold(2));
        schedule.no_later_than(&one, at(10));
        schedule.no_later_than(&other, at(10));
        schedule.forget(&one);
        assert_eq!(look_at(&one), Moment::NEVER);
        schedule.forget(&one);
        assert_eq!(numbers(&schedule.take(at(10), at(10), 100)), [2]);
        schedule.no_later_than(&one, at(30));
        assert_eq!(numbers(&schedule.take(at(30), at(30), 100)), [1]);
    }

    #[test]
    fn what_comes_up_soon_fills_up_the_last_batch_and_begins_none() {
        let filled = |due: u64, soon: u64| {
            let schedule = Schedule::default();
            for number in 1..=9 {
                schedule.no_later_than(&hold(number), at(number * 10));
            }
            schedule.take(at(due), at(soon), 3).len()
        };
        assert_eq!(filled(5, 90), 0, "nothing is due");
        assert_eq!(filled(10, 90), 3);
        assert_eq!(filled(30, 90), 3, "the batch is full");
        assert_eq!(filled(40, 90), 6);
        assert_eq!(filled(40, 50), 5, "the others are not up soon");
        assert_eq!(filled(40, 49), 4);
        assert_eq!(filled(90, 90), 9);
    }
}
