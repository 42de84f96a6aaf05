//! Replies, and what they can mean.

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use crate::fencing::FencingToken;

/// A reply to any of our calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Integer(i64),
    /// An array, usually of one or two.
    Integers(SmallVec<[i64; 2]>),
    /// None of our calls is answered like this.
    Other,
}

impl Reply {
    pub(crate) fn from_value(value: &Value) -> Self {
        let integer = |value: &Value| match value {
            Value::Int(n) => Some(*n),
            _ => None,
        };
        match value {
            Value::Int(n) => Self::Integer(*n),
            Value::Array(items) => {
                let integers: Option<_> = items.iter().map(integer).collect();
                integers.map_or(Self::Other, Self::Integers)
            }
            _ => Self::Other,
        }
    }

    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(n) => Some(*n),
            _ => None,
        }
    }

    /// The integers of an array; nothing if it is not one.
    pub(crate) fn integers(&self) -> &[i64] {
        match self {
            Self::Integers(numbers) => numbers,
            _ => &[],
        }
    }
}

/// The reply to an acquire, a join or a re-entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// With the hold's fencing token, if the reply has one.
    Got(Option<FencingToken>),
    /// Somebody else has the lock for so long; None if the key has no TTL.
    Busy(Option<Duration>),
    /// The hold to join or enter does not exist.
    Missing,
    WrongType,
    /// The next fencing token would be larger than 2^53.
    TokenTooLarge,
}

impl Acquired {
    /// Busy for so many ms, or -1 without a TTL.
    pub(super) fn busy(ttl_ms: i64) -> Option<Self> {
        if ttl_ms == -1 {
            return Some(Self::Busy(None));
        }
        let ttl = Duration::from_millis(u64::try_from(ttl_ms).ok()?);
        Some(Self::Busy(Some(ttl)))
    }
}

/// The reply to the release of the last level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// With the number of clients that received the wake-up, where it says who may come next.
    Ended {
        heard_by: Option<u32>,
    },
    /// Redis ended the hold and refused the wake-up: waiters notice at their next poll.
    Unheard,
    Missing,
}

/// The reply about places in the queue that Redis keeps for a fair lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    /// To a vouch, how many of its hold ids have a place. To an enqueue, 1 if the places were given, and 0 if not, because
    /// the place ahead of them is lost.
    pub(crate) count: usize,
    /// Whether the place at the head belongs to the client.
    pub(crate) next_is_ours: bool,
}

/// The reply to a forced release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forced {
    Free,
    WrongType,
    /// A hold ended; with its number if it was a hold of the caller's client.
    Ended {
        own: Option<u64>,
        heard: bool,
    },
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
