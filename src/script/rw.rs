//! The read/write lock's calls. Those about an existing hold serve both modes: after a downgrade, a late command of the
//! write hold finds the read hold.

use std::time::Duration;

use super::call::{
    RW_ASSERT, RW_ASSERT_TIMEOUT, RW_DOWNGRADE, RW_FORCE_RELEASE, RW_LOOK, RW_MARK,
    RW_READ_ACQUIRE, RW_RELEASE, RW_WRITE_ACQUIRE,
};
use super::{Call, HoldRef, Reply};
use crate::names::Names;

/// The index of the key of the writers' marks among the names of the family.
const WRITERS: usize = 0;

/// What the reply to [`assert_lock`] says of a read hold.
const WITHOUT_TIMEOUT: Reply = Reply::Done(1);

/// Redisson's key for the first level of a read hold.
fn timeout(names: &Names, hold_id: &str) -> String {
    names.suffixed(&format!("{hold_id}:rwlock_timeout:1"))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn acquire_to_read(hold: HoldRef<'_>) -> Call<'_> {
    RW_READ_ACQUIRE
        .on(hold.names)
        .key(timeout(hold.names, hold.id))
        .key(hold.names.other(WRITERS))
        .arg(hold.id)
        .arg(hold.lease)
}

/// If it has to wait, it leaves a mark. Readers heed the marks of all clients for `mark`, then none for a third of it.
pub(crate) fn acquire_to_write(hold: HoldRef<'_>, mark: Duration) -> Call<'_> {
    RW_WRITE_ACQUIRE
        .on(hold.names)
        .key(hold.names.other(WRITERS))
        .arg(hold.id)
        .arg(hold.lease)
        .arg(millis(mark))
}

fn assert_in<'a>(names: &'a Names, hold_id: &'a str) -> Call<'a> {
    RW_ASSERT
        .on(names)
        .key(timeout(names, hold_id))
        .key(names.other(WRITERS))
        .arg(hold_id)
}

/// Lengthens the lease of a hold that exists, and writes the hold count of a write hold.
pub(crate) fn assert(hold: HoldRef<'_>, count: u32) -> Call<'_> {
    assert_in(hold.names, hold.id).arg(hold.lease).arg(count)
}

/// Writes the hold count of a write hold that exists.
pub(crate) fn count<'a>(names: &'a Names, hold_id: &'a str, count: u32) -> Call<'a> {
    assert_in(names, hold_id).arg(0_u32).arg(count)
}

/// Asks whether one more reader may share a read hold, with that lease.
pub(crate) fn join(hold: HoldRef<'_>) -> Call<'_> {
    assert(hold, 0).arg("1")
}

/// Asserts a hold by the lock's key alone: its other keys may be on another node.
pub(crate) fn assert_lock(hold: HoldRef<'_>) -> Call<'_> {
    RW_ASSERT
        .on(hold.names)
        .arg(hold.id)
        .arg(hold.lease)
        .arg(0_u32)
}

/// Asserts the timeout key alone, if the reply to [`assert_lock`] says that the hold is a read hold.
pub(crate) fn assert_timeout(hold: HoldRef<'_>, asserted: Reply) -> Option<Call<'_>> {
    let call = Call::script(&RW_ASSERT_TIMEOUT).for_node_of(hold.names);
    (asserted == WITHOUT_TIMEOUT).then(|| call.key(timeout(hold.names, hold.id)).arg(hold.lease))
}

pub(crate) fn release<'a>(names: &'a Names, hold_id: &'a str) -> Call<'a> {
    RW_RELEASE
        .on(names)
        .key(timeout(names, hold_id))
        .key(names.channel())
        .arg(hold_id)
        .publishes()
}

/// Turns a write hold into a read hold.
pub(crate) fn downgrade(hold: HoldRef<'_>) -> Call<'_> {
    RW_DOWNGRADE
        .on(hold.names)
        .key(timeout(hold.names, hold.id))
        .arg(hold.id)
        .arg(hold.lease)
        .wakes(hold.names)
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

/// Ends all holds of the lock in `mode`.
pub(crate) fn force_release<'a>(names: &'a Names, mode: &'a str, client: &'a str) -> Call<'a> {
    RW_FORCE_RELEASE
        .on(names)
        .arg(mode)
        .arg(client)
        .arg(names.channel())
        .arg(names.suffixed(""))
        .publishes()
}

/// Asks for how long anybody holds the lock in `mode`, as [`lock::look`](super::lock::look) does.
pub(crate) fn look<'a>(names: &'a Names, mode: &'a str) -> Call<'a> {
    RW_LOOK.on(names).arg(mode)
}
