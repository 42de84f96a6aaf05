//! The kinds of lock, by the words of the workers' protocol.

use std::fmt;

use serde::{Deserialize, Serialize};

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
}

impl LockKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Lock,
        Self::Fair,
        Self::Read,
        Self::Write,
        Self::Fenced,
        Self::Spin,
        Self::Simple,
    ];

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
        }
    }

    /// The kind with this word.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// Whether holds of the two kinds on one name exclude each other: all do, apart from readers.
    #[must_use]
    pub fn excludes(self, other: Self) -> bool {
        !(self == Self::Read && other == Self::Read)
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
