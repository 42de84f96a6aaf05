//! The kinds of lock, by the words of the workers' protocol.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What kind of lock a name is used as.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum LockKind {
    /// The reentrant lock.
    #[default]
    Lock,
    /// First come, first served.
    Fair,
    /// The reading side of a read/write lock.
    Read,
    /// Its writing side.
    Write,
    /// With a fencing token.
    Fenced,
    /// Waits without a subscription.
    Spin,
    /// A string with a token.
    Simple,
    /// Several plain locks as one; it is named by their names, with [`Self::BETWEEN`] between them.
    Multi,
    /// The lock of a quorum.
    Red,
    /// The same with a fencing token.
    RedFenced,
    /// So many permits of a semaphore.
    Permits(u32),
}

impl LockKind {
    /// All of them; one permit.
    pub const ALL: [Self; 11] = [
        Self::Lock,
        Self::Fair,
        Self::Read,
        Self::Write,
        Self::Fenced,
        Self::Spin,
        Self::Simple,
        Self::Multi,
        Self::Red,
        Self::RedFenced,
        Self::Permits(1),
    ];

    /// What is between the names of several locks as one.
    pub const BETWEEN: &'static str = ", ";

    /// The protocol's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fenced => "fenced",
            Self::Spin => "spin",
            Self::Simple => "simple",
            Self::Multi => "multi",
            Self::Red => "red",
            Self::RedFenced => "red_fenced",
            Self::Permits(_) => "permits",
        }
    }

    /// The kind with this word.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// The single locks that a name stands for.
    pub fn names(self, name: &str) -> impl Iterator<Item = &str> {
        let between = (self == Self::Multi).then_some(Self::BETWEEN);
        let list = between.map(|between| name.split(between));
        let one = list.is_none().then_some(name);
        list.into_iter().flatten().chain(one)
    }

    /// The name of a lock in the workers' protocol.
    #[must_use]
    pub fn called(self, name: &str) -> Value {
        match self {
            Self::Multi => json!(self.names(name).collect::<Vec<_>>()),
            _ => json!(name),
        }
    }

    /// Whether its holds have fencing tokens.
    #[must_use]
    pub const fn has_tokens(self) -> bool {
        matches!(self, Self::Fenced | Self::RedFenced)
    }

    /// Whether it is the lock of a quorum.
    #[must_use]
    pub const fn is_of_quorum(self) -> bool {
        matches!(self, Self::Red | Self::RedFenced)
    }

    /// Whether holds of the two kinds on one name exclude each other: all do, except two readers. Of permits there may be
    /// several holds, as long as there are enough.
    #[must_use]
    pub fn excludes(self, other: Self) -> bool {
        !(self == Self::Read && other == Self::Read)
    }

    /// Whether several may hold it at once.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Permits(_))
    }

    /// How many permits a hold of it has; any other lock is one.
    #[must_use]
    pub const fn weight(self) -> u32 {
        match self {
            Self::Permits(count) => count,
            _ => 1,
        }
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
