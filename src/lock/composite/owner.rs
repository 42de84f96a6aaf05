//! An owner of holds of several locks as one, where the children have none: it may enter again what it has, and levels
//! can be left to it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::hold::Composite;
use super::level::Level;
use crate::error::Error;
use crate::lease::Lease;

/// An owner. Its end gives back what was left to it.
#[derive(Default)]
pub(crate) struct OwnerState {
    of: Mutex<Owned>,
}

#[derive(Default)]
struct Owned {
    over: bool,
    holds: HashMap<Arc<str>, Held>,
}

struct Held {
    hold: Weak<Composite>,
    /// The newest is the last.
    detached: Vec<Level>,
}

/// What an owner has of a name.
enum Found {
    Nothing,
    Live(Arc<Composite>),
    Lost(Error),
}

impl OwnerState {
    pub(in crate::lock) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// It has this hold now; what it had under that name is over.
    pub(super) fn insert(&self, hold: &Arc<Composite>) {
        let held = Held {
            hold: Arc::downgrade(hold),
            detached: Vec::new(),
        };
        let mut owned = self.of.lock();
        let holds = &mut owned.holds;
        holds.retain(|_, held| held.hold.strong_count() > 0 || !held.detached.is_empty());
        let before = holds.insert(Arc::clone(hold.name()), held);
        drop(owned);
        drop(before);
    }

    /// Enters what it has under this name; nothing when it has nothing.
    pub(in crate::lock) async fn enter(
        self: &Arc<Self>,
        name: &str,
        lease: Lease,
    ) -> Result<Option<Level>, Error> {
        match self.find(name) {
            Found::Nothing => Ok(None),
            Found::Lost(error) => Err(error),
            // Boxed: most acquires have nothing to enter.
            Found::Live(hold) => Box::pin(Level::of(&hold, lease, Some(Arc::clone(self)))).await,
        }
    }

    /// A hold that is lost stands in the way while somebody has a guard of it.
    fn find(&self, name: &str) -> Found {
        let (hold, detached) = match self.of.lock().holds.get(name) {
            Some(held) => (held.hold.upgrade(), held.detached.len()),
            None => return Found::Nothing,
        };
        let Some(hold) = hold else {
            return Found::Nothing;
        };
        match hold.check() {
            Ok(()) => Found::Live(hold),
            Err(lost) if lost.is_lost() && hold.levels() as usize > detached => Found::Lost(lost),
            Err(_) => Found::Nothing,
        }
    }

    /// How many levels it has, validly.
    pub(in crate::lock) fn hold_count(&self, name: &str) -> u32 {
        match self.find(name) {
            Found::Live(hold) => hold.levels(),
            Found::Nothing | Found::Lost(_) => 0,
        }
    }

    /// Keeps a level; it comes back when the owner has ended.
    pub(super) fn keep(&self, level: Level) -> Result<(), Level> {
        let mut owned = self.of.lock();
        if owned.over {
            return Err(level);
        }
        let name = Arc::clone(level.hold().name());
        let held = owned.holds.entry(name).or_insert_with(|| Held {
            hold: Arc::downgrade(level.hold()),
            detached: Vec::new(),
        });
        held.detached.push(level);
        Ok(())
    }

    /// The newest level of this name that was left to it.
    pub(in crate::lock) fn take(&self, name: &str) -> Option<Level> {
        let mut owned = self.of.lock();
        let held = owned.holds.get_mut(name)?;
        let level = held.detached.pop();
        if held.detached.is_empty() && held.hold.strong_count() == 0 {
            owned.holds.remove(name);
        }
        level
    }

    /// Whether it takes nothing more.
    pub(super) fn is_over(&self) -> bool {
        self.of.lock().over
    }

    /// It ends: what was left to it, which is given back by being dropped.
    pub(in crate::lock) fn end(&self) -> Vec<Level> {
        let mut owned = self.of.lock();
        owned.over = true;
        let holds = std::mem::take(&mut owned.holds);
        holds.into_values().flat_map(|held| held.detached).collect()
    }
}
