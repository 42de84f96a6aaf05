//! Holds, tickets and kinds for unit tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::gate::ticket::{Patience, Request, Ticket};
use super::hold::kind::{Commands, Kind, KindCommands, KindRules, Sharing};
use super::hold::owner::OwnerState;
use super::hold::state::Level;
use super::hold::{Hold, Origin, Rules, TaskId};
use crate::clock::Moment;
use crate::lease::LeaseMs;
use crate::names::{Family, Names};

pub(crate) const LEASE: LeaseMs = LeaseMs::from_millis(30_000);

pub(crate) const RULES: Rules = Rules {
    command_timeout: Duration::from_secs(5),
    unavailable_after: Duration::from_secs(10),
    runs_since: Moment::from_nanos(0),
    watchdog_lease: LEASE,
    passes_on: false,
};

/// Seconds after the start of a test.
pub(crate) fn at(seconds: u64) -> Moment {
    Moment::from_nanos(1_000_000_000) + Duration::from_secs(seconds)
}

/// How a lock of a kind is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Plain,
    Reads,
    Writes,
    /// So many permits.
    Permits(u32),
}

impl Commands for Sort {
    fn rules(&self) -> KindRules {
        KindRules {
            sharing: match self {
                Self::Plain | Self::Permits(_) => Sharing::Exclusive,
                Self::Reads => Sharing::Reads,
                Self::Writes => Sharing::Writes,
            },
            passes_on: matches!(self, Self::Permits(_)),
            permits: match self {
                Self::Permits(permits) => Some(*permits),
                _ => None,
            },
            ..KindRules::DEFAULT
        }
    }
}

pub(crate) fn kind(sort: Sort) -> Kind {
    Kind {
        names: Arc::new(Names::of(&Family::PLAIN, "", "x").unwrap()),
        commands: KindCommands::OfOne(Arc::new(sort)),
        metrics: crate::report::LockMetrics::default(),
    }
}

pub(crate) fn origin(number: u64) -> Origin {
    Origin {
        kind: kind(Sort::Plain),
        id: number.to_string().into(),
        number,
        lease: LEASE,
        owner: None,
        entered_by: number,
        task: TaskId::default(),
    }
}

/// One that is tried for.
pub(crate) fn hold(number: u64) -> Arc<Hold> {
    Hold::trying(origin(number), Moment::NEVER)
}

/// One that was granted at the start.
pub(crate) fn held(number: u64, level: Level) -> Arc<Hold> {
    let hold = hold(number);
    assert!(hold.with(|state| state.grant(level, LEASE.term(at(0)), at(0))));
    hold
}

/// Of nobody, under the watchdog, from the start.
pub(crate) fn request(sort: Sort, patience: Patience) -> Request {
    Request {
        kind: kind(sort),
        owner: None,
        lease: LEASE,
        level: Level::Watchdog,
        at_most: None,
        patience,
        since: at(0),
        turn: None,
        rounds: 0,
        sent: false,
    }
}

/// A ticket that waits without a limit.
pub(crate) fn ticket(number: u64, sort: Sort) -> Arc<Ticket> {
    Ticket::new(number, request(sort, Patience::Forever))
}

pub(crate) fn of_owner(request: Request, owner: &Arc<OwnerState>) -> Request {
    Request {
        owner: Some(Arc::clone(owner)),
        ..request
    }
}

/// How often it was woken.
#[derive(Default)]
pub(crate) struct Woken(AtomicUsize);

impl Woken {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let woken = Arc::new(Self::default());
        (Arc::clone(&woken), Waker::from(woken))
    }

    pub(crate) fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
