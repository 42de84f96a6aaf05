//! The kinds of lock: the protocol's word for each, and where a lock of it comes from.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use watchlock::{Client, Error, Lock, MultiLock, Owner, Quorum, QuorumOwner};

use crate::failure::Failure;

/// The name of a lock: one name, or those of several locks as one.
#[derive(Debug, Clone)]
pub(crate) enum Name {
    One(String),
    List(Vec<String>),
}

impl Name {
    /// The name, for a kind that has one.
    fn one(&self) -> &str {
        match self {
            Self::One(name) => name,
            Self::List(_) => "",
        }
    }

    /// The only name of a list.
    fn first(&self) -> &str {
        self.list().first().map_or("", String::as_str)
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

/// The form of a kind's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Called {
    /// By a name.
    Name,
    /// By a list of names.
    Names,
    /// By a list of one name.
    ListOfOne,
}

/// A kind of lock that this worker has.
pub(crate) struct Kind {
    /// In requests and events.
    pub(crate) word: &'static str,
    /// Whether several owners may hold one name.
    pub(crate) shared: bool,
    pub(crate) called: Called,
    makes: Makes,
}

/// Where its locks come from.
enum Makes {
    OfClient(Making<Client>, Making<Owner>),
    OfQuorum(Making<Quorum>, Making<QuorumOwner>),
}

macro_rules! kind {
    ($word:literal, several, |$of:ident, $name:ident| $lock:expr) => {
        Kind {
            word: $word,
            shared: EXCLUSIVE,
            called: Called::Names,
            makes: Makes::OfClient(
                |$of, names| Ok(MultiLock::new(names.list().iter().map(|$name| $lock))?.into()),
                |$of, names| Ok(MultiLock::new(names.list().iter().map(|$name| $lock))?.into()),
            ),
        }
    };
    ($word:literal, quorum, |$of:ident, $name:ident| $lock:expr) => {
        Kind {
            word: $word,
            shared: EXCLUSIVE,
            called: Called::ListOfOne,
            makes: Makes::OfQuorum(
                |$of, $name| {
                    let $name = $name.first();
                    Ok(Arc::new($lock))
                },
                |$of, $name| {
                    let $name = $name.first();
                    Ok(Arc::new($lock))
                },
            ),
        }
    };
    ($word:literal, $sharing:ident, |$of:ident, $name:ident| $lock:expr) => {
        Kind {
            word: $word,
            shared: $sharing,
            called: Called::Name,
            makes: Makes::OfClient(
                |$of, $name| {
                    let $name = $name.one();
                    Ok(Arc::new($lock))
                },
                |$of, $name| {
                    let $name = $name.one();
                    Ok(Arc::new($lock))
                },
            ),
        }
    };
}

const EXCLUSIVE: bool = false;
const SHARED: bool = true;

/// To add a kind, add one line here, and one in `campaign::kinds` of the kit.
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
    kind!("red", quorum, |of, name| of.get_lock(name)),
    kind!("red_fenced", quorum, |of, name| of.get_fenced_lock(name)),
];

impl Kind {
    /// `None`: no such kind here.
    pub(crate) fn of(word: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.word == word)
    }

    /// The lock `name`, without an owner.
    pub(crate) fn of_client(&self, of: &Connected, name: &Name) -> Result<Arc<dyn Lock>, Failure> {
        match (&self.makes, of) {
            (Makes::OfClient(make, _), Connected::Client(client)) => Ok(make(client, name)?),
            (Makes::OfQuorum(make, _), Connected::Quorum(quorum)) => Ok(make(quorum, name)?),
            _ => Err(self.unsupported()),
        }
    }

    /// The lock `name` of an owner.
    pub(crate) fn of_owner(&self, of: &Someone, name: &Name) -> Result<Arc<dyn Lock>, Failure> {
        match (&self.makes, of) {
            (Makes::OfClient(_, make), Someone::OfClient(owner)) => Ok(make(owner, name)?),
            (Makes::OfQuorum(_, make), Someone::OfQuorum(owner)) => Ok(make(owner, name)?),
            _ => Err(self.unsupported()),
        }
    }

    fn unsupported(&self) -> Failure {
        Failure::unsupported(&format!("kind {}", self.word))
    }
}

/// What this worker is connected to.
#[derive(Clone)]
pub(crate) enum Connected {
    Client(Client),
    Quorum(Quorum),
}

impl Connected {
    pub(crate) fn new_owner(&self) -> Someone {
        match self {
            Self::Client(client) => Someone::OfClient(client.new_owner()),
            Self::Quorum(quorum) => Someone::OfQuorum(quorum.new_owner()),
        }
    }

    pub(crate) fn id(&self) -> String {
        match self {
            Self::Client(client) => client.id().to_string(),
            Self::Quorum(quorum) => quorum.id().to_string(),
        }
    }

    pub(crate) async fn shutdown(&self, within: Duration) {
        match self {
            Self::Client(client) => client.shutdown(within).await,
            Self::Quorum(quorum) => quorum.shutdown(within).await,
        };
    }
}

/// An owner of it.
pub(crate) enum Someone {
    OfClient(Owner),
    OfQuorum(QuorumOwner),
}
