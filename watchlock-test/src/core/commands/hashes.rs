//! Hashes.

use super::scan::{self, Page};
use crate::core::call::{Call, is, reasonable};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::{decimal_sum, float, integer, parse_integer};
use crate::core::value::Hash;
use crate::core::{Bytes, Reply};

pub(super) fn hset(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    set_all(call, arguments).map(Reply::count)
}

pub(super) fn hmset(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    set_all(call, arguments)?;
    Ok(Reply::ok())
}

/// Returns how many fields are new.
fn set_all(call: &mut Call<'_>, arguments: &[Bytes]) -> Result<usize, Failure> {
    let key = &arguments[1];
    let pairs = arguments[2..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(Failure::wrong_arity(call.command.name));
    }
    let hash = call.db().open::<Hash>(key)?;
    let new = pairs.filter(|pair| hash.set(&pair[0], pair[1].clone()));
    let new = new.count();
    call.notify('h', "hset", key);
    Ok(new)
}

pub(super) fn hsetnx(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (key, field) = (&arguments[1], &arguments[2]);
    let exists = call
        .read::<Hash>(key)?
        .is_some_and(|hash| hash.get(field).is_some());
    if !exists {
        set(call, key, field, arguments[3].clone(), "hset")?;
    }
    Ok(Reply::flag(!exists))
}

fn set(
    call: &mut Call<'_>,
    key: &[u8],
    field: &[u8],
    value: Bytes,
    event: &str,
) -> Result<(), Failure> {
    call.db().open::<Hash>(key)?.set(field, value);
    call.notify('h', event, key);
    Ok(())
}

fn field(call: &mut Call<'_>, arguments: &[Bytes]) -> Result<Option<Bytes>, Failure> {
    let hash = call.read::<Hash>(&arguments[1])?;
    Ok(hash.and_then(|hash| hash.get(&arguments[2])).cloned())
}

pub(super) fn hget(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    field(call, arguments).map(Reply::bulk_or_null)
}

pub(super) fn hmget(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let hash = call.read::<Hash>(&arguments[1])?;
    let values = arguments[2..].iter().map(|field| {
        let value = hash.and_then(|hash| hash.get(field));
        Reply::bulk_or_null(value.cloned())
    });
    Ok(Reply::Array(values.collect()))
}

pub(super) fn hstrlen(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let value = field(call, arguments)?;
    Ok(Reply::count(value.map_or(0, |value| value.len())))
}

pub(super) fn hexists(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let value = field(call, arguments)?;
    Ok(Reply::flag(value.is_some()))
}

pub(super) fn hlen(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let hash = call.read::<Hash>(&arguments[1])?;
    Ok(Reply::count(hash.map_or(0, Hash::len)))
}

pub(super) fn hgetall(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let hash = call.read::<Hash>(&arguments[1])?;
    let pairs = hash.into_iter().flat_map(Hash::iter);
    let pairs = pairs.map(|(field, value)| (Reply::bulk(&**field), Reply::bulk(&**value)));
    Ok(Reply::Map(pairs.collect()))
}

pub(super) fn hkeys(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let hash = call.read::<Hash>(&arguments[1])?;
    let pairs = hash.into_iter().flat_map(Hash::iter);
    Ok(Reply::bulks(pairs.map(|(field, _)| &**field)))
}

pub(super) fn hvals(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let hash = call.read::<Hash>(&arguments[1])?;
    let pairs = hash.into_iter().flat_map(Hash::iter);
    Ok(Reply::bulks(pairs.map(|(_, value)| &**value)))
}

pub(super) fn hdel(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let Some(hash) = call.db().write::<Hash>(key)? else {
        return Ok(Reply::Integer(0));
    };
    let removed = arguments[2..]
        .iter()
        .filter(|field| hash.remove(field))
        .count();
    if removed > 0 {
        call.notify('h', "hdel", key);
        call.tidy(key);
    }
    Ok(Reply::count(removed))
}

pub(super) fn hincrby(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let by = parse_integer(&arguments[3])?;
    let old = field(call, arguments)?.map(|text| integer(&text));
    let old = old.unwrap_or(Some(0));
    let old = old.ok_or(Failure::fixed("ERR hash value is not an integer"))?;
    let sum = old.checked_add(by).ok_or(Failure::OVERFLOW)?;
    let text = sum.to_string().into();
    set(call, &arguments[1], &arguments[2], text, "hincrby")?;
    Ok(Reply::Integer(sum))
}

pub(super) fn hincrbyfloat(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let by = &arguments[3];
    let number = float(by).ok_or(Failure::NOT_A_FLOAT)?;
    if number.is_infinite() {
        return Err(Failure::fixed("ERR value is NaN or Infinity"));
    }
    let old = field(call, arguments)?.unwrap_or_else(|| b"0".to_vec());
    let sum = decimal_sum(&old, by);
    let sum = sum.ok_or(Failure::fixed("ERR hash value is not a float"))??;
    set(
        call,
        &arguments[1],
        &arguments[2],
        sum.clone(),
        "hincrbyfloat",
    )?;
    Ok(Reply::Bulk(sum))
}

/// Up to so many fields, each once; or exactly so many, of which some may be the same, if the number is negative.
pub(super) fn hrandfield(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let count = arguments
        .get(2)
        .map(|text| parse_integer(text))
        .transpose()?;
    let with_values = match &arguments[2..] {
        [_, word] if is(word, "WITHVALUES") => true,
        [] | [_] => false,
        _ => return Err(Failure::SYNTAX),
    };
    if count == Some(i64::MIN) {
        return Err(Failure::NOT_IN_RANGE);
    }
    if with_values && count.is_some_and(|count| count.abs() > i64::MAX / 2) {
        return Err(Failure::fixed("ERR value is out of range"));
    }
    let hash = call.copy::<Hash>(&arguments[1])?;
    let fields: Vec<_> = hash.iter().collect();
    let Some(count) = count else {
        let chosen = fields.get(call.state.random.below(fields.len()));
        return Ok(Reply::bulk_or_null(
            chosen.map(|(field, _)| (*field).clone()),
        ));
    };
    let chosen = call.state.random.choose(fields.len(), count, reasonable)?;
    let chosen = chosen.into_iter().map(|index| fields[index]);
    if with_values {
        let pairs = chosen.map(|(field, value)| (Reply::bulk(&**field), Reply::bulk(&**value)));
        return Ok(Reply::Pairs(pairs.collect()));
    }
    Ok(Reply::bulks(chosen.map(|(field, _)| &**field)))
}

pub(super) fn hscan(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    scan::check(&arguments[2])?;
    let Some(hash) = call.read::<Hash>(&arguments[1])? else {
        return Ok(scan::nothing());
    };
    let page = Page::parse(&arguments[3..], false)?;
    let pairs = hash.iter().filter(|(field, _)| page.takes(field));
    let items = pairs.flat_map(|(field, value)| [&**field, &**value]);
    Ok(scan::answer(items))
}
