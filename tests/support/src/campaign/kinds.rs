//! Which kinds of lock campaigns mix. Each name has one kind for its whole life; the two sides of a read/write lock
//! share their names.
//!
//! These lists are the only place that says who has which kinds. A kind that a worker has but its list lacks fails a
//! test (`tests/worker`, `tests/interop`), and so does the reverse: no kind is left out silently.

use crate::history::LockKind;

/// The kinds of the Rust worker on one server.
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

/// Its semaphores, which stand beside its locks in the workers' protocol.
pub const SEMAPHORES: &[LockKind] = &[LockKind::Permits(1)];

/// How many permits each semaphore has.
pub(super) const PERMITS: u32 = 3;

/// Its kinds on several independent servers.
pub const QUORUM: &[LockKind] = &[LockKind::Red, LockKind::RedFenced];

/// The kinds of Redisson's worker.
pub const JAVA: &[LockKind] = &[
    LockKind::Lock,
    LockKind::Fair,
    LockKind::Read,
    LockKind::Write,
    LockKind::Fenced,
    LockKind::Spin,
];

/// The kinds that Rust and Java can share.
#[must_use]
pub fn shared() -> Vec<LockKind> {
    let both = RUST.iter().filter(|kind| JAVA.contains(kind));
    both.copied().collect()
}

/// The kind of the semaphore of that name, a word of the protocol, and the key of its records: even numbers are plain ones,
/// the others expirable.
pub(super) fn semaphore_of(name: &str) -> (&'static str, String) {
    let last = name.bytes().next_back().unwrap_or(b'0');
    if last.is_multiple_of(2) {
        ("semaphore", format!("watchlock_permits:{{{name}}}"))
    } else {
        ("permit", format!("{{{name}}}:timeout"))
    }
}

/// The names of a campaign that have no semaphore.
pub(super) fn names_of_locks(names: u32, kinds: &[LockKind]) -> Vec<String> {
    let numbers = (0..names).filter(|number| !kinds[*number as usize % kinds.len()].is_counted());
    numbers.map(|number| format!("chaos:{number}")).collect()
}

/// Whether a kind is a side of a read/write lock.
pub(super) const fn has_sides(kind: LockKind) -> bool {
    matches!(kind, LockKind::Read | LockKind::Write)
}
