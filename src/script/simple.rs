//! The simple lock's calls: its key is a string with the hold id, as in other libraries.

use super::call::{SIMPLE_ACQUIRE, SIMPLE_FORCE_RELEASE, SIMPLE_RELEASE, SIMPLE_VERIFY};
use super::{Call, HoldRef};
use crate::names::Names;

pub(crate) fn acquire(hold: HoldRef<'_>) -> Call<'_> {
    SIMPLE_ACQUIRE.on(hold.names).arg(hold.id).arg(hold.lease)
}

pub(crate) fn verify(hold: HoldRef<'_>) -> Call<'_> {
    SIMPLE_VERIFY.on(hold.names).arg(hold.id).arg(hold.lease)
}

pub(crate) fn release<'a>(names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
    SIMPLE_RELEASE.on(names).arg(hold_id).arg(left).wakes(names)
}

pub(crate) fn force_release<'a>(names: &'a Names, client: &'a str) -> Call<'a> {
    SIMPLE_FORCE_RELEASE.on(names).arg(client).wakes(names)
}
