//! The levels of the children of a hold of several locks, for one sort of lease.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::lock::guard::LockGuard;

/// A level of each child, by its place. Dropping it gives the level back.
pub(in crate::lock) type ChildGuards = Vec<Option<LockGuard>>;

/// One level of each child, by its place. The levels of the composite with the same sort of lease share them, and the last
/// one gives them back.
pub(super) struct ChildLevels {
    /// Whether the watchdog keeps them.
    pub(super) watched: bool,
    state: Mutex<SharedLevels>,
}

struct SharedLevels {
    /// How many levels of the composite share the guards; 0 once they are given back.
    levels: u32,
    guards: Vec<Option<Arc<LockGuard>>>,
}

impl ChildLevels {
    /// Shared by one level of the composite so far.
    pub(super) fn new(watched: bool, guards: ChildGuards) -> Arc<Self> {
        let guards = guards.into_iter().map(|guard| guard.map(Arc::new));
        Arc::new(Self {
            watched,
            state: Mutex::new(SharedLevels {
                levels: 1,
                guards: guards.collect(),
            }),
        })
    }

    /// One more level of the composite shares them. False once they are given back.
    pub(super) fn join(&self) -> bool {
        let mut state = self.state.lock();
        if state.levels > 0 {
            state.levels += 1;
        }
        state.levels > 0
    }

    /// A level of the composite leaves. The last one gets the guards.
    pub(super) fn leave(&self) -> Option<Vec<LockGuard>> {
        let mut state = self.state.lock();
        state.levels = state.levels.saturating_sub(1);
        if state.levels > 0 {
            return None;
        }
        let guards = std::mem::take(&mut state.guards);
        drop(state);
        // A guard in use elsewhere is given back at the end of that use.
        let guards = guards.into_iter().flatten().filter_map(Arc::into_inner);
        Some(guards.collect())
    }

    /// Whether several levels of the composite share them.
    pub(super) fn is_shared(&self) -> bool {
        self.state.lock().levels > 1
    }

    /// The guards with their places.
    pub(super) fn guards(&self) -> Vec<(usize, Arc<LockGuard>)> {
        let state = self.state.lock();
        let guards = state.guards.iter().enumerate();
        guards
            .filter_map(|(place, guard)| Some((place, Arc::clone(guard.as_ref()?))))
            .collect()
    }

    /// Takes all guards away. None while other levels share them, or one of them is in use.
    pub(super) fn take(&self) -> Option<Vec<(usize, LockGuard)>> {
        let mut state = self.state.lock();
        // Clones are made only under the lock, so a count of 1 stays 1.
        let in_use = |guard: &Arc<LockGuard>| Arc::strong_count(guard) > 1;
        if state.levels > 1 || state.guards.iter().flatten().any(in_use) {
            return None;
        }
        state.levels = 0;
        let guards = std::mem::take(&mut state.guards).into_iter().enumerate();
        let guards = guards.filter_map(|(place, guard)| Some((place, Arc::into_inner(guard?)?)));
        Some(guards.collect())
    }

    /// Undoes `take` for these guards.
    pub(super) fn put_back(&self, guards: Vec<(usize, LockGuard)>) {
        let mut state = self.state.lock();
        state.levels = 1;
        let places = guards.iter().map(|(place, _)| place + 1).max();
        state.guards.resize(places.unwrap_or_default(), None);
        for (place, guard) in guards {
            state.guards[place] = Some(Arc::new(guard));
        }
    }

    /// Puts a guard into its place. Returns the guard to drop: the one it replaces, or itself if all are given back.
    pub(super) fn put(&self, place: usize, guard: LockGuard) -> Option<Arc<LockGuard>> {
        let mut state = self.state.lock();
        let guard = Arc::new(guard);
        if state.levels == 0 {
            return Some(guard);
        }
        match state.guards.get_mut(place) {
            Some(at) => at.replace(guard),
            None => Some(guard),
        }
    }
}
