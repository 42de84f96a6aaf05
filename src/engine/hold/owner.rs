//! What one owner holds: its holds by name, for re-entry, and the levels that its handles give back.
//!
//! An owner may have a hold with the lock to itself and, beside it, reads of a shared hold of the same name. A guard
//! gives its own level back; a *detached* level has no guard, and its handle gives it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::state::{Level, Phase};
use crate::clock::Moment;
use crate::engine::hold::Hold;
use crate::error::LostReason;
use crate::names::{ByNames, Names};

/// One owner's holds by name.
pub(crate) struct OwnerState {
    /// Unique among the owners of this process.
    pub(crate) number: u64,
    inner: Mutex<OwnerHolds>,
}

#[derive(Default)]
struct OwnerHolds {
    holds: ByNames<Holds>,
    /// Its reads of shared holds. A read may stand beside a hold in `holds` that came first.
    shared: ByNames<Holds>,
    /// Nobody is left to give detached levels back. Under the same lock as the levels, so that no level is detached
    /// after the end.
    ended: bool,
}

/// What an owner has on one name: one hold, or a read for each level. The one with the newest detached level is last
/// among those that have detached levels.
type Holds = SmallVec<[OwnerHold; 1]>;

struct OwnerHold {
    hold: Arc<Hold>,
    /// Levels that the handle gives back, the newest last.
    detached: Vec<Level>,
}

/// One level of a hold, and its owner. A guard wraps one.
#[derive(Clone)]
pub(crate) struct HeldLevel {
    pub(crate) hold: Arc<Hold>,
    pub(crate) level: Level,
    pub(crate) owner: Option<Arc<OwnerState>>,
    /// Whether nobody gave the level back yet.
    pub(crate) open: bool,
}

impl OwnerHolds {
    fn of(&mut self, shared: bool) -> &mut ByNames<Holds> {
        if shared {
            &mut self.shared
        } else {
            &mut self.holds
        }
    }

    /// All that the owner has on the name of `hold`, and the index of `hold` in it.
    fn place(&mut self, hold: &Arc<Hold>) -> Option<(&mut Holds, usize)> {
        let shared = hold.kind.commands.is_shared();
        let holds = self.of(shared).get_mut(&hold.kind.names)?;
        let place = holds
            .iter()
            .position(|held| Arc::ptr_eq(&held.hold, hold))?;
        Some((holds, place))
    }
}

