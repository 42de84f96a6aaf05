//! Lists.

use std::collections::VecDeque;

use crate::core::call::{Call, is, place, span};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::parse_integer;
use crate::core::{Bytes, Reply};

type List = VecDeque<Bytes>;

/// An end of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Left,
    Right,
}

impl End {
    fn parse(word: &[u8]) -> Result<Self, Failure> {
        let ends = [("LEFT", Self::Left), ("RIGHT", Self::Right)];
        let end = ends.into_iter().find(|(name, _)| is(word, name));
        end.map(|(_, end)| end).ok_or(Failure::SYNTAX)
    }

    fn push(self, list: &mut List, element: Bytes) {
        match self {
            Self::Left => list.push_front(element),
            Self::Right => list.push_back(element),
        }
    }

    fn pop(self, list: &mut List) -> Option<Bytes> {
        match self {
            Self::Left => list.pop_front(),
            Self::Right => list.pop_back(),
        }
    }

    /// `lpush`, `rpop`
    fn event(self, verb: &str) -> String {
        let side = if self == Self::Left { 'l' } else { 'r' };
        format!("{side}{verb}")
    }
}

pub(super) fn lpush(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    push(call, arguments, End::Left)
}

pub(super) fn rpush(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    push(call, arguments, End::Right)
}

fn push(call: &mut Call<'_>, arguments: &[Bytes], end: End) -> Outcome {
    let key = &arguments[1];
    let list = call.db().open::<List>(key)?;
    for element in &arguments[2..] {
        end.push(list, element.clone());
    }
    let len = list.len();
    call.notify('l', &end.event("push"), key);
    Ok(Reply::count(len))
}

pub(super) fn lpushx(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    push_if_exists(call, arguments, End::Left)
}

pub(super) fn rpushx(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    push_if_exists(call, arguments, End::Right)
}

fn push_if_exists(call: &mut Call<'_>, arguments: &[Bytes], end: End) -> Outcome {
    if call.read::<List>(&arguments[1])?.is_none() {
        return Ok(Reply::Integer(0));
    }
    push(call, arguments, end)
}

pub(super) fn lpop(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    pop(call, arguments, End::Left)
}

pub(super) fn rpop(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    pop(call, arguments, End::Right)
}

fn pop(call: &mut Call<'_>, arguments: &[Bytes], end: End) -> Outcome {
    let key = &arguments[1];
    if arguments.len() > 3 {
        return Err(Failure::wrong_arity(call.command.name));
    }
    let count = arguments.get(2).map(|text| positive(text)).transpose()?;
    let Some(list) = call.db().write::<List>(key)? else {
        return Ok(count.map_or(Reply::Null, |_| Reply::NullArray));
    };
    let wanted = count.unwrap_or(1).min(list.len());
    let popped: Vec<_> = (0..wanted).filter_map(|_| end.pop(list)).collect();
    if !popped.is_empty() {
        call.notify('l', &end.event("pop"), key);
        call.tidy(key);
    }
    Ok(if count.is_some() {
        Reply::bulks(popped)
    } else {
        Reply::bulk_or_null(popped.into_iter().next())
    })
}

/// A count that may be 0.
fn positive(text: &[u8]) -> Result<usize, Failure> {
    let count = parse_integer(text)
        .ok()
        .and_then(|count| usize::try_from(count).ok());
    count.ok_or(Failure::fixed(
        "ERR value is out of range, must be positive",
    ))
}

pub(super) fn llen(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let list = call.read::<List>(&arguments[1])?;
    Ok(Reply::count(list.map_or(0, List::len)))
}

pub(super) fn lindex(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let Some(list) = call.read::<List>(&arguments[1])? else {
        return Ok(Reply::Null);
    };
    let index = parse_integer(&arguments[2])?;
    let element = place(list.len(), index).and_then(|index| list.get(index));
    Ok(Reply::bulk_or_null(element.cloned()))
}

pub(super) fn lrange(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let start = parse_integer(&arguments[2])?;
    let stop = parse_integer(&arguments[3])?;
    let Some(list) = call.read::<List>(&arguments[1])? else {
        return Ok(Reply::Array(Vec::new()));
    };
    let elements = list.range(span(list.len(), start, stop));
    Ok(Reply::bulks(elements.map(|element| &**element)))
}

pub(super) fn lset(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let list = call.db().write::<List>(key)?;
    let list = list.ok_or(Failure::NO_SUCH_KEY)?;
    let index = parse_integer(&arguments[2])?;
    let index = place(list.len(), index).ok_or(Failure::OUT_OF_RANGE)?;
    list[index].clone_from(&arguments[3]);
    call.notify('l', "lset", key);
    Ok(Reply::ok())
}

/// Removes so many equal elements from the left, from the right if the number is negative, or all if it is 0.
pub(super) fn lrem(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (key, element) = (&arguments[1], &arguments[3]);
    let count = parse_integer(&arguments[2])?;
    let Some(list) = call.db().write::<List>(key)? else {
        return Ok(Reply::Integer(0));
    };
    let most = match usize::try_from(count.unsigned_abs()) {
        Ok(0) | Err(_) => usize::MAX,
        Ok(most) => most,
    };
    let places = (0..list.len()).filter(|index| list[*index] == *element);
    let mut places: Vec<_> = if count < 0 {
        places.rev().take(most).collect()
    } else {
        places.take(most).collect()
    };
    places.sort_unstable();
    for index in places.iter().rev() {
        list.remove(*index);
    }
    if !places.is_empty() {
        call.notify('l', "lrem", key);
        call.tidy(key);
    }
    Ok(Reply::count(places.len()))
}

