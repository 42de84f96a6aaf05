//! Which kinds of lock campaigns mix. Each name is of one kind for its whole life; the two sides of a read/write lock
//! share their names.
//!
//! These lists are the only place that says who has what. A kind that a worker has and its list lacks fails a test
//! (`tests/worker`, `tests/interop`), and so does one that it lacks: no kind is left out in silence.

use crate::history::LockKind;

/// What the Rust worker has on one server.
pub const RUST: &[LockKind] = &[
    LockKind::Lock,
    LockKind::Fair,
    LockKind::Read,
    LockKind::Write,
    LockKind::Fenced,
    LockKind::Spin,
    LockKind::Simple,
    LockKind::Multi,
];

/// What it has on several independent ones.
pub const QUORUM: &[LockKind] = &[LockKind::Red, LockKind::RedFenced];

/// What Redisson's worker has.
pub const JAVA: &[LockKind] = &[
    LockKind::Lock,
    LockKind::Fair,
    LockKind::Read,
    LockKind::Write,
    LockKind::Fenced,
    LockKind::Spin,
];

/// What the plain client of the controls has.
pub const PLAIN: &[LockKind] = &[
    LockKind::Lock,
    LockKind::Fair,
    LockKind::Read,
    LockKind::Write,
    LockKind::Fenced,
];

/// What Rust and Java can be put on together.
#[must_use]
pub fn shared() -> Vec<LockKind> {
    let both = RUST.iter().filter(|kind| JAVA.contains(kind));
    both.copied().collect()
}

/// Whether a kind is a side of a read/write lock.
pub(super) const fn has_sides(kind: LockKind) -> bool {
    matches!(kind, LockKind::Read | LockKind::Write)
}
