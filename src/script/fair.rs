//! The fair lock's calls. Those that enter, verify or renew a hold are the plain lock's.

use super::call::Script;
use super::call::{FAIR_ACQUIRE, FAIR_ENQUEUE, FAIR_FORCE_RELEASE, FAIR_RELEASE, FAIR_VOUCH};
use super::{Acquired, Call, Placed, Released, Reply, lock};
use crate::lease::LeaseMs;
use crate::names::Names;

/// The indices of the queue, the scores and the waiters among the names of the family.
const KEYS: [usize; 3] = [0, 1, 2];

/// The keys and arguments that every script of the fair lock begins with.
fn call<'a>(script: &'static Script, names: &'a Names, wait: LeaseMs) -> Call<'a> {
    let call = script.on(names);
    let call = KEYS
        .iter()
        .fold(call, |call, key| call.key(names.other(*key)));
    call.arg(wait).arg(names.channel())
}

pub(crate) fn acquire<'a>(
    names: &'a Names,
    wait: LeaseMs,
    hold_id: &'a str,
    lease: LeaseMs,
    waits: bool,
) -> Call<'a> {
    call(&FAIR_ACQUIRE, names, wait)
        .arg(hold_id)
        .arg(lease)
        .arg(u32::from(waits))
        .publishes()
}

pub(crate) fn acquired(reply: &Reply) -> Option<Acquired> {
    match *reply.integers() {
        [-2, _] => Some(Acquired::Got(None)),
        [-3, _] => Some(Acquired::WrongType),
        [0 | 1, ms] => Acquired::busy(ms),
        _ => None,
    }
}

/// Whether the next waiter belongs to this client, by the reply to an acquire that was granted.
pub(crate) fn next_is_ours(reply: &Reply) -> Option<bool> {
    match *reply.integers() {
        [-2, next] => Some(next == 1),
        _ => None,
    }
}

pub(crate) fn release<'a>(
    names: &'a Names,
    wait: LeaseMs,
    hold_id: &'a str,
    left: u32,
) -> Call<'a> {
    call(&FAIR_RELEASE, names, wait)
        .arg(hold_id)
        .arg(left)
        .publishes()
}

pub(crate) fn released(reply: &Reply) -> Option<Released> {
    match reply.integer()? {
        1 => Some(Released::Ended { heard_by: None }),
        _ => lock::released(reply),
    }
}

pub(crate) fn force_release<'a>(names: &'a Names, wait: LeaseMs, client: &'a str) -> Call<'a> {
    call(&FAIR_FORCE_RELEASE, names, wait)
        .arg(client)
        .publishes()
}

/// Gives places in the queue to hold ids of one client, in this order, if its waiter `ahead` of them has a place.
pub(crate) fn enqueue<'a>(
    names: &'a Names,
    wait: LeaseMs,
    ahead: Option<&'a str>,
    hold_ids: &[&'a str],
) -> Call<'a> {
    let call = call(&FAIR_ENQUEUE, names, wait).arg(ahead.unwrap_or(""));
    hold_ids
        .iter()
        .fold(call, |call, hold_id| call.arg(*hold_id))
}

/// Keeps the places of a client, which should be those of these hold ids.
pub(crate) fn vouch<'a>(
    names: &'a Names,
    wait: LeaseMs,
    client: &'a str,
    hold_ids: &[&'a str],
) -> Call<'a> {
    let call = call(&FAIR_VOUCH, names, wait).arg(client);
    let ids = hold_ids.iter();
    ids.fold(call, |call, hold_id| call.arg(*hold_id))
        .publishes()
}

/// Decodes the reply to [`enqueue`] or [`vouch`].
pub(crate) fn placed(reply: &Reply) -> Option<Placed> {
    match *reply.integers() {
        [count, next] => Some(Placed {
            count: usize::try_from(count).ok()?,
            next_is_ours: next == 1,
        }),
        _ => None,
    }
}
