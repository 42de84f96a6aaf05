//! The fair lock's scripts; entering, verifying and renewing a hold are the plain lock's.

use std::time::Duration;

use super::registry::Script;
use super::registry::{FAIR_ACQUIRE, FAIR_ENQUEUE, FAIR_FORCE_RELEASE, FAIR_RELEASE, FAIR_VOUCH};
use super::{Acquired, Call, Place, Released, Reply};
use crate::lease::LeaseMs;
use crate::names::Names;

/// The queue, the scores and the waiters are these names of the family.
const KEYS: [usize; 3] = [0, 1, 2];

/// What every script of the fair lock is called with first.
fn call<'a>(script: &'static Script, names: &'a Names, wait: LeaseMs) -> Call<'a> {
    let call = Call::script(script).lock(names);
    let call = KEYS
        .iter()
        .fold(call, |call, key| call.key(names.other(*key)));
    call.arg(wait.as_millis()).arg(names.channel())
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
        .arg(lease.as_millis())
        .arg(u32::from(waits))
        .publishes()
}

pub(crate) fn acquired(reply: &Reply) -> Option<Acquired> {
    match pair(reply)? {
        (-2, _) => Some(Acquired::Got(None)),
        (-3, _) => Some(Acquired::WrongType),
        (0 | 1, -1) => Some(Acquired::Busy(None)),
        (0 | 1, ms) => {
            let ms = u64::try_from(ms).ok()?;
            Some(Acquired::Busy(Some(Duration::from_millis(ms))))
        }
        _ => None,
    }
}

/// Whether the next in the queue is of this client, by what a granted acquire was answered.
pub(crate) fn next_is_ours(reply: &Reply) -> Option<bool> {
    match pair(reply)? {
        (-2, next) => Some(next == 1),
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
        0 => Some(Released::Missing),
        -1 => Some(Released::Unheard),
        1 => Some(Released::Ended { heard_by: None }),
        one_more => {
            let heard_by = u32::try_from(one_more.checked_sub(1)?).ok()?;
            Some(Released::Ended {
                heard_by: Some(heard_by),
            })
        }
    }
}

pub(crate) fn force_release<'a>(names: &'a Names, wait: LeaseMs, client: &'a str) -> Call<'a> {
    call(&FAIR_FORCE_RELEASE, names, wait)
        .arg(client)
        .publishes()
}

/// Gives places in the queue to hold ids of one client, in this order, if `ahead` of them has one.
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

/// Keeps the places of a client.
pub(crate) fn vouch<'a>(names: &'a Names, wait: LeaseMs, client: &'a str) -> Call<'a> {
    call(&FAIR_VOUCH, names, wait).arg(client).publishes()
}

/// What either of the two was answered.
pub(crate) fn placed(reply: &Reply) -> Option<Place> {
    let (count, next) = pair(reply)?;
    Some(Place {
        count: usize::try_from(count).ok()?,
        next_is_ours: next == 1,
    })
}

fn pair(reply: &Reply) -> Option<(i64, i64)> {
    match reply {
        Reply::Integers(numbers) => match *numbers.as_slice() {
            [code, number] => Some((code, number)),
            _ => None,
        },
        _ => None,
    }
}
