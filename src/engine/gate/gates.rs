//! All gates of a client: a gate exists for as long as something is at it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::Pending;
use crate::engine::gate::Gate;
use crate::names::{ByNames, Names};

type Shard = Mutex<ByNames<Gate<Pending>>>;

/// All gates of a client, by name.
pub(crate) struct Gates {
    shards: Box<[Shard]>,
}

/// Enough that two names rarely meet on one lock.
const SHARDS: u64 = 32;

impl Gates {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, names: &Names) -> &Shard {
        // The map takes the low bits.
        let shard = usize::try_from((names.hash_code() >> 32) % SHARDS).unwrap_or(0);
        &self.shards[shard]
    }

    /// Lets `change` act on the gate of `names`, which exists for as long as something is at it.
    pub(crate) fn with<R>(
        &self,
        names: &Arc<Names>,
        change: impl FnOnce(&mut Gate<Pending>) -> R,
    ) -> R {
        let mut gates = self.shard(names).lock();
        if let Some(gate) = gates.get_mut(names) {
            let result = change(gate);
            if gate.is_unused() {
                gates.remove(names);
            }
            return result;
        }
        let mut gate = Gate::default();
        let result = change(&mut gate);
        if !gate.is_unused() {
            gates.insert(Arc::clone(names), gate);
        }
        result
    }

    /// The gate's copy of these names, if there is one that is the same in all of them: so waiters who each made a
    /// handle share one. Kinds of one family share a gate and may have different further keys.
    pub(crate) fn known(&self, names: Arc<Names>) -> Arc<Names> {
        let gates = self.shard(&names).lock();
        let known = gates.get_key_value(&names).map(|(known, _)| known);
        let known = known.filter(|known| known.has_the_keys_of(&names));
        known.map_or(names, Arc::clone)
    }

    /// The names that have a gate now.
    pub(crate) fn names(&self) -> Vec<Arc<Names>> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.lock().keys().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Lets `look` see every gate there is.
    pub(crate) fn for_each(&self, mut look: impl FnMut(&Gate<Pending>)) {
        for shard in &self.shards {
            shard.lock().values().for_each(&mut look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Family;

    #[test]
    fn a_gate_is_there_for_as_long_as_something_is_at_it() {
        let gates = Gates::new();
        let names = Arc::new(Names::of(&Family::PLAIN, "", "x").unwrap());
        gates.with(&names, |_| ());
        assert!(gates.names().is_empty(), "a look leaves nothing");
        gates.with(&names, |gate| gate.job = Some(Arc::default()));
        assert_eq!(gates.names().len(), 1);
        gates.with(&names, |gate| gate.job = None);
        assert!(gates.names().is_empty());
    }
}
