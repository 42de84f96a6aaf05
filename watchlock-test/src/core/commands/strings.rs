//! Strings.

use super::expiry::{self, Unit};
use crate::core::call::{Call, is, span};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::{decimal_sum, float, parse_integer};
use crate::core::value::Value;
use crate::core::{Bytes, Reply};

/// The longest string.
const MOST: usize = 512 * 1024 * 1024;

pub(super) fn get(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let value = call.read::<Bytes>(&arguments[1])?;
    Ok(Reply::bulk_or_null(value.cloned()))
}

/// What `SET` is asked for behind the value, and `GETEX` behind the key.
#[allow(clippy::struct_excessive_bools)] // each is a word of the command
#[derive(Default)]
struct SetOptions<'a> {
    only_new: bool,
    only_old: bool,
    gets: bool,
    keeps_ttl: bool,
    persists: bool,
    expiry: Option<(&'a [u8], Unit)>,
}

impl<'a> SetOptions<'a> {
    fn parse(arguments: &'a [Bytes], is_set: bool) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            let is_timed = options.keeps_ttl || options.persists || options.expiry.is_some();
            let unit = Unit::of_option(word);
            if is_set && is(word, "NX") && !options.only_old {
                options.only_new = true;
            } else if is_set && is(word, "XX") && !options.only_new {
                options.only_old = true;
            } else if is_set && is(word, "GET") {
                options.gets = true;
            } else if is_set
                && is(word, "KEEPTTL")
                && !(options.persists || options.expiry.is_some())
            {
                options.keeps_ttl = true;
            } else if !is_set && is(word, "PERSIST") && options.expiry.is_none() {
                options.persists = true;
            } else if let (Some(unit), false) = (unit, is_timed) {
                let value = rest.next().ok_or(Failure::SYNTAX)?;
                options.expiry = Some((value, unit));
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Ok(options)
    }

    fn expires_at(&self, call: &Call<'_>) -> Result<Option<i64>, Failure> {
        let parse = |(value, unit)| expiry::positive(call, value, unit);
        self.expiry.map(parse).transpose()
    }
}

pub(super) fn set(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (key, value) = (&arguments[1], &arguments[2]);
    let options = SetOptions::parse(&arguments[3..], true)?;
    let expires_at = options.expires_at(call)?;
    let old = if options.gets {
        call.read::<Bytes>(key)?.cloned()
    } else {
        None
    };
    let exists = call.db().contains(key);
    let is_refused = if exists {
        options.only_new
    } else {
        options.only_old
    };
    if !is_refused {
        let kept = call.db().expires_at(key).filter(|_| options.keeps_ttl);
        store(call, key, value.clone(), expires_at.or(kept));
        if expires_at.is_some() {
            call.notify('g', "expire", key);
        }
    }
    Ok(match (options.gets, is_refused) {
        (true, _) => Reply::bulk_or_null(old),
        (false, true) => Reply::Null,
        (false, false) => Reply::ok(),
    })
}

fn store(call: &mut Call<'_>, key: &[u8], value: Bytes, expires_at: Option<i64>) {
    call.db().put(key, Value::String(value), expires_at);
    call.notify('$', "set", key);
    expiry::drop_if_past(call, key);
}

pub(super) fn setnx(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let is_new = !call.db().contains(&arguments[1]);
    if is_new {
        store(call, &arguments[1], arguments[2].clone(), None);
    }
    Ok(Reply::flag(is_new))
}

pub(super) fn setex(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    set_with_lease(call, arguments, Unit::SECONDS)
}

pub(super) fn psetex(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    set_with_lease(call, arguments, Unit::MILLISECONDS)
}

fn set_with_lease(call: &mut Call<'_>, arguments: &[Bytes], unit: Unit) -> Outcome {
    let expires_at = expiry::positive(call, &arguments[2], unit)?;
    store(call, &arguments[1], arguments[3].clone(), Some(expires_at));
    call.notify('g', "expire", &arguments[1]);
    Ok(Reply::ok())
}

pub(super) fn getset(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let old = call.read::<Bytes>(&arguments[1])?.cloned();
    store(call, &arguments[1], arguments[2].clone(), None);
    Ok(Reply::bulk_or_null(old))
}

pub(super) fn getdel(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let old = call.read::<Bytes>(&arguments[1])?.cloned();
    if call.db().remove(&arguments[1]).is_some() {
        call.notify('g', "del", &arguments[1]);
    }
    Ok(Reply::bulk_or_null(old))
}

pub(super) fn getex(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let options = SetOptions::parse(&arguments[2..], false)?;
    let Some(value) = call.read::<Bytes>(key)?.cloned() else {
        return Ok(Reply::Null);
    };
    if let Some(at) = options.expires_at(call)? {
        expiry::set(call, key, at);
    } else if options.persists && call.db().expires_at(key).is_some() {
        call.db().set_expiry(key, None);
        call.notify('g', "persist", key);
    }
    Ok(Reply::Bulk(value))
}

pub(super) fn incr(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    add(call, &arguments[1], 1)
}

pub(super) fn decr(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    add(call, &arguments[1], -1)
}

pub(super) fn incrby(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let by = parse_integer(&arguments[2])?;
    add(call, &arguments[1], by)
}

pub(super) fn decrby(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let by = parse_integer(&arguments[2])?;
    let by = by.checked_neg();
    let by = by.ok_or(Failure::fixed("ERR decrement would overflow"))?;
    add(call, &arguments[1], by)
}

fn add(call: &mut Call<'_>, key: &[u8], by: i64) -> Outcome {
    let old = call.read::<Bytes>(key)?.map(|text| parse_integer(text));
    let sum = old.transpose()?.unwrap_or(0).checked_add(by);
    let sum = sum.ok_or(Failure::OVERFLOW)?;
    call.replace(key, Value::String(sum.to_string().into()));
    call.notify('$', "incrby", key);
    Ok(Reply::Integer(sum))
}

pub(super) fn incrbyfloat(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let old = call.read::<Bytes>(key)?.cloned();
    let old = old.unwrap_or_else(|| b"0".to_vec());
    if float(&old).is_none() || float(&arguments[2]).is_none() {
        return Err(Failure::NOT_A_FLOAT);
    }
    let sum = decimal_sum(&old, &arguments[2]).ok_or(Failure::NOT_A_FLOAT)??;
    call.replace(key, Value::String(sum.clone()));
    call.notify('$', "incrbyfloat", key);
    Ok(Reply::Bulk(sum))
}

pub(super) fn strlen(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let value = call.read::<Bytes>(&arguments[1])?;
    Ok(Reply::count(value.map_or(0, Vec::len)))
}

fn check_len(len: Option<usize>) -> Result<(), Failure> {
    if len.is_none_or(|len| len > MOST) {
        let text = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
        return Err(Failure::fixed(text));
    }
    Ok(())
}

pub(super) fn append(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (key, more) = (&arguments[1], &arguments[2]);
    let len = call.read::<Bytes>(key)?.map_or(0, Vec::len);
    check_len(len.checked_add(more.len()))?;
    let value = call.db().open::<Bytes>(key)?;
    value.extend_from_slice(more);
    let len = value.len();
    call.notify('$', "append", key);
    Ok(Reply::count(len))
}

pub(super) fn getrange(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let start = parse_integer(&arguments[2])?;
    let stop = parse_integer(&arguments[3])?;
    let value = call.copy::<Bytes>(&arguments[1])?;
    if start < 0 && stop < 0 && start > stop {
        return Ok(Reply::bulk(""));
    }
    // An end before the beginning means the beginning.
    let len = i64::try_from(value.len()).unwrap_or(i64::MAX);
    let stop = if stop < 0 {
        len.saturating_add(stop).max(0)
    } else {
        stop
    };
    Ok(Reply::bulk(&value[span(value.len(), start, stop)]))
}

pub(super) fn setrange(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (key, part) = (&arguments[1], &arguments[3]);
    let offset = parse_integer(&arguments[2])?;
    let offset = usize::try_from(offset);
    let offset = offset.map_err(|_| Failure::fixed("ERR offset is out of range"))?;
    let len = call.read::<Bytes>(key)?.map_or(0, Vec::len);
    if part.is_empty() {
        return Ok(Reply::count(len));
    }
    check_len(offset.checked_add(part.len()))?;
    let end = offset + part.len();
    let value = call.db().open::<Bytes>(key)?;
    if value.len() < end {
        value.resize(end, 0);
    }
    value[offset..end].copy_from_slice(part);
    let len = value.len();
    call.notify('$', "setrange", key);
    Ok(Reply::count(len))
}

pub(super) fn mget(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let values = arguments[1..].iter().map(|key| {
        // What is no string counts as absent.
        let value = call.read::<Bytes>(key).ok().flatten();
        Reply::bulk_or_null(value.cloned())
    });
    Ok(Reply::Array(values.collect()))
}

pub(super) fn mset(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    set_all(call, arguments, false)?;
    Ok(Reply::ok())
}

pub(super) fn msetnx(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    set_all(call, arguments, true).map(Reply::flag)
}

fn set_all(call: &mut Call<'_>, arguments: &[Bytes], only_new: bool) -> Result<bool, Failure> {
    let pairs = arguments[1..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(Failure::wrong_arity(call.command.name));
    }
    if only_new && pairs.clone().any(|pair| call.db().contains(&pair[0])) {
        return Ok(false);
    }
    for pair in pairs {
        store(call, &pair[0], pair[1].clone(), None);
    }
    Ok(true)
}
