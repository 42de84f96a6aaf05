//! The plain lock's scripts.

use std::time::Duration;

use super::registry::{ACQUIRE, FORCE_RELEASE, REENTER, RELEASE, VERIFY};
use super::{Acquired, Call, Forced, Released, Reply};
use crate::lease::LeaseMs;
use crate::names::Names;

pub(crate) fn acquire<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    Call::script(&ACQUIRE)
        .lock(names)
        .arg(hold_id)
        .arg(lease.as_millis())
}

pub(crate) fn acquired(reply: &Reply) -> Option<Acquired> {
    match reply.integer()? {
        -2 => Some(Acquired::Got(None)),
        -3 => Some(Acquired::WrongType),
        -1 => Some(Acquired::Busy(None)),
        ttl_ms => {
            let ttl_ms = u64::try_from(ttl_ms).ok()?;
            Some(Acquired::Busy(Some(Duration::from_millis(ttl_ms))))
        }
    }
}

pub(crate) fn reenter<'a>(
    names: &'a Names,
    hold_id: &'a str,
    count: u32,
    lease: LeaseMs,
) -> Call<'a> {
    Call::script(&REENTER)
        .lock(names)
        .arg(hold_id)
        .arg(count)
        .arg(lease.as_millis())
}

pub(crate) fn verify<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    Call::script(&VERIFY)
        .lock(names)
        .arg(hold_id)
        .arg(lease.as_millis())
}

/// Whether the hold was there to be entered, written or verified.
pub(crate) fn found(reply: &Reply) -> Option<bool> {
    reply.integer().map(|code| code != 0)
}

pub(crate) fn release<'a>(names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
    Call::script(&RELEASE)
        .lock(names)
        .arg(hold_id)
        .arg(left)
        .arg(names.channel())
        .publishes()
}

pub(crate) fn released(reply: &Reply) -> Option<Released> {
    match reply.integer()? {
        0 => Some(Released::Missing),
        -1 => Some(Released::Unheard),
        one_more => {
            let heard_by = u32::try_from(one_more.checked_sub(1)?).ok()?;
            Some(Released::Ended {
                heard_by: Some(heard_by),
            })
        }
    }
}

pub(crate) fn force_release<'a>(names: &'a Names, client: &'a str) -> Call<'a> {
    Call::script(&FORCE_RELEASE)
        .lock(names)
        .arg(client)
        .arg(names.channel())
        .publishes()
}

pub(crate) fn forced(reply: &Reply) -> Option<Forced> {
    let Reply::Integers(reply) = reply else {
        return None;
    };
    match *reply.as_slice() {
        [0, _] => Some(Forced::Free),
        [-3, _] => Some(Forced::WrongType),
        [code @ (1 | 2), number] => Some(Forced::Ended {
            own: u64::try_from(number).ok().filter(|n| *n > 0),
            heard: code == 1,
        }),
        _ => None,
    }
}

/// Whether anybody holds the lock.
pub(crate) fn look(names: &Names) -> Call<'_> {
    Call::plain("EXISTS").lock(names)
}

pub(crate) fn looked(reply: &Reply) -> Option<bool> {
    reply.integer().map(|exists| exists > 0)
}