impl OwnerState {
    pub(crate) fn new() -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            // Relaxed: the numbers only have to differ.
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            inner: Mutex::default(),
        })
    }

    /// What this owner has on `names`: its reads if `shared`, its exclusive hold otherwise. Of several reads, the newest if
    /// that is valid, for there may be thousands; else the one that is valid for longest. Fails if it lost what it had: a
    /// lost hold counts while guards of it are left.
    pub(crate) fn find(
        &self,
        names: &Names,
        shared: bool,
        now: Moment,
    ) -> Result<Option<Arc<Hold>>, LostReason> {
        let newest = {
            let mut inner = self.inner.lock();
            let newest = inner.of(shared).get(names).and_then(|holds| holds.last());
            newest.map(|held| Arc::clone(&held.hold))
        };
        if let Some(hold) = newest.filter(|hold| now < hold.valid_until()) {
            return Ok(Some(hold));
        }
        let holds: SmallVec<[_; 1]> = {
            let mut inner = self.inner.lock();
            let holds = inner.of(shared).get(names).into_iter().flatten();
            let holds = holds.map(|held| (Arc::clone(&held.hold), held.detached.len()));
            holds.collect()
        };
        // Not under the lock: the first to see a loss wakes the tasks that wait for it.
        let mut lost = None;
        for (hold, detached) in &holds {
            hold.lost_reason(now);
            let (phase, count) = hold.with(|state| (state.phase(), state.count()));
            if let Phase::Lost(reason) = phase
                && count as usize > *detached
            {
                lost = Some(reason);
            }
        }
        let live = holds.into_iter().map(|(hold, _)| hold);
        let live = live.filter(|hold| hold.phase() == Phase::Held);
        match (live.max_by_key(|hold| hold.valid_until()), lost) {
            (None, Some(reason)) => Err(reason),
            // Lost detached levels stay until a new hold comes, so that `unlock` can return that they are lost.
            (live, _) => Ok(live),
        }
    }

    /// Whether it has anything valid on `names`. Changes nothing and wakes nobody.
    pub(crate) fn has(&self, names: &Names, now: Moment) -> bool {
        let mut inner = self.inner.lock();
        [true, false].into_iter().any(|shared| {
            let mut holds = inner.of(shared).get(names).into_iter().flatten();
            holds.any(|held| now < held.hold.valid_until())
        })
    }

    pub(crate) fn insert(&self, hold: &Arc<Hold>) {
        let held = OwnerHold {
            hold: Arc::clone(hold),
            detached: Vec::new(),
        };
        let names = Arc::clone(&hold.kind.names);
        let shared = hold.kind.commands.is_shared();
        let mut inner = self.inner.lock();
        let holds = inner.of(shared).entry(names).or_default();
        let goes_on = |held: &OwnerHold| shared && held.hold.phase() == Phase::Held;
        if !holds.iter().any(goes_on) {
            // From now on only guards report lost levels: the handle gives back levels of the new hold.
            holds.retain(|held| shared && held.hold.count() as usize > held.detached.len());
        }
        holds.push(held);
    }

    /// Removes a hold that has no levels any more.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let mut inner = self.inner.lock();
        let Some((holds, place)) = inner.place(hold) else {
            return;
        };
        holds.remove(place);
        if holds.is_empty() {
            let shared = hold.kind.commands.is_shared();
            inner.of(shared).remove(&hold.kind.names);
        }
    }

    /// Leaves a level to the handle. Returns false if this owner has ended or does not have the hold.
    pub(crate) fn detach(&self, hold: &Arc<Hold>, level: Level) -> bool {
        let mut inner = self.inner.lock();
        if inner.ended {
            return false;
        }
        let Some((holds, place)) = inner.place(hold) else {
            return false;
        };
        holds[place].detached.push(level);
        holds[place..].rotate_left(1);
        true
    }

    /// Whether it has ended: no level can be detached any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.inner.lock().ended
    }

    /// Takes the newest detached level on `names`.
    pub(crate) fn take_detached(
        self: &Arc<Self>,
        names: &Names,
        shared: bool,
    ) -> Option<HeldLevel> {
        let mut inner = self.inner.lock();
        let mut holds = inner.of(shared).get_mut(names)?.iter_mut().rev();
        let (hold, level) = holds.find_map(|held| Some((&held.hold, held.detached.pop()?)))?;
        Some(self.entered(Arc::clone(hold), level))
    }

    fn entered(self: &Arc<Self>, hold: Arc<Hold>, level: Level) -> HeldLevel {
        HeldLevel {
            hold,
            level,
            owner: Some(Arc::clone(self)),
            open: true,
        }
    }

    /// Ends the owner: no level can be detached from now on. Returns the detached levels, for the caller to give back.
    pub(crate) fn end(self: &Arc<Self>) -> Vec<HeldLevel> {
        let mut inner = self.inner.lock();
        inner.ended = true;
        let OwnerHolds { holds, shared, .. } = &mut *inner;
        let held = shared.values_mut().chain(holds.values_mut()).flatten();
        let taken = held.flat_map(|held| {
            let hold = &held.hold;
            let levels = held.detached.drain(..);
            levels.map(|level| self.entered(Arc::clone(hold), level))
        });
        taken.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::hold::kind::{Commands, Kind, KindCommands, KindRules, Sharing};
    use crate::engine::hold::{Origin, TaskId};
    use crate::lease::LeaseMs;
    use crate::names::Family;

    const LEASE: LeaseMs = LeaseMs::from_millis(30_000);

    struct Test {
        shared: bool,
    }

    impl Commands for Test {
        fn rules(&self) -> KindRules {
            let sharing = if self.shared {
                Sharing::Reads
            } else {
                Sharing::Exclusive
            };
            KindRules {
                sharing,
                ..KindRules::DEFAULT
            }
        }
    }

    fn at(secs: u64) -> Moment {
        Moment::default() + Duration::from_secs(1_000 + secs)
    }

    /// Held from `at(0)` on, with one level.
    fn held(number: u64, shared: bool) -> Arc<Hold> {
        let names = Arc::new(Names::of(&Family::PLAIN, "", "x").unwrap());
        let commands: KindCommands = if shared {
            KindCommands::OfAll(&Test { shared: true })
        } else {
            KindCommands::OfAll(&Test { shared: false })
        };
        let origin = Origin {
            kind: Kind {
                names,
                commands,
                metrics: crate::report::LockMetrics::default(),
            },
            id: number.to_string().into(),
            number,
            lease: LEASE,
            owner: None,
            entered_by: number,
            task: TaskId::default(),
        };
        let hold = Hold::trying(origin, Moment::NEVER);
        assert!(hold.with(|state| state.grant(Level::Watchdog, LEASE.term(at(0)), at(0))));
        hold
    }

    fn lose(hold: &Hold) {
        assert!(hold.with(|state| state.lose(LostReason::Missing)));
    }

    #[test]
    fn what_is_given_back_is_forgotten() {
        for shared in [false, true] {
            let (owner, one, two) = (OwnerState::new(), held(1, shared), held(2, shared));
            owner.insert(&one);
            if shared {
                owner.insert(&two);
                owner.remove(&two);
                let mut inner = owner.inner.lock();
                let left = inner.of(true).get(&one.kind.names).map_or(0, SmallVec::len);
                assert_eq!(left, 1);
            }
            owner.remove(&one);
            let inner = owner.inner.lock();
            assert!(inner.holds.is_empty() && inner.shared.is_empty());
        }
    }

    #[test]
    fn beside_a_fresh_level_a_lost_one_counts_while_somebody_has_a_guard_of_it() {
        let (owner, old, fresh) = (OwnerState::new(), held(1, true), held(2, true));
        let names = &old.kind.names;
        owner.insert(&old);
        lose(&old);
        owner.insert(&fresh);
        assert!(matches!(owner.find(names, true, at(1)), Ok(Some(_))));
        owner.remove(&fresh);
        let lost = owner.find(names, true, at(1));
        assert!(matches!(lost, Err(LostReason::Missing)));
    }

    #[test]
    fn beside_a_fresh_level_a_lost_one_that_was_detached_is_forgotten() {
        let (owner, old, fresh) = (OwnerState::new(), held(1, true), held(2, true));
        owner.insert(&old);
        assert!(owner.detach(&old, Level::Watchdog));
        lose(&old);
        owner.insert(&fresh);
        assert!(owner.take_detached(&old.kind.names, true).is_none());
    }

    #[test]
    fn a_detached_level_whose_lease_is_over_blocks_nothing_also_before_anybody_saw_that() {
        for shared in [false, true] {
            let (owner, hold) = (OwnerState::new(), held(1, shared));
            owner.insert(&hold);
            let names = &hold.kind.names;
            assert!(matches!(owner.find(names, shared, at(1)), Ok(Some(_))));
            let guard = owner.find(names, shared, at(31));
            assert!(matches!(guard, Err(LostReason::Expired)));
            let (owner, hold) = (OwnerState::new(), held(2, shared));
            owner.insert(&hold);
            assert!(owner.detach(&hold, Level::Watchdog));
            assert!(matches!(owner.find(names, shared, at(31)), Ok(None)));
        }
    }

    #[test]
    fn behind_a_newest_read_that_is_over_an_older_one_is_found() {
        let (owner, old, newest) = (OwnerState::new(), held(1, true), held(2, true));
        owner.insert(&old);
        owner.insert(&newest);
        lose(&newest);
        let found = owner.find(&old.kind.names, true, at(1));
        assert!(found.is_ok_and(|found| found.is_some_and(|hold| Arc::ptr_eq(&hold, &old))));
    }
}
