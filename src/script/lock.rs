//! The plain lock's calls.

use super::call::{ACQUIRE, FORCE_RELEASE, REENTER, RELEASE, VERIFY};
use super::{Call, HoldRef};
use crate::names::Names;

pub(crate) fn acquire(hold: HoldRef<'_>) -> Call<'_> {
    ACQUIRE.on(hold.names).arg(hold.id).arg(hold.lease)
}

pub(crate) fn reenter(hold: HoldRef<'_>, count: u32) -> Call<'_> {
    REENTER
        .on(hold.names)
        .arg(hold.id)
        .arg(count)
        .arg(hold.lease)
}

pub(crate) fn verify(hold: HoldRef<'_>) -> Call<'_> {
    VERIFY.on(hold.names).arg(hold.id).arg(hold.lease)
}

pub(crate) fn release<'a>(names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
    RELEASE.on(names).arg(hold_id).arg(left).wakes(names)
}

pub(crate) fn force_release<'a>(names: &'a Names, client: &'a str) -> Call<'a> {
    FORCE_RELEASE.on(names).arg(client).wakes(names)
}

/// Asks for how long anybody holds the lock: busy for so long, or done when it is free.
pub(crate) fn look(names: &Names) -> Call<'_> {
    Call::plain("PTTL").lock(names)
}
