//! The seat of a gate: what of a name is under way in this client, one thing at a time.
//!
//! ```text
//!            attempt                granted
//! Free ──────────────▶ Trying ──────────────────▶ Held ──────────────▶ HandingOver
//!  ▲  ▲                  │ │  nobody wants it       │    last level,         │ the keeper sent it,
//!  │  └──── not granted ─┘ └───────────────┐        │    left to the keeper  │ and the next try with it
//!  │                                       ▼        ▼ last level             ▼
//!  └───────────── answered ──────────── Releasing ◀──────────────────────────┘
//!                                          └── answered, and a next try was sent along ──▶ Trying
//! ```
//!
//! 1. A hold of this client that is valid has the seat of its name. A lost one leaves it at once.
//! 2. An answer belongs to a command, not to a hold: of two tries of one attempt only the present one counts.
//! 3. A try that was sent along with a release waits in `Releasing` and gets the seat with its answer, also
//!    when its caller is gone by then: it may have got the lock.
//! 4. A hold that is shared has the seat together with all its shares. Whoever wants a share, and may not have it
//!    without asking, asks by a *join*: one at a time, beside the hold.

use std::sync::Arc;

use super::joint::Joint;
use super::ticket::Ticket;
use crate::clock::Moment;
use crate::engine::hold::Hold;

/// A try for a ticket, with its command in flight.
#[derive(Clone)]
pub(crate) struct Attempt<C> {
    pub(crate) hold: Arc<Hold>,
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) command: C,
    /// When the command was started.
    pub(crate) since: Moment,
    /// Sent before the seat was free: if it was answered busy, then maybe by the hold before it.
    pub(crate) early: bool,
    /// No answer came in time, and its caller may not be polled: somebody else must see it through.
    pub(crate) overdue: bool,
}

/// What occupies a name.
pub(crate) enum Seat<C> {
    Free,
    Trying(Attempt<C>),
    Held {
        hold: Arc<Hold>,
        /// Whom it was granted to, and when, until that one took it.
        uncollected: Option<(Arc<Ticket>, Moment)>,
    },
    /// Held by those who have shares of it, and asked for by one more.
    Shared {
        joint: Joint,
        join: Option<Attempt<C>>,
    },
    /// The last release is decided, and left to the job, which sends the next try along with it.
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

/// What the seat of a hold that is over became.
pub(crate) enum Vacated {
    /// The hold did not have it.
    NotHere,
    Free,
    /// The next try has it; its ticket.
    Next(Arc<Ticket>),
}

impl<C: Clone + PartialEq> Seat<C> {
    pub(crate) fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    /// The hold, or attempt, that has the seat.
    pub(crate) fn occupant(&self) -> Option<&Arc<Hold>> {
        match self {
            Self::Free => None,
            Self::Trying(attempt) => Some(&attempt.hold),
            Self::Shared { joint, .. } => Some(&joint.hold),
            Self::Held { hold, .. } | Self::HandingOver { hold } | Self::Releasing { hold, .. } => {
                Some(hold)
            }
        }
    }

    /// The hold in the seat, while it is held.
    pub(crate) fn held(&self) -> Option<&Arc<Hold>> {
        match self {
            Self::Held { hold, .. } => Some(hold),
            Self::Shared { joint, .. } => Some(&joint.hold),
            _ => None,
        }
    }

    /// The joint hold that is `hold`, while it is held.
    pub(crate) fn joint(&mut self, hold: &Arc<Hold>) -> Option<&mut Joint> {
        match self {
            Self::Shared { joint, .. } if Arc::ptr_eq(&joint.hold, hold) => Some(joint),
            _ => None,
        }
    }

    /// The commands in flight, and the holds that they are of.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (&Arc<Hold>, &C)> {
        let (first, second) = match self {
            Self::Trying(attempt)
            | Self::Shared {
                join: Some(attempt),
                ..
            } => (Some((&attempt.hold, &attempt.command)), None),
            Self::Releasing {
                hold,
                command,
                next,
                ..
            } => (
                command.as_ref().map(|command| (hold, command)),
                next.as_ref().map(|next| (&next.hold, &next.command)),
            ),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Whether a command of `ticket` is in flight, here or along with a release.
    pub(crate) fn is_trying_for(&self, ticket: &Arc<Ticket>) -> bool {
        match self {
            Self::Trying(attempt)
            | Self::Shared {
                join: Some(attempt),
                ..
            }
            | Self::Releasing {
                next: Some(attempt),
                ..
            } => Arc::ptr_eq(&attempt.ticket, ticket),
            _ => false,
        }
    }

    /// Whether something is under way that leaves a key behind if it is forgotten.
    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(
            self,
            Self::Trying(_) | Self::HandingOver { .. } | Self::Releasing { .. }
        )
    }

    /// An attempt takes the free seat.
    pub(crate) fn try_for(&mut self, attempt: Attempt<C>) {
        *self = Self::Trying(attempt);
    }

    /// The attempt that `command` is of, if it has the seat; the seat is free then, unless it was a join.
    pub(crate) fn answered(&mut self, command: &C) -> Option<Attempt<C>> {
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

    /// An attempt became a hold.
    pub(crate) fn hold(&mut self, hold: Arc<Hold>, uncollected: Option<(Arc<Ticket>, Moment)>) {
        *self = Self::Held { hold, uncollected };
    }

    /// The grant that nobody took since `moment`, or before. It counts as collected from now on.
    pub(crate) fn take_uncollected(&mut self, moment: Moment) -> Option<Arc<Ticket>> {
        match self {
            Self::Held { uncollected, .. } => {
                let (ticket, _) = uncollected.take_if(|(_, since)| *since <= moment)?;
                Some(ticket)
            }
            Self::Shared { joint, .. } => joint.take_uncollected(moment),
            _ => None,
        }
    }

    /// The last release of `hold`, which has the seat, is decided, and left to the job.
    pub(crate) fn hand_over(&mut self, hold: &Arc<Hold>) {
        *self = Self::HandingOver {
            hold: Arc::clone(hold),
        };
    }

    /// The last release of `hold` is under way.
    pub(crate) fn release(
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

    /// Since when the last release of `hold` is under way, if it has the seat.
    pub(crate) fn released_since(&self, hold: &Arc<Hold>) -> Option<Moment> {
        match self {
            Self::Releasing {
                hold: releasing,
                since,
                ..
            } if Arc::ptr_eq(releasing, hold) => Some(*since),
            _ => None,
        }
    }

    /// A release of `hold` failed; its command counts no more. False when the hold has no seat.
    pub(crate) fn release_failed(&mut self, hold: &Arc<Hold>, failed: Option<&C>) -> bool {
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

    /// `hold` is over, one way or the other.
    pub(crate) fn vacate(&mut self, hold: &Arc<Hold>) -> Vacated {
        match std::mem::replace(self, Self::Free) {
            Self::Held { hold: over, .. } | Self::HandingOver { hold: over }
                if Arc::ptr_eq(&over, hold) =>
            {
                Vacated::Free
            }
            Self::Shared { joint, .. } if Arc::ptr_eq(&joint.hold, hold) => Vacated::Free,
            Self::Releasing {
                hold: over, next, ..
            } if Arc::ptr_eq(&over, hold) => match next {
                Some(next) => {
                    let ticket = Arc::clone(&next.ticket);
                    self.try_for(next);
                    Vacated::Next(ticket)
                }
                None => Vacated::Free,
            },
            other => {
                *self = other;
                Vacated::NotHere
            }
        }
    }
}

#[cfg(test)]
#[path = "seat_tests.rs"]
mod tests;
