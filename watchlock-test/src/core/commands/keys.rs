//! Keys of any type.

use crate::core::call::{Call, is};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::parse_integer;
use crate::core::{Bytes, Reply, dump, glob};

pub(super) fn del(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let mut removed = 0;
    for key in &arguments[1..] {
        if call.db().remove(key).is_some() {
            call.notify('g', "del", key);
            removed += 1;
        }
    }
    Ok(Reply::Integer(removed))
}

pub(super) fn exists(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let db = call.db();
    let found = arguments[1..].iter().filter(|key| db.contains(key));
    Ok(Reply::count(found.count()))
}

pub(super) fn kind(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let value = call.db().value(&arguments[1]);
    Ok(Reply::status(
        value.map_or("none", |value| value.type_name()),
    ))
}

pub(super) fn rename(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    move_key(call, &arguments[1], &arguments[2], true)?;
    Ok(Reply::ok())
}

pub(super) fn renamenx(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    move_key(call, &arguments[1], &arguments[2], false).map(Reply::flag)
}

fn move_key(call: &mut Call<'_>, from: &[u8], to: &[u8], replaces: bool) -> Result<bool, Failure> {
    let db = call.db();
    if !db.contains(from) {
        return Err(Failure::NO_SUCH_KEY);
    }
    if from == to {
        return Ok(replaces);
    }
    if !replaces && db.contains(to) {
        return Ok(false);
    }
    let expires_at = db.expires_at(from);
    if let Some(entry) = db.remove(from) {
        db.put(to, entry.value, expires_at);
    }
    call.notify('g', "rename_from", from);
    call.notify('g', "rename_to", to);
    Ok(true)
}

pub(super) fn keys(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let found = call
        .db()
        .keys()
        .filter(|key| glob::matches_element(&arguments[1], key));
    Ok(Reply::bulks(found.map(|key| &**key)))
}

pub(super) fn dump(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let value = call.db().value(&arguments[1]);
    Ok(Reply::bulk_or_null(value.map(dump::write)))
}

pub(super) fn restore(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (key, payload) = (&arguments[1], &arguments[3]);
    let (mut replaces, mut is_absolute) = (false, false);
    let mut rest = arguments[4..].iter();
    while let Some(word) = rest.next() {
        if is(word, "REPLACE") {
            replaces = true;
        } else if is(word, "ABSTTL") {
            is_absolute = true;
        } else if is(word, "IDLETIME") {
            check_least(rest.next(), "ERR Invalid IDLETIME value, must be >= 0")?;
        } else if is(word, "FREQ") {
            let text = "ERR Invalid FREQ value, must be >= 0 and <= 255";
            check_least(rest.next(), text)?;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    if !replaces && call.db().contains(key) {
        return Err(Failure::fixed("BUSYKEY Target key name already exists."));
    }
    let ttl = parse_integer(&arguments[2])?;
    if ttl < 0 {
        return Err(Failure::fixed("ERR Invalid TTL value, must be >= 0"));
    }
    let wrong = Failure::fixed("ERR DUMP payload version or checksum are wrong");
    let value = dump::read(payload).ok_or(wrong)?;
    let now = call.now_ms();
    let at = if is_absolute {
        ttl
    } else {
        now.saturating_add(ttl)
    };
    let expires_at = (ttl > 0).then_some(at);
    if expires_at.is_some_and(|at| at <= now) {
        call.db().remove(key);
        return Ok(Reply::ok());
    }
    call.db().put(key, value, expires_at);
    call.notify('g', "restore", key);
    Ok(Reply::ok())
}

fn check_least(value: Option<&Bytes>, wrong: &'static str) -> Result<(), Failure> {
    let value = parse_integer(value.ok_or(Failure::SYNTAX)?)?;
    if value < 0 {
        Err(Failure::fixed(wrong))
    } else {
        Ok(())
    }
}

pub(super) fn copy(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (&arguments[1], &arguments[2]);
    let (mut replaces, mut target) = (false, call.caller.db);
    let mut rest = arguments[3..].iter();
    while let Some(word) = rest.next() {
        if is(word, "REPLACE") {
            replaces = true;
        } else if is(word, "DB") {
            let number = parse_integer(rest.next().ok_or(Failure::SYNTAX)?)?;
            target = call.state.database(number)?;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    if from == to && target == call.caller.db {
        let text = "ERR source and destination objects are the same";
        return Err(Failure::fixed(text));
    }
    let expires_at = call.db().expires_at(from);
    let value = call.db().value(from).cloned();
    let database = &mut call.state.databases[target];
    let Some(value) = value.filter(|_| replaces || !database.contains(to)) else {
        return Ok(Reply::Integer(0));
    };
    database.put(to, value, expires_at);
    call.state.notify('g', "copy_to", target, to);
    Ok(Reply::Integer(1))
}

pub(super) fn dbsize(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Ok(Reply::count(call.db().len()))
}

pub(super) fn flushdb(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    check_flush(arguments)?;
    call.db().clear();
    Ok(Reply::ok())
}

pub(super) fn flushall(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    check_flush(arguments)?;
    for database in &mut call.state.databases {
        database.clear();
    }
    Ok(Reply::ok())
}

fn check_flush(arguments: &[Bytes]) -> Result<(), Failure> {
    match &arguments[1..] {
        [] => Ok(()),
        [word] if is(word, "SYNC") || is(word, "ASYNC") => Ok(()),
        _ => Err(Failure::SYNTAX),
    }
}
