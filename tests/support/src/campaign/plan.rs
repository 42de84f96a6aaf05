//! What an owner does next, derived from the seed alone.

use std::time::Duration;

use fastrand::Rng;

use super::kinds::{self, has_sides};
use super::{Kind, WATCHDOG_LEASE};
use crate::history::LockKind;

/// A server of a quorum has a tenth of the lease to answer. This must be longer than the round trip of a distant link,
/// or a client that is far from three of five servers never gets what others have left.
const SHORTEST_OF_QUORUM: u64 = 400;

/// How long Redisson's workers wait for a fair lock at most.
pub(super) const JAVA_WAITS_MS: u64 = 400;

/// One section: a lock, perhaps entered again, held for a while.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    /// `None`: as long as it takes.
    pub(super) wait_ms: Option<u64>,
    /// At least one.
    pub(super) levels: Vec<Level>,
    /// The levels are given back in the order in which they were taken: a writer goes on as a reader.
    pub(super) downgrades: bool,
    pub(super) hold: Duration,
    pub(super) pause: Duration,
}

/// A level of a hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    pub(super) kind: LockKind,
    /// `None`: under the watchdog.
    pub(super) lease_ms: Option<u64>,
}

impl Plan {
    /// The kind of the first level.
    pub(super) fn kind(&self) -> LockKind {
        self.levels[0].kind
    }

    /// Leaves out what a client cannot do, or is known to do differently.
    pub(super) fn fit(&mut self, client: Kind) {
        let first = self.levels[0];
        match client {
            Kind::Rust => return,
            // A re-entry with a lease of its own shortens the hold's.
            Kind::Java if first.kind == LockKind::Lock && first.lease_ms.is_none() => {
                self.levels.fill(first);
            }
            Kind::Plain(_) if first.kind == LockKind::Lock => return,
            Kind::Java | Kind::Plain(_) => self.levels.truncate(1),
        }
        self.downgrades = false;
        if client == Kind::Java && first.kind == LockKind::Fair {
            // Redisson keeps the place of a call that died or got no answer for as long as the call was to wait; five
            // minutes if that is endless or 0.
            self.wait_ms = Some(
                self.wait_ms
                    .map_or(JAVA_WAITS_MS, |ms| ms.clamp(1, JAVA_WAITS_MS)),
            );
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Plans {
    rng: Rng,
    names: u32,
    kinds: Vec<LockKind>,
    /// A third of the names, of all kinds, which get half of all sections.
    crowded: Vec<u32>,
}

impl Plans {
    pub(super) fn seeded(
        seed: u64,
        slot: usize,
        owner: u32,
        names: u32,
        kinds: &[LockKind],
    ) -> Self {
        let own = seed ^ (slot as u64 + 1) << 48 ^ u64::from(owner + 1) << 40;
        let crowded = (0..names).filter(|name| (*name as usize / kinds.len()).is_multiple_of(3));
        Self {
            rng: Rng::with_seed(own),
            names,
            kinds: kinds.to_vec(),
            crowded: crowded.collect(),
        }
    }

    pub(super) fn next(&mut self) -> Plan {
        let rng = &mut self.rng;
        let (crowded, spread) = (rng.usize(..self.crowded.len()), rng.u32(..self.names));
        let number = if rng.bool() {
            self.crowded[crowded]
        } else {
            spread
        };
        let mut kind = self.kinds[number as usize % self.kinds.len()];
        // Mostly readers, or nobody would share anything.
        let reads = rng.u32(..3) > 0;
        if has_sides(kind) {
            kind = if reads {
                LockKind::Read
            } else {
                LockKind::Write
            };
        }
        if kind.is_counted() {
            kind = LockKind::Permits(rng.u32(1..=kinds::PERMITS));
        }
        let wait_ms = match rng.u32(..10) {
            0..4 => None,
            4..6 => Some(0),
            _ => Some(rng.u64(1..400)),
        };
        let (mut levels, hold) = section(rng, kind);
        if kind.is_counted() {
            levels.truncate(1);
        }
        let pause = Duration::from_micros(rng.u64(..4_000));
        let mut name = format!("chaos:{number}");
        if kind == LockKind::Multi {
            (kind, name) = several(rng, &name);
            for level in &mut levels {
                level.kind = kind;
            }
        }
        if kind.is_of_quorum() {
            let longest = u64::try_from(WATCHDOG_LEASE.as_millis()).unwrap_or(u64::MAX);
            let leases = levels
                .iter_mut()
                .filter_map(|level| level.lease_ms.as_mut());
            leases.for_each(|lease| *lease = (*lease).clamp(SHORTEST_OF_QUORUM, longest));
        }
        Plan {
            name,
            wait_ms,
            levels,
            downgrades: rng.bool(),
            hold,
            pause,
        }
    }
}

/// Two of three locks as one, in any order, or one of them by itself.
fn several(rng: &mut Rng, name: &str) -> (LockKind, String) {
    let mut names = [name.to_owned(), format!("{name}:1"), format!("{name}:2")];
    rng.shuffle(&mut names);
    if rng.u32(..3) == 0 {
        (LockKind::Lock, names[0].clone())
    } else {
        (LockKind::Multi, names[..2].join(LockKind::BETWEEN))
    }
}

/// The levels and how long to stay: mostly a moment, sometimes beyond the lease, and sometimes through several
/// renewals.
fn section(rng: &mut Rng, kind: LockKind) -> (Vec<Level>, Duration) {
    let levels = if rng.u32(..4) == 0 { rng.u32(2..4) } else { 1 };
    let mut levels: Vec<_> = (0..levels).map(|_| level(rng, kind)).collect();
    levels[0].kind = kind;
    // Nobody may write under his own read.
    levels[1..].sort_by_key(|level| level.kind == LockKind::Read);
    let (moment, while_ms) = (rng.u64(..2_000), rng.u64(2..60));
    let (short_ms, long_ms) = (rng.u64(100..300), rng.u64(1_000..2_500));
    let only = |lease_ms| vec![Level { kind, lease_ms }];
    match rng.u32(..1_000) {
        0..920 => (levels, Duration::from_micros(moment)),
        920..980 => (levels, Duration::from_millis(while_ms)),
        980..994 => (only(Some(short_ms)), Duration::from_millis(2 * short_ms)),
        _ => (only(None), Duration::from_millis(long_ms)),
    }
}

/// A writer may enter again as either.
fn level(rng: &mut Rng, kind: LockKind) -> Level {
    let lease_ms = rng.bool().then(|| rng.u64(100..1_000));
    let reads = rng.bool();
    let kind = match kind {
        LockKind::Write if reads => LockKind::Read,
        kind => kind,
    };
    Level { kind, lease_ms }
}
