//! The scripts of locks with fencing tokens; what they have no script for is the plain lock's.

use super::registry::{FENCED_ACQUIRE, FENCED_RAISE, FENCED_REENTER};
use super::{Acquired, Call, Entered, Reply, lock};
use crate::fencing::FencingToken;
use crate::lease::LeaseMs;
use crate::names::Names;

/// Where the token's key is among the names of the family.
const TOKEN: usize = 0;

pub(crate) fn acquire<'a>(
    names: &'a Names,
    hold_id: &'a str,
    lease: LeaseMs,
    token_ttl: Option<LeaseMs>,
) -> Call<'a> {
    Call::script(&FENCED_ACQUIRE)
        .lock(names)
        .key(names.other(TOKEN))
        .arg(hold_id)
        .arg(lease.as_millis())
        .arg(token_ttl.map_or(0, LeaseMs::as_millis))
}

pub(crate) fn acquired(reply: &Reply) -> Option<Acquired> {
    match reply {
        Reply::Integers(_) => Some(Acquired::Got(Some(token(reply)?))),
        Reply::Integer(-2) => None,
        Reply::Integer(-4) => Some(Acquired::TokenTooLarge),
        _ => lock::acquired(reply),
    }
}

/// Enters a hold that has no token, and takes one for it.
pub(crate) fn reenter<'a>(
    names: &'a Names,
    hold_id: &'a str,
    count: u32,
    lease: LeaseMs,
    token_ttl: Option<LeaseMs>,
) -> Call<'a> {
    Call::script(&FENCED_REENTER)
        .lock(names)
        .key(names.other(TOKEN))
        .arg(hold_id)
        .arg(count)
        .arg(lease.as_millis())
        .arg(token_ttl.map_or(0, LeaseMs::as_millis))
}

/// What an entry was answered: by a hold without a token, or by one that has it, which is the plain lock's.
pub(crate) fn entered(reply: &Reply) -> Option<Entered> {
    match reply {
        Reply::Integers(_) => Some(Entered::In(Some(token(reply)?))),
        Reply::Integer(0) => Some(Entered::Missing),
        Reply::Integer(1) => Some(Entered::In(None)),
        Reply::Integer(-3) => Some(Entered::WrongType),
        Reply::Integer(-4) => Some(Entered::TokenTooLarge),
        _ => None,
    }
}

/// Makes `token` the newest one, unless a larger one is there.
pub(crate) fn raise<'a>(
    names: &'a Names,
    hold_id: &'a str,
    token: FencingToken,
    token_ttl: Option<LeaseMs>,
) -> Call<'a> {
    Call::script(&FENCED_RAISE)
        .key(names.key())
        .key(names.other(TOKEN))
        .arg(hold_id)
        .arg(token.as_u64())
        .arg(token_ttl.map_or(0, LeaseMs::as_millis))
}

/// Whether the token is there now, or a larger one.
pub(crate) fn raised(reply: &Reply) -> bool {
    *reply == Reply::Integer(1)
}

fn token(reply: &Reply) -> Option<FencingToken> {
    match reply {
        Reply::Integers(numbers) => match *numbers.as_slice() {
            [number] => FencingToken::new(u64::try_from(number).ok()?),
            _ => None,
        },
        _ => None,
    }
}
