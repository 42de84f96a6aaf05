//! What a check found.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{MS, Nanos, Record};

/// The invariants that a history can refute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// At most one holder: certain windows never overlap.
    I1,
    /// Counts are as written.
    I2,
    /// No key without TTL.
    I4,
    /// No lost wake-up.
    I5,
    /// Bounded tries and releases; busy only if busy.
    I6,
    /// Nothing is left behind.
    I7,
    /// A holder knows when it no longer holds.
    I8,
    /// Fencing tokens grow from hold to hold.
    Tokens,
    /// A fair lock is given in the order of arrival.
    Order,
    /// No client keeps a lock to itself.
    Turns,
}

impl Invariant {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::I1,
        Self::I2,
        Self::I4,
        Self::I5,
        Self::I6,
        Self::I7,
        Self::I8,
        Self::Tokens,
        Self::Order,
        Self::Turns,
    ];
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::I1 => "I1 one holder at most",
            Self::I2 => "I2 counts as written",
            Self::I4 => "I4 no key without TTL",
            Self::I5 => "I5 no lost wake-up",
            Self::I6 => "I6 bounded tries",
            Self::I7 => "I7 nothing left",
            Self::I8 => "I8 holders know",
            Self::Tokens => "fenced: tokens grow",
            Self::Order => "fair: order of arrival",
            Self::Turns => "others get in",
        };
        f.pad(text)
    }
}

/// How an invariant was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breach {
    /// The certain windows of two holds overlap.
    Overlap {
        /// How long both were certain, at least.
        by: Nanos,
    },
    /// A certain holder found another certain holder's record in place of its own.
    TornPair,
    /// A hold count that the operations before it do not allow.
    WrongCount {
        /// The count as returned.
        got: u32,
        /// The count as it must be.
        expected: u32,
    },
    /// A lock's key without TTL was seen.
    NoTtl,
    /// The lock was free, a waiter waited undisturbed, and nobody acquired.
    MissedWakeUp {
        /// How long that lasted, at least.
        free_for: Nanos,
        /// How long it may last.
        bound: Nanos,
        /// Whether a clean release should have sent a message.
        clean: bool,
    },
    /// A bounded operation took too long.
    Slow {
        /// How long it took.
        took: Nanos,
        /// How long it may take.
        bound: Nanos,
    },
    /// A try was answered busy, but nobody held the lock or asked for it.
    BusyWhileFree,
    /// Something stayed in Redis after everything was released.
    Leftover {
        /// What it is.
        what: String,
    },
    /// A holder had not been notified when the next one was in already.
    NotNotified,
    /// A holder got `lost`, but a release succeeded.
    LostThenReleased,
    /// A release, or the count of a fresh hold, said that the hold was gone, but no signal ever did.
    NoSignal,
    /// The lease of a hold passed, and no signal came.
    OutlivedLease {
        /// How long after its end the hold was still claimed, at least.
        by: Nanos,
    },
    /// The data of a hold was gone, and still a release succeeded undisturbed.
    ReleasedDeleted,
    /// A hold was reported lost before its time, though nothing disturbed it.
    LostEarly,
    /// A fenced hold came without a token.
    NoToken,
    /// A hold's token is not larger than that of a hold before it.
    TokenWentBack {
        /// The token.
        token: u64,
        /// The one before.
        before: u64,
    },
    /// A re-entry returned another token than the hold has.
    TokenChanged {
        /// The token of the re-entry.
        token: u64,
        /// The token of the hold.
        before: u64,
    },
    /// One client, and nobody else, had a lock again and again while another one waited.
    KeptToItself {
        /// How often it had it while the other one waited.
        times: usize,
    },
    /// Somebody who came later was let in first.
    Overtaken {
        /// How much later he had come.
        by: Nanos,
    },
}

impl Breach {
    /// The invariant that it breaks.
    #[must_use]
    pub const fn invariant(&self) -> Invariant {
        match self {
            Self::Overlap { .. } | Self::TornPair => Invariant::I1,
            Self::WrongCount { .. } => Invariant::I2,
            Self::NoTtl => Invariant::I4,
            Self::MissedWakeUp { .. } => Invariant::I5,
            Self::Slow { .. } | Self::BusyWhileFree => Invariant::I6,
            Self::Leftover { .. } => Invariant::I7,
            Self::NotNotified
            | Self::LostThenReleased
            | Self::NoSignal
            | Self::OutlivedLease { .. }
            | Self::ReleasedDeleted
            | Self::LostEarly => Invariant::I8,
            Self::NoToken | Self::TokenWentBack { .. } | Self::TokenChanged { .. } => {
                Invariant::Tokens
            }
            Self::Overtaken { .. } => Invariant::Order,
            Self::KeptToItself { .. } => Invariant::Turns,
        }
    }
}

/// One refuted invariant, with the lines that refute it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// How it was broken.
    pub breach: Breach,
    /// The lock; empty if the violation is about none.
    pub name: String,
    /// The records that show it, in the order of the argument.
    pub evidence: Vec<Record>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let invariant = self.breach.invariant();
        write!(f, "{invariant}: {:?} on {:?}", self.breach, self.name)?;
        for record in &self.evidence {
            let line = serde_json::to_string(record).map_err(|_| fmt::Error)?;
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

/// What a check looked at and found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many holds the history shows.
    pub holds: usize,
    /// How many chances to be refuted each invariant had.
    pub looked_at: BTreeMap<Invariant, u64>,
    /// What was refuted.
    pub violations: Vec<Violation>,
}

impl Report {
    pub(super) fn new(holds: usize) -> Self {
        Self {
            holds,
            ..Self::default()
        }
    }

    pub(super) fn looked(&mut self, at: Invariant) {
        *self.looked_at.entry(at).or_default() += 1;
    }

    pub(super) fn add(&mut self, breach: Breach, name: &str, evidence: Vec<Record>) {
        self.violations.push(Violation {
            breach,
            name: name.to_owned(),
            evidence,
        });
    }

    /// How many violations of an invariant there are.
    #[must_use]
    pub fn count(&self, of: Invariant) -> usize {
        let broken = |violation: &&Violation| violation.breach.invariant() == of;
        self.violations.iter().filter(broken).count()
    }

    /// Whether an invariant was refuted.
    #[must_use]
    pub fn breaks(&self, invariant: Invariant) -> bool {
        self.count(invariant) > 0
    }

    /// Adds what another check looked at and found.
    pub fn merge(&mut self, other: Self) {
        self.holds += other.holds;
        for (invariant, count) in other.looked_at {
            *self.looked_at.entry(invariant).or_default() += count;
        }
        self.violations.extend(other.violations);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<24} {:>10} {:>10}",
            "invariant", "looked at", "broken"
        )?;
        for invariant in Invariant::ALL {
            let looked = self.looked_at.get(&invariant).copied().unwrap_or(0);
            writeln!(
                f,
                "{invariant:<24} {looked:>10} {:>10}",
                self.count(invariant)
            )?;
        }
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        Ok(())
    }
}

/// Milliseconds, for tests and messages.
#[must_use]
pub(super) const fn ms(milliseconds: u64) -> Nanos {
    milliseconds.saturating_mul(MS)
}
