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
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    holds: ByNames<Held>,
    /// Nobody is left who would give back what is detached. Under the same lock as the levels, so that
    /// none is detached behind the end.
    ended: bool,
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
        let inner = self.inner.lock();
        let Some(held) = inner.holds.get(names) else {
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
        self.inner.lock().holds.insert(names, held);
    }

    /// Forgets a hold that has no guards any more.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        if let Entry::Occupied(held) = self.inner.lock().holds.entry(Arc::clone(hold.kind.names()))
            && Arc::ptr_eq(&held.get().hold, hold)
        {
            held.remove();
        }
    }

    /// Leaves a level to the handle; false when this owner has ended, or does not have the hold.
    pub(crate) fn detach(&self, hold: &Arc<Hold>, level: Level) -> bool {
        let mut inner = self.inner.lock();
        if inner.ended {
            return false;
        }
        match inner.holds.get_mut(hold.kind.names()) {
            Some(held) if Arc::ptr_eq(&held.hold, hold) => {
                held.detached.push(level);
                true
            }
            _ => false,
        }
    }

    /// The newest detached level of `names`.
    pub(crate) fn take_detached(&self, names: &Names) -> Option<(Arc<Hold>, Level)> {
        let mut inner = self.inner.lock();
        let held = inner.holds.get_mut(names)?;
        let level = held.detached.pop()?;
        Some((Arc::clone(&held.hold), level))
    }

    /// Ends the owner: nothing is detached from now on. What was, for the caller to give back.
    pub(crate) fn end(&self) -> Vec<(Arc<Hold>, Level)> {
        let mut inner = self.inner.lock();
        inner.ended = true;
        let taken = inner.holds.values_mut().flat_map(|held| {
            let hold = &held.hold;
            held.detached
                .drain(..)
                .map(|level| (Arc::clone(hold), level))
        });
        taken.collect()
    }
}
