//! What our scripts answer: one grammar for all of them.
//!
//! A reply is a code, or `{code, n}` where the code has a number; a number that is left out is 0. Two codes have two numbers.
//! From -1 up a code is the answer of `PTTL` about a lock that others have. So a plain `PTTL` is read in the same way: -2
//! stands for a free lock.
//!
//! | code | meaning | n |
//! |---|---|---|
//! | -1 and up | busy: others have the lock for so many ms; -1 if the key has no TTL | |
//! | -2 | done: granted, entered, found, given back, ended, written; or the lock is free | by the script: see its header |
//! | -3 | the key is of another kind, or the token is not a number; nothing was written | |
//! | -4 | no fencing token up to 2^53 is left; nothing was written | |
//! | -5 | what the call is about does not exist: the hold, the place, the mark | |
//! | -6 | granted, and a writer waits | |
//! | -7 | ended, and the wake-up was published | how many clients received it |
//! | -8 | ended, and the server refused the wake-up | as with -2 |
//! | -9 | done, and the next place in the queue is of the same client | as with -2 |
//! | -10 | granted or entered, with a fencing token | the token |
//! | -11 | done, and the number is -n | as with -2 |
//! | -12 | a number would be out of range; nothing was written | its absolute value |
//! | -13 | granted, and a next one is busy | to how many; then for how many ms the next is busy, -1 if no lease ends |
//! | -14 | the same, and another client's request has waited | as above |
//! | -15 | done, and many clients wait: none needs to poll | as with -2 |
//!
//! Anything else is an error.

use std::time::Duration;

use redis::Value;

use crate::fencing::FencingToken;

/// A reply to any of our calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// None if the key has no TTL.
    Busy(Option<Duration>),
    Done(u64),
    WrongType,
    TokenTooLarge,
    Gone,
    WriterWaits,
    Woke(u32),
    Unheard(u64),
    NextIsOurs(u64),
    Token(FencingToken),
    DoneNegative(u64),
    OutOfRange(u64),
    /// Granted to so many, and for how long the next one is busy, if that ends by itself.
    NextIsBusy(u64, Option<Duration>),
    /// The same, and a request of another client has waited.
    OthersWait(u64, Option<Duration>),
    ManyWait(u64),
    /// No script answers like this; a plain command may.
    Other,
}

impl Reply {
    pub(crate) fn from_value(value: &Value) -> Self {
        let read = match value {
            Value::Int(code) => Self::of(*code, 0),
            Value::Array(items) => match items[..] {
                [Value::Int(code), Value::Int(n)] => {
                    u64::try_from(n).ok().and_then(|n| Self::of(code, n))
                }
                [
                    Value::Int(code @ (-13 | -14)),
                    Value::Int(n),
                    Value::Int(ms),
                ] => {
                    let ms = u64::try_from(ms).ok().map(Duration::from_millis);
                    u64::try_from(n).ok().map(|n| match code {
                        -13 => Self::NextIsBusy(n, ms),
                        _ => Self::OthersWait(n, ms),
                    })
                }
                _ => None,
            },
            _ => None,
        };
        read.unwrap_or(Self::Other)
    }

    fn of(code: i64, n: u64) -> Option<Self> {
        Some(match (code, n) {
            (-1, 0) => Self::Busy(None),
            (-2, n) => Self::Done(n),
            (-3, 0) => Self::WrongType,
            (-4, 0) => Self::TokenTooLarge,
            (-5, 0) => Self::Gone,
            (-6, 0) => Self::WriterWaits,
            (-7, n) => Self::Woke(u32::try_from(n).ok()?),
            (-8, n) => Self::Unheard(n),
            (-9, n) => Self::NextIsOurs(n),
            (-10, n) => Self::Token(FencingToken::new(n)?),
            (-11, n) => Self::DoneNegative(n),
            (-12, n) => Self::OutOfRange(n),
            (-15, n) => Self::ManyWait(n),
            (ms, 0) => Self::Busy(Some(Duration::from_millis(u64::try_from(ms).ok()?))),
            _ => return None,
        })
    }

    /// Whether it granted the lock, as a reply to an acquire.
    pub(crate) fn is_grant(self) -> bool {
        matches!(
            self,
            Self::Done(_)
                | Self::WriterWaits
                | Self::NextIsOurs(_)
                | Self::Token(_)
                | Self::NextIsBusy(..)
                | Self::OthersWait(..)
        )
    }

    pub(crate) fn token(self) -> Option<FencingToken> {
        match self {
            Self::Token(token) => Some(token),
            _ => None,
        }
    }

    /// Whether the hold existed, as a reply to a call that verified, counted or downgraded it.
    pub(crate) fn found(self) -> Option<bool> {
        match self {
            Self::Done(_) | Self::Unheard(_) => Some(true),
            Self::Gone => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
