//! Sorted sets: what changes them, and single members. Ranges are in [`ranges`](super::ranges).

use super::ranges::{LexRange, Range, RankRange, ScoreRange};
use super::scan::{self, Page};
use crate::core::call::{Call, is};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::{double, parse_float, parse_integer};
use crate::core::value::SortedSet;
use crate::core::{Bytes, Reply};

/// What `ZADD` is asked for.
#[allow(clippy::struct_excessive_bools)] // each is a word of the command
#[derive(Default)]
struct AddOptions {
    only_new: bool,
    only_old: bool,
    only_greater: bool,
    only_less: bool,
    counts_changes: bool,
    increments: bool,
}

impl AddOptions {
    /// Returns the options, and the scores and members behind them.
    fn parse(mut arguments: &[Bytes]) -> Result<(Self, &[Bytes]), Failure> {
        let mut options = Self::default();
        while let [word, rest @ ..] = arguments {
            let flag = [
                ("NX", &mut options.only_new),
                ("XX", &mut options.only_old),
                ("GT", &mut options.only_greater),
                ("LT", &mut options.only_less),
                ("CH", &mut options.counts_changes),
                ("INCR", &mut options.increments),
            ]
            .into_iter()
            .find(|(name, _)| is(word, name));
            let Some((_, flag)) = flag else {
                break;
            };
            *flag = true;
            arguments = rest;
        }
        if arguments.is_empty() || !arguments.len().is_multiple_of(2) {
            return Err(Failure::SYNTAX);
        }
        options.check(arguments.len() / 2)?;
        Ok((options, arguments))
    }

    fn check(&self, pairs: usize) -> Result<(), Failure> {
        if self.only_new && self.only_old {
            let text = "ERR XX and NX options at the same time are not compatible";
            return Err(Failure::fixed(text));
        }
        let compares = self.only_greater || self.only_less;
        if self.only_greater && self.only_less || compares && self.only_new {
            let text = "ERR GT, LT, and/or NX options at the same time are not compatible";
            return Err(Failure::fixed(text));
        }
        if self.increments && pairs > 1 {
            let text = "ERR INCR option supports a single increment-element pair";
            return Err(Failure::fixed(text));
        }
        Ok(())
    }

    /// The score that a member gets; None if it keeps the one it has.
    fn score(&self, old: Option<f64>, score: f64) -> Result<Option<f64>, Failure> {
        let Some(old) = old else {
            return Ok((!self.only_old).then_some(score));
        };
        if self.only_new {
            return Ok(None);
        }
        let score = if self.increments { old + score } else { score };
        if score.is_nan() {
            return Err(Failure::fixed("ERR resulting score is not a number (NaN)"));
        }
        let is_refused = self.only_less && score >= old || self.only_greater && score <= old;
        Ok((!is_refused).then_some(score))
    }
}

pub(super) fn zadd(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let (options, pairs) = AddOptions::parse(&arguments[2..])?;
    add(call, &arguments[1], &options, pairs)
}

pub(super) fn zincrby(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let options = AddOptions {
        increments: true,
        ..AddOptions::default()
    };
    add(call, &arguments[1], &options, &arguments[2..])
}

fn add(call: &mut Call<'_>, key: &[u8], options: &AddOptions, pairs: &[Bytes]) -> Outcome {
    let mut scored = Vec::new();
    for pair in pairs.chunks_exact(2) {
        scored.push((parse_float(&pair[0])?, &pair[1]));
    }
    if options.only_old && call.read::<SortedSet>(key)?.is_none() {
        return Ok(if options.increments {
            Reply::Null
        } else {
            Reply::Integer(0)
        });
    }
    let set = call.db().open::<SortedSet>(key)?;
    let (mut added, mut changed, mut last) = (0, 0, None);
    for (score, member) in scored {
        let old = set.score(member);
        let Some(score) = options.score(old, score)? else {
            continue;
        };
        last = Some(score);
        if old != Some(score) {
            set.set(member, score);
            changed += 1;
        }
        added += i64::from(old.is_none());
    }
    if changed > 0 {
        let event = if options.increments { "zincr" } else { "zadd" };
        call.notify('z', event, key);
    }
    call.tidy(key);
    Ok(match (options.increments, options.counts_changes) {
        (true, _) => last.map_or(Reply::Null, Reply::Double),
        (false, true) => Reply::Integer(changed),
        (false, false) => Reply::Integer(added),
    })
}

pub(super) fn zrem(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let key = &arguments[1];
    let Some(set) = call.db().write::<SortedSet>(key)? else {
        return Ok(Reply::Integer(0));
    };
    let removed = arguments[2..]
        .iter()
        .filter(|member| set.remove(member))
        .count();
    if removed > 0 {
        call.notify('z', "zrem", key);
        call.tidy(key);
    }
    Ok(Reply::count(removed))
}

