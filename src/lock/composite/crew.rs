//! The levels that a hold of several locks has of its children, for one sort of lease.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::lock::LockGuard;

/// One level of each child that is there, by its place. Levels of the composite with the same sort of lease share it;
/// the last of them gives it back.
pub(super) struct Crew {
    pub(super) watched: bool,
    state: Mutex<State>,
}

struct State {
    /// How many levels of the composite share it; none once it is given back.
    levels: u32,
    guards: Vec<Option<Arc<LockGuard>>>,
}

impl Crew {
    /// With one level of the composite.
    pub(super) fn new(watched: bool, guards: Vec<Option<LockGuard>>) -> Arc<Self> {
        let guards = guards.into_iter().map(|guard| guard.map(Arc::new));
        Arc::new(Self {
            watched,
            state: Mutex::new(State {
                levels: 1,
                guards: guards.collect(),
            }),
        })
    }

    /// One more level of the composite; false once it is given back.
    pub(super) fn join(&self) -> bool {
        let mut state = self.state.lock();
        if state.levels > 0 {
            state.levels += 1;
        }
        state.levels > 0
    }

    /// A level of the composite less. What it has, by the last one.
    pub(super) fn leave(&self) -> Option<Vec<LockGuard>> {
        let mut state = self.state.lock();
        state.levels = state.levels.saturating_sub(1);
        if state.levels > 0 {
            return None;
        }
        let guards = std::mem::take(&mut state.guards);
        drop(state);
        // One that somebody looks at this very moment is given back when that is over.
        let guards = guards.into_iter().flatten().filter_map(Arc::into_inner);
        Some(guards.collect())
    }

    /// Whether levels share it.
    pub(super) fn is_shared(&self) -> bool {
        self.state.lock().levels > 1
    }

    /// What it has now, each with its place.
    pub(super) fn guards(&self) -> Vec<(usize, Arc<LockGuard>)> {
        let state = self.state.lock();
        let guards = state.guards.iter().enumerate();
        guards
            .filter_map(|(place, guard)| Some((place, Arc::clone(guard.as_ref()?))))
            .collect()
    }

    /// Takes all it has, to part with each, and ends it. Nothing while other levels share it, or enter by it just now.
    pub(super) fn take(&self) -> Option<Vec<(usize, LockGuard)>> {
        let mut state = self.state.lock();
        // Clones are made under the lock only: one that is alone now stays so.
        let in_use = |guard: &Arc<LockGuard>| Arc::strong_count(guard) > 1;
        if state.levels > 1 || state.guards.iter().flatten().any(in_use) {
            return None;
        }
        state.levels = 0;
        let guards = std::mem::take(&mut state.guards).into_iter().enumerate();
        let guards = guards.filter_map(|(place, guard)| Some((place, Arc::into_inner(guard?)?)));
        Some(guards.collect())
    }

    /// Has these again, which could not be parted with, and the level that had them.
    pub(super) fn put_back(&self, guards: Vec<(usize, LockGuard)>) {
        let mut state = self.state.lock();
        state.levels = 1;
        let places = guards.iter().map(|(place, _)| place + 1).max();
        state.guards.resize(places.unwrap_or_default(), None);
        for (place, guard) in guards {
            state.guards[place] = Some(Arc::new(guard));
        }
    }

    /// Puts a guard into its place. What is to be dropped: the one it replaces, or itself when this is given back.
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
