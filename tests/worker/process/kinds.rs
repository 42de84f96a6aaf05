//! The kinds of lock: the protocol's word for each, and where a lock of it comes from.

use std::sync::Arc;

use serde_json::Value;
use watchlock::{Client, Error, Lock, MultiLock, Owner};

/// What a lock is called: by its name, or by those of several locks as one.
#[derive(Debug, Clone)]
pub(crate) enum Name {
    One(String),
    List(Vec<String>),
}

impl Name {
    /// The name, of a kind that has one.
    fn one(&self) -> &str {
        match self {
            Self::One(name) => name,
            Self::List(_) => "",
        }
    }

    fn list(&self) -> &[String] {
        match self {
            Self::One(_) => &[],
            Self::List(names) => names,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::One(name) => name.clone().into(),
            Self::List(names) => names.clone().into(),
        }
    }
}

/// Makes a handle of the lock by that name.
type Making<T> = fn(&T, &Name) -> Result<Arc<dyn Lock>, Error>;

/// A kind of lock that this worker has.
pub(crate) struct Kind {
    /// In requests and events.
    pub(crate) word: &'static str,
    /// Whether several owners may hold one name.
    pub(crate) shared: bool,
    /// Whether it is called by a list of names.
    pub(crate) listed: bool,
    of_client: Making<Client>,
    of_owner: Making<Owner>,
}

macro_rules! kind {
    ($word:literal, several, |$of:ident, $name:ident| $lock:expr) => {
        Kind {
            word: $word,
            shared: EXCLUSIVE,
            listed: true,
            of_client: |$of, names| {
                Ok(MultiLock::new(names.list().iter().map(|$name| $lock))?.into())
            },
            of_owner: |$of, names| {
                Ok(MultiLock::new(names.list().iter().map(|$name| $lock))?.into())
            },
        }
    };
    ($word:literal, $sharing:ident, |$of:ident, $name:ident| $lock:expr) => {
        Kind {
            word: $word,
            shared: $sharing,
            listed: false,
            of_client: |$of, $name| {
                let $name = $name.one();
                Ok(Arc::new($lock))
            },
            of_owner: |$of, $name| {
                let $name = $name.one();
                Ok(Arc::new($lock))
            },
        }
    };
}

const EXCLUSIVE: bool = false;
const SHARED: bool = true;

/// A new kind is one line here, and one in `campaign::kinds` of the kit.
static KINDS: &[Kind] = &[
    kind!("lock", EXCLUSIVE, |of, name| of.get_lock(name)),
    kind!("fenced", EXCLUSIVE, |of, name| of.get_fenced_lock(name)),
    kind!("fair", EXCLUSIVE, |of, name| of.get_fair_lock(name)),
    kind!("spin", EXCLUSIVE, |of, name| of.get_spin_lock(name)),
    kind!("simple", EXCLUSIVE, |of, name| of.get_simple_lock(name)),
    kind!("read", SHARED, |of, name| of
        .get_read_write_lock(name)
        .read_lock()),
    kind!("write", EXCLUSIVE, |of, name| of
        .get_read_write_lock(name)
        .write_lock()),
    kind!("multi", several, |of, name| of.get_lock(name)),
];

impl Kind {
    /// `None`: no such kind here.
    pub(crate) fn of(word: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.word == word)
    }

    /// The lock `name`; it acts for nobody.
    pub(crate) fn of_client(&self, client: &Client, name: &Name) -> Result<Arc<dyn Lock>, Error> {
        (self.of_client)(client, name)
    }

    /// The lock `name` of an owner.
    pub(crate) fn of_owner(&self, owner: &Owner, name: &Name) -> Result<Arc<dyn Lock>, Error> {
        (self.of_owner)(owner, name)
    }
}
