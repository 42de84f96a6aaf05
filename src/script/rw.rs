//! The read/write lock's calls. Those about an existing hold serve both modes: after a downgrade, a late command of the
//! write hold finds the read hold.

use std::time::Duration;

use super::registry::{
    RW_ASSERT, RW_ASSERT_TIMEOUT, RW_DOWNGRADE, RW_FORCE_RELEASE, RW_LOOK, RW_MARK,
    RW_READ_ACQUIRE, RW_RELEASE, RW_WRITE_ACQUIRE,
};
use super::{Acquired, Call, Released, Reply, lock};
use crate::lease::LeaseMs;
use crate::names::Names;

/// The index of the key of the writers' marks among the names of the family.
const WRITERS: usize = 0;

/// Acquired or asserted; no writer waits.
const GOT: i64 = -2;
/// Acquired while a writer waits.
const GOT_BEFORE_A_WRITER: i64 = -6;
const NOT_THERE: i64 = -5;
/// A read hold was asserted without its timeout key.
const WITHOUT_TIMEOUT: i64 = 0;

/// Redisson's key for the first level of a read hold.
fn timeout(names: &Names, hold_id: &str) -> String {
    names.suffixed(&format!("{hold_id}:rwlock_timeout:1"))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn acquire_to_read<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    RW_READ_ACQUIRE
        .on(names)
        .key(timeout(names, hold_id))
        .key(names.other(WRITERS))
        .arg(hold_id)
        .arg(lease)
}

/// If it has to wait, it leaves a mark. Readers heed the marks of all clients for `mark`, then none for a third of it.
pub(crate) fn acquire_to_write<'a>(
    names: &'a Names,
    hold_id: &'a str,
    lease: LeaseMs,
    mark: Duration,
) -> Call<'a> {
    RW_WRITE_ACQUIRE
        .on(names)
        .key(names.other(WRITERS))
        .arg(hold_id)
        .arg(lease)
        .arg(millis(mark))
}

/// Decodes the reply to an acquire or a [`join`].
pub(crate) fn acquired(reply: &Reply) -> Option<Acquired> {
    match reply.integer()? {
        GOT_BEFORE_A_WRITER => Some(Acquired::Got(None)),
        NOT_THERE => Some(Acquired::Missing),
        _ => lock::acquired(reply),
    }
}

/// Whether an acquire or a join was granted while no writer waits.
pub(crate) fn is_open(reply: &Reply) -> bool {
    reply.integer() == Some(GOT)
}

/// Lengthens the lease of a hold that exists, and writes the hold count of a write hold.
pub(crate) fn assert<'a>(
    names: &'a Names,
    hold_id: &'a str,
    count: u32,
    lease: Option<LeaseMs>,
) -> Call<'a> {
    RW_ASSERT
        .on(names)
        .key(timeout(names, hold_id))
        .key(names.other(WRITERS))
        .arg(hold_id)
        .arg(lease.map_or(0, LeaseMs::as_millis))
        .arg(count)
}

/// Asserts a hold by the lock's key alone: its other keys may be on another node.
pub(crate) fn assert_lock<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    RW_ASSERT.on(names).arg(hold_id).arg(lease).arg(0_u32)
}

/// Asserts the timeout key alone, if the reply to [`assert_lock`] says that the hold is a read hold.
pub(crate) fn assert_timeout<'a>(
    names: &'a Names,
    hold_id: &'a str,
    lease: LeaseMs,
    asserted: &Reply,
) -> Option<Call<'a>> {
    let is_needed = asserted.integer() == Some(WITHOUT_TIMEOUT);
    let call = Call::script(&RW_ASSERT_TIMEOUT).for_node_of(names);
    is_needed.then(|| call.key(timeout(names, hold_id)).arg(lease))
}

/// Asks whether one more reader may share a read hold, with that lease.
pub(crate) fn join<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    assert(names, hold_id, 0, Some(lease)).arg("1")
}

/// Whether the hold to assert or downgrade existed.
pub(crate) fn found(reply: &Reply) -> Option<bool> {
    reply.integer().map(|code| code != NOT_THERE)
}

pub(crate) fn release<'a>(names: &'a Names, hold_id: &'a str) -> Call<'a> {
    RW_RELEASE
        .on(names)
        .key(timeout(names, hold_id))
        .key(names.channel())
        .arg(hold_id)
        .publishes()
}

pub(crate) fn released(reply: &Reply) -> Option<Released> {
    match reply.integer()? {
        -2 => Some(Released::Ended { heard_by: None }),
        _ => lock::released(reply),
    }
}

/// Turns a write hold into a read hold.
pub(crate) fn downgrade<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    RW_DOWNGRADE
        .on(names)
        .key(timeout(names, hold_id))
        .arg(hold_id)
        .arg(lease)
        .wakes(names)
}

/// Leaves a mark, as [`acquire_to_write`] does, because a writer of `client` waits. Zero removes it.
pub(crate) fn mark<'a>(names: &'a Names, client: &'a str, mark: Duration) -> Call<'a> {
    RW_MARK
        .on(names)
        .key(names.other(WRITERS))
        .arg(client)
        .arg(millis(mark))
        .wakes(names)
}

/// Ends whoever holds the lock in `mode`.
pub(crate) fn force_release<'a>(names: &'a Names, mode: &'a str, client: &'a str) -> Call<'a> {
    RW_FORCE_RELEASE
        .on(names)
        .arg(mode)
        .arg(client)
        .arg(names.channel())
        .arg(names.suffixed(""))
        .publishes()
}

/// Whether anybody holds the lock in `mode`.
pub(crate) fn look<'a>(names: &'a Names, mode: &'a str) -> Call<'a> {
    RW_LOOK.on(names).arg(mode)
}
