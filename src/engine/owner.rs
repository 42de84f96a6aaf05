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
    /// What it has of locks that are shared: beside a hold of its own, if that came first.
    shared: ByNames<Held>,
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

impl Inner {
    fn of(&mut self, shared: bool) -> &mut ByNames<Held> {
        if shared {
            &mut self.shared
        } else {
            &mut self.holds
        }
    }
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

    /// What this owner has on `names`, as one of those who share it or as who has it alone. A lost hold counts
    /// while guards of it are left.
    pub(crate) fn find(&self, names: &Names, shared: bool, now: Moment) -> Found {
        let found = self.inner.lock().of(shared).get(names).map(|held| {
            let hold = Arc::clone(&held.hold);
            (hold, held.detached.len())
        });
        let Some((hold, detached)) = found else {
            return Found::Nothing;
        };
        hold.lost_reason(now);
        let (phase, count) = hold.with(|state| (state.phase(), state.count()));
        match phase {
            Phase::Lost(reason) if count as usize > detached => Found::Lost(reason),
            Phase::Held => Found::Live(hold),
            // Detached levels stay for `unlock` to say that they are lost, until a fresh hold comes.
            _ => Found::Nothing,
        }
    }

    /// Whether it has anything on `names` that is valid. It changes nothing, and tells nobody.
    pub(crate) fn has(&self, names: &Names, now: Moment) -> bool {
        let mut inner = self.inner.lock();
        [true, false].into_iter().any(|shared| {
            let held = inner.of(shared).get(names);
            held.is_some_and(|held| now < held.hold.valid_until())
        })
    }

    /// What it shares on `names` that is valid. It changes nothing, and tells nobody.
    pub(crate) fn share_of(&self, names: &Names, now: Moment) -> Option<Arc<Hold>> {
        let mut inner = self.inner.lock();
        let hold = &inner.of(true).get(names)?.hold;
        (now < hold.valid_until()).then(|| Arc::clone(hold))
    }

    pub(crate) fn insert(&self, hold: &Arc<Hold>) {
        let held = Held {
            hold: Arc::clone(hold),
            detached: Vec::new(),
        };
        let names = Arc::clone(hold.kind.names());
        let shared = hold.kind.commands.is_shared();
        self.inner.lock().of(shared).insert(names, held);
    }

    /// Forgets a hold that has no guards any more.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let shared = hold.kind.commands.is_shared();
        let names = Arc::clone(hold.kind.names());
        if let Entry::Occupied(held) = self.inner.lock().of(shared).entry(names)
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
        let shared = hold.kind.commands.is_shared();
        match inner.of(shared).get_mut(hold.kind.names()) {
            Some(held) if Arc::ptr_eq(&held.hold, hold) => {
                held.detached.push(level);
                true
            }
            _ => false,
        }
    }

    /// The newest detached level of what it has on `names`.
    pub(crate) fn take_detached(self: &Arc<Self>, names: &Names, shared: bool) -> Option<Entered> {
        let mut inner = self.inner.lock();
        let held = inner.of(shared).get_mut(names)?;
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
        let Inner { holds, shared, .. } = &mut *inner;
        let held = shared.values_mut().chain(holds.values_mut());
        let taken = held.flat_map(|held| {
            let hold = &held.hold;
            let levels = held.detached.drain(..);
            levels.map(|level| self.entered(Arc::clone(hold), level))
        });
        taken.collect()
    }
}
