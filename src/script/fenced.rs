//! The calls of locks with fencing tokens. All others are the plain lock's.

use super::call::{FENCED_ACQUIRE, FENCED_RAISE, FENCED_REENTER};
use super::{Acquired, Call, Reply, lock};
use crate::fencing::FencingToken;
use crate::lease::LeaseMs;
use crate::names::Names;

/// The index of the token's key among the names of the family.
const TOKEN: usize = 0;

pub(crate) fn acquire<'a>(
    names: &'a Names,
    hold_id: &'a str,
    lease: LeaseMs,
    token_ttl: Option<LeaseMs>,
) -> Call<'a> {
    FENCED_ACQUIRE
        .on(names)
        .key(names.other(TOKEN))
        .arg(hold_id)
        .arg(lease)
        .arg(token_ttl.map_or(0, LeaseMs::as_millis))
}

pub(crate) fn acquired(reply: &Reply) -> Option<Acquired> {
    match reply.integer() {
        None => Some(Acquired::Got(Some(token(reply)?))),
        Some(-2) => None,
        Some(-4) => Some(Acquired::TokenTooLarge),
        Some(_) => lock::acquired(reply),
    }
}

/// Adds a level to a hold without a token, and takes a token for it.
pub(crate) fn reenter<'a>(
    names: &'a Names,
    hold_id: &'a str,
    count: u32,
    lease: LeaseMs,
    token_ttl: Option<LeaseMs>,
) -> Call<'a> {
    FENCED_REENTER
        .on(names)
        .key(names.other(TOKEN))
        .arg(hold_id)
        .arg(count)
        .arg(lease)
        .arg(token_ttl.map_or(0, LeaseMs::as_millis))
}

/// Decodes the reply to [`reenter`], or to the plain lock's, which adds a level to a hold that has a token.
pub(crate) fn entered(reply: &Reply) -> Option<Acquired> {
    match reply.integer() {
        Some(0) => Some(Acquired::Missing),
        Some(1) => Some(Acquired::Got(None)),
        Some(-3 | -4) | None => acquired(reply),
        Some(_) => None,
    }
}

/// Raises the newest token to `token`, unless a larger one is stored.
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

/// Whether this token or a larger one is stored now.
pub(crate) fn raised(reply: &Reply) -> bool {
    *reply == Reply::Integer(1)
}

fn token(reply: &Reply) -> Option<FencingToken> {
    match *reply.integers() {
        [number] => FencingToken::new(u64::try_from(number).ok()?),
        _ => None,
    }
}