pub(super) fn zcard(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let set = call.read::<SortedSet>(&arguments[1])?;
    Ok(Reply::count(set.map_or(0, SortedSet::len)))
}

fn score_of(set: Option<&SortedSet>, member: &[u8]) -> Reply {
    let score = set.and_then(|set| set.score(member));
    score.map_or(Reply::Null, Reply::Double)
}

pub(super) fn zscore(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let set = call.read::<SortedSet>(&arguments[1])?;
    Ok(score_of(set, &arguments[2]))
}

pub(super) fn zmscore(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let set = call.read::<SortedSet>(&arguments[1])?;
    let scores = arguments[2..].iter().map(|member| score_of(set, member));
    Ok(Reply::Array(scores.collect()))
}

pub(super) fn zrank(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let set = call.read::<SortedSet>(&arguments[1])?;
    let rank = set.and_then(|set| set.iter().position(|(member, _)| *member == arguments[2]));
    Ok(rank.map_or(Reply::Null, Reply::count))
}

pub(super) fn zrevrank(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let set = call.read::<SortedSet>(&arguments[1])?;
    let rank = set.and_then(|set| {
        set.iter()
            .rev()
            .position(|(member, _)| *member == arguments[2])
    });
    Ok(rank.map_or(Reply::Null, Reply::count))
}

pub(super) fn zcount(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let range = ScoreRange::parse(&arguments[2], &arguments[3])?;
    count(call, &arguments[1], &range)
}

pub(super) fn zlexcount(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let range = LexRange::parse(&arguments[2], &arguments[3])?;
    count(call, &arguments[1], &range)
}

fn count(call: &mut Call<'_>, key: &[u8], range: &impl Range) -> Outcome {
    let set = call.read::<SortedSet>(key)?;
    Ok(Reply::count(set.map_or(0, |set| range.of(set).count())))
}

pub(super) fn zremrangebyscore(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let range = ScoreRange::parse(&arguments[2], &arguments[3])?;
    remove_range(call, &arguments[1], &range)
}

pub(super) fn zremrangebylex(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let range = LexRange::parse(&arguments[2], &arguments[3])?;
    remove_range(call, &arguments[1], &range)
}

pub(super) fn zremrangebyrank(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let range = RankRange::parse(&arguments[2], &arguments[3])?;
    remove_range(call, &arguments[1], &range)
}

fn remove_range(call: &mut Call<'_>, key: &[u8], range: &impl Range) -> Outcome {
    let event = call.command.name;
    let Some(set) = call.db().write::<SortedSet>(key)? else {
        return Ok(Reply::Integer(0));
    };
    let members: Vec<_> = range.of(set).map(|(member, _)| member.clone()).collect();
    for member in &members {
        set.remove(member);
    }
    if !members.is_empty() {
        call.notify('z', event, key);
        call.tidy(key);
    }
    Ok(Reply::count(members.len()))
}

pub(super) fn zpopmin(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    pop(call, arguments, false)
}

pub(super) fn zpopmax(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    pop(call, arguments, true)
}

fn pop(call: &mut Call<'_>, arguments: &[Bytes], from_highest: bool) -> Outcome {
    let key = &arguments[1];
    if arguments.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let event = call.command.name;
    let count = arguments.get(2).map(|text| {
        let count = parse_integer(text)
            .ok()
            .and_then(|count| usize::try_from(count).ok());
        count.ok_or(Failure::fixed(
            "ERR value is out of range, must be positive",
        ))
    });
    let count = count.transpose()?;
    let Some(set) = call.db().write::<SortedSet>(key)? else {
        return Ok(Reply::Array(Vec::new()));
    };
    let most = count.unwrap_or(1);
    let chosen: Vec<_> = if from_highest {
        set.iter()
            .rev()
            .take(most)
            .map(|(member, score)| (member.clone(), score))
            .collect()
    } else {
        set.iter()
            .take(most)
            .map(|(member, score)| (member.clone(), score))
            .collect()
    };
    for (member, _) in &chosen {
        set.remove(member);
    }
    if !chosen.is_empty() {
        call.notify('z', event, key);
        call.tidy(key);
    }
    let pairs = chosen
        .into_iter()
        .map(|(member, score)| (Reply::Bulk(member), Reply::Double(score)));
    Ok(if count.is_some() {
        Reply::Pairs(pairs.collect())
    } else {
        Reply::Array(pairs.flat_map(|(member, score)| [member, score]).collect())
    })
}

pub(super) fn zscan(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    scan::check(&arguments[2])?;
    let Some(set) = call.read::<SortedSet>(&arguments[1])? else {
        return Ok(scan::nothing());
    };
    let page = Page::parse(&arguments[3..], false)?;
    let found = set.iter().filter(|(member, _)| page.takes(member));
    Ok(scan::answer(found.flat_map(|(member, score)| {
        [member.clone(), double(score)]
    })))
}
