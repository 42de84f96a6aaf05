//! The calls of locks with fencing tokens. All others are the plain lock's.

use super::call::{FENCED_ACQUIRE, FENCED_RAISE, FENCED_REENTER};
use super::{Call, HoldRef};
use crate::fencing::FencingToken;
use crate::lease::LeaseMs;
use crate::names::Names;

/// The index of the token's key among the names of the family.
const TOKEN: usize = 0;

pub(crate) fn acquire(hold: HoldRef<'_>, token_ttl: Option<LeaseMs>) -> Call<'_> {
    FENCED_ACQUIRE
        .on(hold.names)
        .key(hold.names.other(TOKEN))
        .arg(hold.id)
        .arg(hold.lease)
        .arg(token_ttl.map_or(0, LeaseMs::as_millis))
}

/// Adds a level to a hold without a token, and takes a token for it.
pub(crate) fn reenter(hold: HoldRef<'_>, count: u32, token_ttl: Option<LeaseMs>) -> Call<'_> {
    FENCED_REENTER
        .on(hold.names)
        .key(hold.names.other(TOKEN))
        .arg(hold.id)
        .arg(count)
        .arg(hold.lease)
        .arg(token_ttl.map_or(0, LeaseMs::as_millis))
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
