//! Sets.

use std::collections::BTreeSet;

use super::scan::{self, Page};
use crate::core::call::{Call, reasonable};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::parse_integer;
use crate::core::{Bytes, Reply};

type Set = BTreeSet<Bytes>;

pub(super) fn sadd(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let set = call.db().open::<Set>(key)?;
    let added = arguments[2..]
        .iter()
        .filter(|member| set.insert((*member).clone()));
    let added = added.count();
    if added > 0 {
        call.notify('s', "sadd", key);
    }
    Ok(Reply::count(added))
}

pub(super) fn srem(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let Some(set) = call.db().write::<Set>(key)? else {
        return Ok(Reply::Integer(0));
    };
    let removed = arguments[2..]
        .iter()
        .filter(|member| set.remove(*member))
        .count();
    if removed > 0 {
        call.notify('s', "srem", key);
        call.tidy(key);
    }
    Ok(Reply::count(removed))
}

fn members(set: impl IntoIterator<Item = Bytes>) -> Reply {
    Reply::Set(set.into_iter().map(Reply::Bulk).collect())
}

pub(super) fn smembers(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(members(call.copy::<Set>(&arguments[1])?))
}

pub(super) fn sismember(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let set = call.read::<Set>(&arguments[1])?;
    Ok(Reply::flag(
        set.is_some_and(|set| set.contains(&arguments[2])),
    ))
}

pub(super) fn smismember(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let set = call.read::<Set>(&arguments[1])?;
    let is_in = |member| Reply::flag(set.is_some_and(|set| set.contains(member)));
    Ok(Reply::Array(arguments[2..].iter().map(is_in).collect()))
}

pub(super) fn scard(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let set = call.read::<Set>(&arguments[1])?;
    Ok(Reply::count(set.map_or(0, Set::len)))
}

pub(super) fn spop(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    if arguments.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let count = arguments
        .get(2)
        .map(|text| parse_integer(text).ok().filter(|count| *count >= 0));
    let count = match count {
        Some(None) => {
            return Err(Failure::fixed(
                "ERR value is out of range, must be positive",
            ));
        }
        Some(count) => count,
        None => None,
    };
    let set: Vec<_> = call.copy::<Set>(key)?.into_iter().collect();
    let chosen = call
        .state
        .random
        .choose(set.len(), count.unwrap_or(1), reasonable)?;
    let chosen: Vec<_> = chosen.into_iter().map(|index| set[index].clone()).collect();
    if let Some(set) = call.db().write::<Set>(key)? {
        set.retain(|member| !chosen.contains(member));
    }
    if !chosen.is_empty() {
        call.notify('s', "spop", key);
        call.tidy(key);
    }
    Ok(match count {
        Some(_) => members(chosen),
        None => Reply::bulk_or_null(chosen.into_iter().next()),
    })
}

pub(super) fn srandmember(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if arguments.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let count = arguments
        .get(2)
        .map(|text| parse_integer(text))
        .transpose()?;
    if count == Some(i64::MIN) {
        return Err(Failure::NOT_IN_RANGE);
    }
    let set: Vec<_> = call.copy::<Set>(&arguments[1])?.into_iter().collect();
    let chosen = call
        .state
        .random
        .choose(set.len(), count.unwrap_or(1), reasonable)?;
    let mut chosen = chosen.into_iter().map(|index| set[index].clone());
    Ok(match count {
        Some(_) => Reply::bulks(chosen),
        None => Reply::bulk_or_null(chosen.next()),
    })
}

pub(super) fn smove(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (source, target, member) = (&arguments[1], &arguments[2], &arguments[3]);
    if call.read::<Set>(source)?.is_none() {
        return Ok(Reply::Integer(0));
    }
    call.read::<Set>(target)?;
    let removed = call
        .db()
        .write::<Set>(source)?
        .is_some_and(|set| set.remove(member));
    if removed {
        call.db().open::<Set>(target)?.insert(member.clone());
        call.notify('s', "srem", source);
        call.notify('s', "sadd", target);
        call.tidy(source);
    }
    Ok(Reply::flag(removed))
}

pub(super) fn sunion(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    combine(call, arguments, |first, second| first | second)
}

pub(super) fn sinter(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    combine(call, arguments, |first, second| first & second)
}

pub(super) fn sdiff(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    combine(call, arguments, |first, second| first - second)
}

fn combine(call: &mut Call<'_>, arguments: &[Bytes], both: fn(&Set, &Set) -> Set) -> Outcome {
    let mut sets = Vec::new();
    for key in &arguments[1..] {
        sets.push(call.copy::<Set>(key)?);
    }
    let combined = sets
        .into_iter()
        .reduce(|first, second| both(&first, &second));
    Ok(members(combined.unwrap_or_default()))
}

pub(super) fn sscan(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    scan::check(&arguments[2])?;
    let Some(set) = call.read::<Set>(&arguments[1])? else {
        return Ok(scan::nothing());
    };
    let page = Page::parse(&arguments[3..], false)?;
    let found = set.iter().filter(|member| page.takes(member));
    Ok(scan::answer(found.map(|member| &**member)))
}
