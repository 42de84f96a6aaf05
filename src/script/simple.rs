//! The simple lock's calls: its key is a string with the hold id, as in other libraries.

use super::Call;
use super::call::{SIMPLE_ACQUIRE, SIMPLE_FORCE_RELEASE, SIMPLE_RELEASE, SIMPLE_VERIFY};
use crate::lease::LeaseMs;
use crate::names::Names;

pub(crate) fn acquire<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    SIMPLE_ACQUIRE.on(names).arg(hold_id).arg(lease)
}

pub(crate) fn verify<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    SIMPLE_VERIFY.on(names).arg(hold_id).arg(lease)
}

pub(crate) fn release<'a>(names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
    SIMPLE_RELEASE.on(names).arg(hold_id).arg(left).wakes(names)
}

pub(crate) fn force_release<'a>(names: &'a Names, client: &'a str) -> Call<'a> {
    SIMPLE_FORCE_RELEASE.on(names).arg(client).wakes(names)
}
