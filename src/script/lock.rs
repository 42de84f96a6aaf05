//! The plain lock's calls.

use super::call::{ACQUIRE, FORCE_RELEASE, REENTER, RELEASE, VERIFY};
use super::{Acquired, Call, Forced, Released, Reply};
use crate::lease::LeaseMs;
use crate::names::Names;

pub(crate) fn acquire<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    ACQUIRE.on(names).arg(hold_id).arg(lease)
}

pub(crate) fn acquired(reply: &Reply) -> Option<Acquired> {
    match reply.integer()? {
        -2 => Some(Acquired::Got(None)),
        -3 => Some(Acquired::WrongType),
        ttl_ms => Acquired::busy(ttl_ms),
    }
}

pub(crate) fn reenter<'a>(
    names: &'a Names,
    hold_id: &'a str,
    count: u32,
    lease: LeaseMs,
) -> Call<'a> {
    REENTER.on(names).arg(hold_id).arg(count).arg(lease)
}

pub(crate) fn verify<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    VERIFY.on(names).arg(hold_id).arg(lease)
}

/// Whether the hold existed, by the reply to any call about one.
pub(crate) fn found(reply: &Reply) -> Option<bool> {
    reply.integer().map(|code| code != 0)
}

pub(crate) fn release<'a>(names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
    RELEASE.on(names).arg(hold_id).arg(left).wakes(names)
}

pub(crate) fn released(reply: &Reply) -> Option<Released> {
    match reply.integer()? {
        0 => Some(Released::Missing),
        -1 => Some(Released::Unheard),
        one_more => {
            let heard_by = u32::try_from(one_more.checked_sub(1)?).ok();
            heard_by.map(|_| Released::Ended { heard_by })
        }
    }
}

pub(crate) fn force_release<'a>(names: &'a Names, client: &'a str) -> Call<'a> {
    FORCE_RELEASE.on(names).arg(client).wakes(names)
}

pub(crate) fn forced(reply: &Reply) -> Option<Forced> {
    match *reply.integers() {
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