pub(super) fn linsert(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (key, pivot, element) = (&arguments[1], &arguments[3], &arguments[4]);
    let behind = match &arguments[2] {
        word if is(word, "BEFORE") => 0,
        word if is(word, "AFTER") => 1,
        _ => return Err(Failure::SYNTAX),
    };
    let Some(list) = call.db().write::<List>(key)? else {
        return Ok(Reply::Integer(0));
    };
    let Some(index) = list.iter().position(|other| other == pivot) else {
        return Ok(Reply::Integer(-1));
    };
    list.insert(index + behind, element.clone());
    let len = list.len();
    call.notify('l', "linsert", key);
    Ok(Reply::count(len))
}

/// What `LPOS` is asked for.
struct Search {
    rank: i64,
    /// None asks for one place, which is then no list.
    count: Option<usize>,
    most_compared: usize,
}

impl Search {
    fn parse(options: &[Bytes]) -> Result<Self, Failure> {
        let mut search = Self {
            rank: 1,
            count: None,
            most_compared: 0,
        };
        for pair in options.chunks(2) {
            let [word, value] = pair else {
                return Err(Failure::SYNTAX);
            };
            let negative = |name| Failure::new(format!("ERR {name} can't be negative"));
            if is(word, "RANK") {
                search.rank = parse_integer(value)?;
                if search.rank == 0 {
                    return Err(Failure::fixed(
                        "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list",
                    ));
                }
                if search.rank == i64::MIN {
                    return Err(Failure::fixed("ERR value is out of range"));
                }
            } else if is(word, "COUNT") {
                let count = parse_integer(value)
                    .ok()
                    .and_then(|count| usize::try_from(count).ok());
                search.count = Some(count.ok_or_else(|| negative("COUNT"))?);
            } else if is(word, "MAXLEN") {
                let most = parse_integer(value)
                    .ok()
                    .and_then(|most| usize::try_from(most).ok());
                search.most_compared = most.ok_or_else(|| negative("MAXLEN"))?;
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Ok(search)
    }

    fn run(&self, list: &List, element: &[u8]) -> Vec<usize> {
        let most_compared = match self.most_compared {
            0 => usize::MAX,
            most => most,
        };
        let count = match self.count {
            None => 1,
            Some(0) => usize::MAX,
            Some(count) => count,
        };
        let skipped = usize::try_from(self.rank.unsigned_abs() - 1).unwrap_or(usize::MAX);
        let is_it = |index: &usize| list[*index] == *element;
        if self.rank < 0 {
            let from_right = (0..list.len()).rev().take(most_compared).filter(is_it);
            from_right.skip(skipped).take(count).collect()
        } else {
            let from_left = (0..list.len()).take(most_compared).filter(is_it);
            from_left.skip(skipped).take(count).collect()
        }
    }
}

pub(super) fn lpos(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let search = Search::parse(&arguments[3..])?;
    let Some(list) = call.read::<List>(&arguments[1])? else {
        let many = search.count.map(|_| Reply::Array(Vec::new()));
        return Ok(many.unwrap_or(Reply::Null));
    };
    let mut places = search
        .run(list, &arguments[2])
        .into_iter()
        .map(Reply::count);
    Ok(match search.count {
        None => places.next().unwrap_or(Reply::Null),
        Some(_) => Reply::Array(places.collect()),
    })
}

pub(super) fn ltrim(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let start = parse_integer(&arguments[2])?;
    let stop = parse_integer(&arguments[3])?;
    if let Some(list) = call.db().write::<List>(key)? {
        let kept = span(list.len(), start, stop);
        list.truncate(kept.end);
        list.drain(..kept.start.min(list.len()));
        call.notify('l', "ltrim", key);
        call.tidy(key);
    }
    Ok(Reply::ok())
}

pub(super) fn lmove(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (End::parse(&arguments[3])?, End::parse(&arguments[4])?);
    move_one(call, &arguments[1], &arguments[2], from, to)
}

pub(super) fn rpoplpush(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    move_one(call, &arguments[1], &arguments[2], End::Right, End::Left)
}

fn move_one(call: &mut Call<'_>, source: &[u8], target: &[u8], from: End, to: End) -> Outcome {
    if call.read::<List>(source)?.is_none() {
        return Ok(Reply::Null);
    }
    call.read::<List>(target)?;
    let popped = call
        .db()
        .write::<List>(source)?
        .and_then(|list| from.pop(list));
    let Some(element) = popped else {
        return Ok(Reply::Null);
    };
    to.push(call.db().open::<List>(target)?, element.clone());
    call.notify('l', &to.event("push"), target);
    call.notify('l', &from.event("pop"), source);
    call.tidy(source);
    Ok(Reply::Bulk(element))
}
