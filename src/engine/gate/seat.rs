//! The seat of a gate: what this client does about a name, one thing at a time.
//!
//! ```text
//!            attempt                granted
//! Free ──────────────▶ Trying ──────────────────▶ Held ──────────────▶ HandingOver
//!  ▲  ▲                  │ │  nobody wants it       │    last level,         │ the job sent it,
//!  │  └──── not granted ─┘ └───────────────┐        │    left to the job     │ and the next try with it
//!  │                                       ▼        ▼ last level             ▼
//!  └───────────── answered ──────────── Releasing ◀──────────────────────────┘
//!                                          └── answered, and a next try was sent along ──▶ Trying
//! ```
//!
//! 1. A valid hold of this client has the seat of its name. A lost one leaves it at once.
//! 2. An answer belongs to a command, not to a hold: of two tries of one attempt only the present one counts.
//! 3. A try that was sent along with a release waits in `Releasing` and gets the seat when the release is answered, even
//!    if its caller is gone by then: Redis may have granted it.
//! 4. A shared hold has the seat together with all its reads. A caller that may not take a read without asking Redis
//!    sends a *join*: one at a time, beside the hold.

use std::sync::Arc;

use super::shared_hold::SharedHold;
use super::ticket::Ticket;
use crate::clock::Moment;
use crate::engine::hold::Hold;

/// A try for a ticket, with its command in flight.
#[derive(Clone)]
pub(super) struct Attempt<C> {
    pub(super) hold: Arc<Hold>,
    pub(super) ticket: Arc<Ticket>,
    pub(super) command: C,
    /// When the command was started.
    pub(super) since: Moment,
    /// Sent before the seat was free, so "busy" may mean the hold before it.
    pub(super) early: bool,
    /// No answer came in time, and its caller may not be polled: somebody else must complete it.
    pub(super) overdue: bool,
    /// Of a counted lock, the tickets behind it that the command asks for, too. They stay in the queue meanwhile.
    pub(super) beside: Vec<(Arc<Ticket>, Arc<Hold>)>,
}

/// What occupies a name.
pub(super) enum Seat<C> {
    Free,
    Trying(Attempt<C>),
    Held {
        hold: Arc<Hold>,
    },
    /// Held by the callers that have reads of it; one more may ask for a read.
    Shared {
        shared: SharedHold,
        join: Option<Attempt<C>>,
    },
    /// The last release is left to the job, which sends the next try along with it.
    HandingOver {
        hold: Arc<Hold>,
    },
    /// The last release is under way: as `command`, or without one when the keeper repeats it.
    Releasing {
        hold: Arc<Hold>,
        command: Option<C>,
        since: Moment,
        next: Option<Attempt<C>>,
    },
}

impl<C> Attempt<C> {
    pub(super) fn new(hold: Arc<Hold>, ticket: Arc<Ticket>, command: C, since: Moment) -> Self {
        Self {
            hold,
            ticket,
            command,
            since,
            early: false,
            overdue: false,
            beside: Vec::new(),
        }
    }

    pub(super) fn is_for(&self, ticket: &Arc<Ticket>) -> bool {
        let mut beside = self.beside.iter();
        Arc::ptr_eq(&self.ticket, ticket) || beside.any(|(other, _)| Arc::ptr_eq(other, ticket))
    }
}

impl<C: Clone + PartialEq> Seat<C> {
    pub(super) fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    /// The hold, or attempt, that has the seat.
    pub(super) fn occupant(&self) -> Option<&Arc<Hold>> {
        match self {
            Self::Free => None,
            Self::Trying(attempt) => Some(&attempt.hold),
            Self::Shared { shared, .. } => Some(shared.hold()),
            Self::Held { hold } | Self::HandingOver { hold } | Self::Releasing { hold, .. } => {
                Some(hold)
            }
        }
    }

    /// The hold in the seat, while it is held.
    pub(super) fn held(&self) -> Option<&Arc<Hold>> {
        match self {
            Self::Held { hold } => Some(hold),
            Self::Shared { shared, .. } => Some(shared.hold()),
            _ => None,
        }
    }

    /// The shared hold that is `hold`, while it is held.
    pub(super) fn shared_hold(&mut self, hold: &Arc<Hold>) -> Option<&mut SharedHold> {
        match self {
            Self::Shared { shared, .. } if Arc::ptr_eq(shared.hold(), hold) => Some(shared),
            _ => None,
        }
    }

    /// Whether it has a shared hold that nobody asks to join.
    pub(super) fn may_join(&self) -> bool {
        matches!(self, Self::Shared { join: None, .. })
    }

