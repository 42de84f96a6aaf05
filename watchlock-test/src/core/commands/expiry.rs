//! When keys expire.

use crate::core::call::{Call, is, text};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::parse_integer;
use crate::core::{Bytes, Reply};

/// How a time is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    is_seconds: bool,
    /// Since 1970, not from now on.
    is_absolute: bool,
}

impl Unit {
    pub(super) const SECONDS: Self = Self::new(true, false);
    pub(super) const MILLISECONDS: Self = Self::new(false, false);
    pub(super) const SECONDS_AT: Self = Self::new(true, true);
    pub(super) const MILLISECONDS_AT: Self = Self::new(false, true);

    const fn new(is_seconds: bool, is_absolute: bool) -> Self {
        Self {
            is_seconds,
            is_absolute,
        }
    }

    /// As an option of `SET` and `GETEX`.
    pub(super) fn of_option(word: &[u8]) -> Option<Self> {
        [
            ("EX", Self::SECONDS),
            ("PX", Self::MILLISECONDS),
            ("EXAT", Self::SECONDS_AT),
            ("PXAT", Self::MILLISECONDS_AT),
        ]
        .into_iter()
        .find_map(|(name, unit)| is(word, name).then_some(unit))
    }

    /// Milliseconds since 1970; None if that is too much.
    fn at(self, value: i64, now_ms: i64) -> Option<i64> {
        let ms = value.checked_mul(if self.is_seconds { 1000 } else { 1 })?;
        if self.is_absolute {
            Some(ms)
        } else {
            // Only too late a time is too much; one long ago has passed.
            ms.checked_add(now_ms)
        }
    }
}

/// A time for `SET` and its like, which must be positive.
pub(super) fn positive(call: &Call<'_>, value: &[u8], unit: Unit) -> Result<i64, Failure> {
    let value = parse_integer(value)?;
    let at = unit.at(value, call.now_ms()).filter(|_| value > 0);
    at.ok_or_else(|| Failure::invalid_expire(call.command.name))
}

/// Sets the expiry of a key, or deletes it if that has come; says which it did.
pub(super) fn set(call: &mut Call<'_>, key: &[u8], at: i64) {
    if at <= call.now_ms() {
        call.db().remove(key);
        call.notify('g', "del", key);
    } else {
        call.db().set_expiry(key, Some(at));
        call.notify('g', "expire", key);
    }
}

/// Removes a key that was given a time in the past.
pub(super) fn drop_if_past(call: &mut Call<'_>, key: &[u8]) {
    let now = call.now_ms();
    if call.db().expires_at(key).is_some_and(|at| at < now) {
        call.db().remove(key);
    }
}

pub(super) fn expire(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    run(call, arguments, Unit::SECONDS)
}

pub(super) fn pexpire(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    run(call, arguments, Unit::MILLISECONDS)
}

pub(super) fn expireat(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    run(call, arguments, Unit::SECONDS_AT)
}

pub(super) fn pexpireat(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    run(call, arguments, Unit::MILLISECONDS_AT)
}

/// On which condition `EXPIRE` sets an expiry.
#[allow(clippy::struct_excessive_bools)] // each is a word of the command
#[derive(Default)]
struct ExpiryCondition {
    only_without: bool,
    only_with: bool,
    only_later: bool,
    only_sooner: bool,
}

impl ExpiryCondition {
    fn parse(words: &[Bytes]) -> Result<Self, Failure> {
        let mut condition = Self::default();
        for word in words {
            let flag = [
                ("NX", &mut condition.only_without),
                ("XX", &mut condition.only_with),
                ("GT", &mut condition.only_later),
                ("LT", &mut condition.only_sooner),
            ]
            .into_iter()
            .find(|(name, _)| is(word, name));
            let (_, flag) =
                flag.ok_or_else(|| Failure::new(format!("ERR Unsupported option {}", text(word))))?;
            *flag = true;
        }
        if condition.only_without
            && (condition.only_with || condition.only_later || condition.only_sooner)
        {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(Failure::fixed(text));
        }
        if condition.only_later && condition.only_sooner {
            let text = "ERR GT and LT options at the same time are not compatible";
            return Err(Failure::fixed(text));
        }
        Ok(condition)
    }

    /// A key without an expiry counts as one that expires never.
    fn allows(&self, current: Option<i64>, at: i64) -> bool {
        !(self.only_without && current.is_some()
            || self.only_with && current.is_none()
            || self.only_later && current.is_none_or(|current| at <= current)
            || self.only_sooner && current.is_some_and(|current| at >= current))
    }
}

fn run(call: &mut Call<'_>, arguments: &[Bytes], unit: Unit) -> Outcome {
    let key = &arguments[1];
    let condition = ExpiryCondition::parse(&arguments[3..])?;
    let value = parse_integer(&arguments[2])?;
    let at = unit.at(value, call.now_ms());
    let at = at.ok_or_else(|| Failure::invalid_expire(call.command.name))?;
    let current = call.db().expires_at(key);
    let is_set = call.db().contains(key) && condition.allows(current, at);
    if is_set {
        set(call, key, at);
    }
    Ok(Reply::flag(is_set))
}

pub(super) fn persist(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let has_expiry = call.db().expires_at(key).is_some();
    if has_expiry {
        call.db().set_expiry(key, None);
        call.notify('g', "persist", key);
    }
    Ok(Reply::flag(has_expiry))
}

pub(super) fn ttl(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let now = call.now_ms();
    Ok(left(call, &arguments[1], |at| {
        at.saturating_sub(now).saturating_add(500) / 1000
    }))
}

pub(super) fn pttl(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let now = call.now_ms();
    Ok(left(call, &arguments[1], |at| at.saturating_sub(now)))
}

pub(super) fn expiretime(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(left(call, &arguments[1], |at| {
        at.saturating_add(500) / 1000
    }))
}

pub(super) fn pexpiretime(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(left(call, &arguments[1], |at| at))
}

/// -2 without a key, -1 without an expiry.
fn left(call: &mut Call<'_>, key: &[u8], shown: impl Fn(i64) -> i64) -> Reply {
    if !call.db().contains(key) {
        return Reply::Integer(-2);
    }
    let at = call.db().expires_at(key);
    Reply::Integer(at.map_or(-1, |at| shown(at).max(0)))
}
