//! The scripts of read/write locks. Those of a hold that is there serve both modes, so that it can go from one to
//! the other, and that a late command of the one finds what the other left.

use std::time::Duration;

use super::registry::{
    RW_ASSERT, RW_ASSERT_TIMEOUT, RW_DOWNGRADE, RW_FORCE_RELEASE, RW_LOOK, RW_MARK,
    RW_READ_ACQUIRE, RW_RELEASE, RW_WRITE_ACQUIRE,
};
use super::{Acquired, Call, Entered, Released, Reply};
use crate::lease::LeaseMs;
use crate::names::Names;

/// Where the writers' marks are among the names of the family.
const WRITERS: usize = 0;

/// What a hold was asserted for, or acquired, and a writer waits; and what says that it is not there.
const GOT: i64 = -2;
const GOT_BEFORE_A_WRITER: i64 = -6;
const NOT_THERE: i64 = -5;
/// A read hold was asserted by its lock alone.
const WITHOUT_TIMEOUT: i64 = 0;

/// Redisson's key for the first level of a read hold.
fn timeout(names: &Names, hold_id: &str) -> String {
    names.suffixed(&format!("{hold_id}:rwlock_timeout:1"))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn acquire_to_read<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    Call::script(&RW_READ_ACQUIRE)
        .lock(names)
        .key(timeout(names, hold_id))
        .key(names.other(WRITERS))
        .arg(hold_id)
        .arg(lease.as_millis())
}

/// `mark`: for how long readers are to heed that it waits.
pub(crate) fn acquire_to_write<'a>(
    names: &'a Names,
    hold_id: &'a str,
    lease: LeaseMs,
    mark: Duration,
) -> Call<'a> {
    Call::script(&RW_WRITE_ACQUIRE)
        .lock(names)
        .key(names.other(WRITERS))
        .arg(hold_id)
        .arg(lease.as_millis())
        .arg(millis(mark))
}

/// What an acquire was answered, or a [`join`].
pub(crate) fn acquired(reply: &Reply) -> Option<Acquired> {
    match reply.integer()? {
        GOT | GOT_BEFORE_A_WRITER => Some(Acquired::Got(None)),
        -3 => Some(Acquired::WrongType),
        NOT_THERE => Some(Acquired::Missing),
        -1 => Some(Acquired::Busy(None)),
        ms => {
            let ms = u64::try_from(ms).ok()?;
            Some(Acquired::Busy(Some(Duration::from_millis(ms))))
        }
    }
}

/// Whether an acquire, or a join, was answered that no writer waits.
pub(crate) fn is_open(reply: &Reply) -> bool {
    reply.integer() == Some(GOT)
}

/// Lengthens the lease of a hold, if there is one to be had; writes the hold count of a write hold.
pub(crate) fn assert<'a>(
    names: &'a Names,
    hold_id: &'a str,
    count: u32,
    lease: Option<LeaseMs>,
) -> Call<'a> {
    Call::script(&RW_ASSERT)
        .lock(names)
        .key(timeout(names, hold_id))
        .key(names.other(WRITERS))
        .arg(hold_id)
        .arg(lease.map_or(0, LeaseMs::as_millis))
        .arg(count)
}

/// Asserts a hold by its lock alone: its other keys may be at another node.
pub(crate) fn assert_lock<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    Call::script(&RW_ASSERT)
        .lock(names)
        .arg(hold_id)
        .arg(lease.as_millis())
        .arg(0_u32)
}

/// Asserts the timeout key alone, which a read hold has, by what [`assert_lock`] was answered.
pub(crate) fn assert_timeout<'a>(
    names: &'a Names,
    hold_id: &'a str,
    lease: LeaseMs,
    asserted: &Reply,
) -> Option<Call<'a>> {
    let is_needed = asserted.integer() == Some(WITHOUT_TIMEOUT);
    let call = Call::script(&RW_ASSERT_TIMEOUT)
        .for_node_of(names)
        .key(timeout(names, hold_id))
        .arg(lease.as_millis());
    is_needed.then_some(call)
}

/// Asks whether one more may share a read hold, with that lease.
pub(crate) fn join<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    assert(names, hold_id, 0, Some(lease)).arg("1")
}

pub(crate) fn entered(reply: &Reply) -> Option<Entered> {
    Some(if found(reply)? {
        Entered::In(None)
    } else {
        Entered::Missing
    })
}

/// Whether the hold was there to be asserted, or turned into a read hold.
pub(crate) fn found(reply: &Reply) -> Option<bool> {
    reply.integer().map(|code| code != NOT_THERE)
}

pub(crate) fn release<'a>(names: &'a Names, hold_id: &'a str) -> Call<'a> {
    Call::script(&RW_RELEASE)
        .lock(names)
        .key(timeout(names, hold_id))
        .key(names.channel())
        .arg(hold_id)
        .publishes()
}

pub(crate) fn released(reply: &Reply) -> Option<Released> {
    match reply.integer()? {
        0 => Some(Released::Missing),
        -1 => Some(Released::Unheard),
        -2 => Some(Released::Ended { heard_by: None }),
        one_more => {
            let heard_by = u32::try_from(one_more.checked_sub(1)?).ok()?;
            Some(Released::Ended {
                heard_by: Some(heard_by),
            })
        }
    }
}

/// Turns a write hold into a read hold.
pub(crate) fn downgrade<'a>(names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
    Call::script(&RW_DOWNGRADE)
        .lock(names)
        .key(timeout(names, hold_id))
        .arg(hold_id)
        .arg(lease.as_millis())
        .arg(names.channel())
        .publishes()
}

/// Says for how long readers are to heed that a writer of `client` waits; with nothing, that none does.
pub(crate) fn mark<'a>(names: &'a Names, client: &'a str, mark: Duration) -> Call<'a> {
    Call::script(&RW_MARK)
        .lock(names)
        .key(names.other(WRITERS))
        .arg(client)
        .arg(millis(mark))
        .arg(names.channel())
        .publishes()
}

/// Ends whoever holds the lock in `mode`.
pub(crate) fn force_release<'a>(names: &'a Names, mode: &'a str, client: &'a str) -> Call<'a> {
    Call::script(&RW_FORCE_RELEASE)
        .lock(names)
        .arg(mode)
        .arg(client)
        .arg(names.channel())
        .arg(names.suffixed(""))
        .publishes()
}

/// Whether anybody holds the lock in `mode`.
pub(crate) fn look<'a>(names: &'a Names, mode: &'a str) -> Call<'a> {
    Call::script(&RW_LOOK).lock(names).arg(mode)
}
