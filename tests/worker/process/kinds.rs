//! The kinds of lock: the protocol's word for each, and where a lock of it comes from.

use std::sync::Arc;

use watchlock::{Client, Lock, Owner};

/// A kind of lock that this worker has.
pub(crate) struct Kind {
    /// In requests and events.
    pub(crate) word: &'static str,
    /// Whether several owners may hold one name.
    pub(crate) shared: bool,
    of_client: fn(&Client, &str) -> Arc<dyn Lock>,
    of_owner: fn(&Owner, &str) -> Arc<dyn Lock>,
}

macro_rules! kind {
    ($word:literal, $sharing:ident, |$of:ident, $name:ident| $lock:expr) => {
        Kind {
            word: $word,
            shared: $sharing,
            of_client: |$of, $name| Arc::new($lock),
            of_owner: |$of, $name| Arc::new($lock),
        }
    };
}

const EXCLUSIVE: bool = false;

/// A new kind is one line here, and one in `campaign::kinds` of the kit.
static KINDS: &[Kind] = &[
    kind!("lock", EXCLUSIVE, |of, name| of.get_lock(name)),
    kind!("fenced", EXCLUSIVE, |of, name| of.get_fenced_lock(name)),
    kind!("fair", EXCLUSIVE, |of, name| of.get_fair_lock(name)),
    kind!("spin", EXCLUSIVE, |of, name| of.get_spin_lock(name)),
    kind!("simple", EXCLUSIVE, |of, name| of.get_simple_lock(name)),
    kind!("fair", EXCLUSIVE, |of, name| of.get_fair_lock(name)),
];

impl Kind {
    /// `None`: no such kind here.
    pub(crate) fn of(word: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.word == word)
    }

    /// The lock `name`; it acts for nobody.
    pub(crate) fn of_client(&self, client: &Client, name: &str) -> Arc<dyn Lock> {
        (self.of_client)(client, name)
    }

    /// The lock `name` of an owner.
    pub(crate) fn of_owner(&self, owner: &Owner, name: &str) -> Arc<dyn Lock> {
        (self.of_owner)(owner, name)
    }
}
