//! What one owner holds: who may enter what again.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::hold::Hold;
use super::state::{Level, Phase};
use crate::clock::Moment;
use crate::error::LostReason;
use crate::names::{ByNames, Names};

/// One owner's holds by name.
pub(crate) struct OwnerState {
    /// No other owner of this process has it.
    pub(crate) number: u64,
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

/// One level of a hold, and whose it is: a guard is this with a face.
#[derive(Clone)]
pub(crate) struct Entered {
    pub(crate) hold: Arc<Hold>,
    pub(crate) level: Level,
    pub(crate) owner: Option<Arc<OwnerState>>,
    /// Whether the level is still to be given back.
    pub(crate) open: bool,
}

/// What an owner has on a name.
pub(crate) enum Found {
    Nothing,
    Live(Arc<Hold>),
    Lost(LostReason),
}

impl OwnerState {
    pub(crate) fn new() -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            // Relaxed: only that no two are the same matters.
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            inner: Mutex::default(),
        })
    }

    /// What this owner has on `names`. A lost hold counts while guards of it are left.
    pub(crate) fn find(&self, names: &Names, now: Moment) -> Found {
        let found = self.inner.lock().holds.get(names).map(|held| {
            let hold = Arc::clone(&held.hold);
            (hold, held.detached.len())
        });
        let Some((hold, detached)) = found else {
            return Found::Nothing;
        };
        let (phase, count) = hold.with(|state| {
            state.expire(now);
            (state.phase(), state.count())
        });
        match phase {
            Phase::Lost(reason) if count as usize > detached => Found::Lost(reason),
            Phase::Held => Found::Live(hold),
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
    pub(crate) fn take_detached(self: &Arc<Self>, names: &Names) -> Option<Entered> {
        let mut inner = self.inner.lock();
        let held = inner.holds.get_mut(names)?;
        let level = held.detached.pop()?;
        let hold = Arc::clone(&held.hold);
        Some(self.entered(hold, level))
    }

    fn entered(self: &Arc<Self>, hold: Arc<Hold>, level: Level) -> Entered {
        Entered {
            hold,
            level,
            owner: Some(Arc::clone(self)),
            open: true,
        }
    }

    /// Ends the owner: nothing is detached from now on. What was, for the caller to give back.
    pub(crate) fn end(self: &Arc<Self>) -> Vec<Entered> {
        let mut inner = self.inner.lock();
        inner.ended = true;
        let taken = inner.holds.values_mut().flat_map(|held| {
            let hold = &held.hold;
            let levels = held.detached.drain(..);
            levels.map(|level| self.entered(Arc::clone(hold), level))
        });
        taken.collect()
    }
}
