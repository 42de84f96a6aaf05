//! The simple lock's commands and scripts: a string with the hold id, as other libraries have it.

use super::Call;
use super::registry::{SIMPLE_ACQUIRE, SIMPLE_FORCE_RELEASE, SIMPLE_RELEASE, SIMPLE_VERIFY};
use crate::lease::LeaseMs;
use crate::names::Names;

pub(crate) fn acquire<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    Call::script(&SIMPLE_ACQUIRE)
        .lock(names)
        .arg(hold_id)
        .arg(lease.as_millis())
}

/// Lengthens the lease of a hold, if it is there.
pub(crate) fn verify<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    Call::script(&SIMPLE_VERIFY)
        .lock(names)
        .arg(hold_id)
        .arg(lease.as_millis())
}

pub(crate) fn release<'a>(names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
    Call::script(&SIMPLE_RELEASE)
        .lock(names)
        .arg(hold_id)
        .arg(left)
        .arg(names.channel())
        .publishes()
}

pub(crate) fn force_release<'a>(names: &'a Names, client: &'a str) -> Call<'a> {
    Call::script(&SIMPLE_FORCE_RELEASE)
        .lock(names)
        .arg(client)
        .arg(names.channel())
        .publishes()
}