    /// The attempt in the seat, or the join beside its hold.
    pub(super) fn attempt(&self) -> Option<&Attempt<C>> {
        match self {
            Self::Trying(attempt) => Some(attempt),
            Self::Shared { join, .. } => join.as_ref(),
            _ => None,
        }
    }

    /// The try that was sent along with a release.
    pub(super) fn next(&self) -> Option<&Attempt<C>> {
        match self {
            Self::Releasing { next, .. } => next.as_ref(),
            _ => None,
        }
    }

    /// The try that is under way: the attempt, the join, or what was sent along with a release.
    pub(super) fn tries(&self) -> Option<&Attempt<C>> {
        self.attempt().or(self.next())
    }

    /// The attempt in the seat, or the join beside its hold, if it is that of `command`.
    pub(super) fn attempt_by(&mut self, command: &C) -> Option<&mut Attempt<C>> {
        let attempt = match self {
            Self::Trying(attempt) => Some(attempt),
            Self::Shared { join, .. } => join.as_mut(),
            _ => None,
        };
        attempt.filter(|attempt| attempt.command == *command)
    }

    /// The commands in flight, and their holds.
    pub(super) fn commands(&self) -> impl Iterator<Item = (&Arc<Hold>, &C)> {
        let release = match self {
            Self::Releasing {
                hold,
                command: Some(command),
                ..
            } => Some((hold, command)),
            _ => None,
        };
        let tries = self
            .tries()
            .map(|attempt| (&attempt.hold, &attempt.command));
        release.into_iter().chain(tries)
    }

    /// Whether a command of `ticket` is in flight, here or along with a release.
    pub(super) fn is_trying_for(&self, ticket: &Arc<Ticket>) -> bool {
        self.tries().is_some_and(|attempt| attempt.is_for(ticket))
    }

    /// What was taken has been given back while a try is under way, so its "busy" may be out of date.
    pub(super) fn is_early(&mut self) {
        if let Self::Trying(attempt) = self {
            attempt.early = true;
        }
    }

    /// Whether something is under way that leaves a key behind if it is forgotten.
    pub(super) fn is_in_flight(&self) -> bool {
        matches!(
            self,
            Self::Trying(_) | Self::HandingOver { .. } | Self::Releasing { .. }
        )
    }

    /// Takes out the attempt that `command` belongs to. That frees the seat, unless the attempt was a join.
    pub(super) fn answered(&mut self, command: &C) -> Option<Attempt<C>> {
        if let Self::Shared { join, .. } = self {
            return join.take_if(|join| join.command == *command);
        }
        match std::mem::replace(self, Self::Free) {
            Self::Trying(attempt) if attempt.command == *command => Some(attempt),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The last release of `hold` is under way.
    pub(super) fn release(
        &mut self,
        hold: &Arc<Hold>,
        command: Option<C>,
        next: Option<Attempt<C>>,
        since: Moment,
    ) {
        *self = Self::Releasing {
            hold: Arc::clone(hold),
            command,
            since,
            next,
        };
    }

    /// The command of the last release of `hold`, and since when the release is under way, if it has the seat.
    pub(super) fn release_of(&self, hold: &Arc<Hold>) -> Option<(Option<&C>, Moment)> {
        match self {
            Self::Releasing {
                hold: releasing,
                command,
                since,
                ..
            } if Arc::ptr_eq(releasing, hold) => Some((command.as_ref(), *since)),
            _ => None,
        }
    }

    /// A release of `hold` failed, so its command counts no more. Returns false if the hold does not have the seat.
    pub(super) fn release_failed(&mut self, hold: &Arc<Hold>, failed: Option<&C>) -> bool {
        match self {
            Self::Releasing {
                hold: releasing,
                command,
                ..
            } if Arc::ptr_eq(releasing, hold) => {
                command.take_if(|command| failed == Some(command));
                true
            }
            _ => false,
        }
    }

    /// Takes `hold`, which is over, out of the seat. The try that was sent along with its release has it then. Returns false
    /// if the hold did not have it.
    pub(super) fn vacate(&mut self, hold: &Arc<Hold>) -> bool {
        let trying = matches!(self, Self::Free | Self::Trying(_));
        if trying || !self.occupant().is_some_and(|over| Arc::ptr_eq(over, hold)) {
            return false;
        }
        *self = match std::mem::replace(self, Self::Free) {
            Self::Releasing {
                next: Some(next), ..
            } => Self::Trying(next),
            _ => Self::Free,
        };
        true
    }
}

#[cfg(test)]
#[path = "seat_tests.rs"]
mod tests;
