//! The fair lock's calls. Those that enter, verify or renew a hold are the plain lock's.

use super::call::Script;
use super::call::{FAIR_ACQUIRE, FAIR_ENQUEUE, FAIR_FORCE_RELEASE, FAIR_RELEASE, FAIR_VOUCH};
use super::{Call, HoldRef};
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

pub(crate) fn acquire(hold: HoldRef<'_>, wait: LeaseMs, waits: bool) -> Call<'_> {
    call(&FAIR_ACQUIRE, hold.names, wait)
        .arg(hold.id)
        .arg(hold.lease)
        .arg(u32::from(waits))
        .publishes()
}

pub(crate) fn release<'a>(
    names: &'a Names,
    wait: LeaseMs,
    hold_id: &'a str,
    left: u32,
) -> Call<'a> {
    let call = call(&FAIR_RELEASE, names, wait);
    call.arg(hold_id).arg(left).publishes()
}

pub(crate) fn force_release<'a>(names: &'a Names, wait: LeaseMs, client: &'a str) -> Call<'a> {
    let call = call(&FAIR_FORCE_RELEASE, names, wait);
    call.arg(client).publishes()
}

/// Gives places in the queue to hold ids of one client, in this order, if its waiter `ahead` of them has a place.
pub(crate) fn enqueue<'a>(
    names: &'a Names,
    wait: LeaseMs,
    ahead: Option<&'a str>,
    hold_ids: &[&'a str],
) -> Call<'a> {
    let call = call(&FAIR_ENQUEUE, names, wait).arg(ahead.unwrap_or(""));
    hold_ids.iter().fold(call, |call, id| call.arg(*id))
}

/// Keeps the places of a client, which should be those of these hold ids.
pub(crate) fn vouch<'a>(
    names: &'a Names,
    wait: LeaseMs,
    client: &'a str,
    hold_ids: &[&'a str],
) -> Call<'a> {
    let call = call(&FAIR_VOUCH, names, wait).arg(client);
    let call = hold_ids.iter().fold(call, |call, id| call.arg(*id));
    call.publishes()
}
