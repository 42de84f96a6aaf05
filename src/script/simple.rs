//! The simple lock's commands and scripts: a string with the hold id, as other libraries have it.

use super::registry::{SIMPLE_ACQUIRE, SIMPLE_FORCE_RELEASE, SIMPLE_RELEASE, SIMPLE_VERIFY};
use super::{Acquired, Call, Next, Reply, lock};
use crate::lease::LeaseMs;
use crate::names::Names;

/// Most often a lock is free, and this takes it. If not, its reply says neither whose the lock is nor for how long:
/// then the script is asked, with the same key, hold id and lease.
pub(crate) fn set<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    Call::plain("SET")
        .lock(names)
        .arg(hold_id)
        .arg("PX")
        .arg(lease.as_millis())
        .arg("NX")
        .when_nil(Next {
            script: &SIMPLE_ACQUIRE,
            words: &[1, 2, 4],
        })
}

/// A try that may have been made before.
pub(crate) fn acquire<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    Call::script(&SIMPLE_ACQUIRE)
        .lock(names)
        .arg(hold_id)
        .arg(lease.as_millis())
}

pub(crate) fn acquired(reply: &Reply) -> Option<Acquired> {
    match reply {
        Reply::Done => Some(Acquired::Got(None)),
        _ => lock::acquired(reply),
    }
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
