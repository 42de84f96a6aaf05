//! What one owner holds: who may enter what again.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use super::hold::Hold;
use super::state::{Level, Phase};
use crate::clock::Moment;
use crate::error::LostReason;
use crate::names::{ByNames, Names};

/// One owner's holds by name.
#[derive(Default)]
pub(crate) struct OwnerState {
    holds: Mutex<ByNames<Held>>,
}

struct Held {
    hold: Arc<Hold>,
    /// Levels to be given back by the handle, the newest last.
    detached: Vec<Level>,
}

/// What an owner has on a name.
pub(crate) enum Found {
    Nothing,
    Live(Arc<Hold>),
    Lost(LostReason),
}

impl OwnerState {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// What this owner has on `names`. A lost hold counts while guards of it are left.
    pub(crate) fn find(&self, names: &Names, now: Moment) -> Found {
        let holds = self.holds.lock();
        let Some(held) = holds.get(names) else {
            return Found::Nothing;
        };
        let lost = held.hold.lost_reason(now);
        let (phase, count) = held.hold.with(|state| (state.phase, state.count()));
        let attached = (count as usize).saturating_sub(held.detached.len());
        match (lost, phase) {
            (Some(reason), _) if attached > 0 => Found::Lost(reason),
            (None, Phase::Held) => Found::Live(Arc::clone(&held.hold)),
            // Detached levels stay for `unlock` to say that they are lost, until a fresh hold comes.
            _ => Found::Nothing,
        }
    }

    pub(crate) fn insert(&self, hold: &Arc<Hold>) {
        let held = Held {
            hold: Arc::clone(hold),
            detached: Vec::new(),
        };
        let names = Arc::clone(hold.kind.names());
        self.holds.lock().insert(names, held);
    }

    /// Forgets a hold that has no guards any more.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        if let Entry::Occupied(held) = self.holds.lock().entry(Arc::clone(hold.kind.names()))
            && Arc::ptr_eq(&held.get().hold, hold)
        {
            held.remove();
        }
    }

    /// Leaves a level to the handle; false when this owner does not have the hold.
    pub(crate) fn detach(&self, hold: &Arc<Hold>, level: Level) -> bool {
        match self.holds.lock().get_mut(hold.kind.names()) {
            Some(held) if Arc::ptr_eq(&held.hold, hold) => {
                held.detached.push(level);
                true
            }
            _ => false,
        }
    }

    /// The newest detached level of `names`.
    pub(crate) fn take_detached(&self, names: &Names) -> Option<(Arc<Hold>, Level)> {
        let mut holds = self.holds.lock();
        let held = holds.get_mut(names)?;
        let level = held.detached.pop()?;
        Some((Arc::clone(&held.hold), level))
    }

    /// All detached levels, when the owner ends.
    pub(crate) fn take_all_detached(&self) -> Vec<(Arc<Hold>, Level)> {
        let mut holds = self.holds.lock();
        let taken = holds.values_mut().flat_map(|held| {
            let hold = &held.hold;
            held.detached
                .drain(..)
                .map(|level| (Arc::clone(hold), level))
        });
        taken.collect()
    }
}
