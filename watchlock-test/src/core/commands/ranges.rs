//! Ranges of sorted sets: by rank, by score, by name.

use crate::core::call::{Call, is, span};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::parse_integer;
use crate::core::value::SortedSet;
use crate::core::{Bytes, Reply};

/// A part of a sorted set, from its lowest member on.
pub(super) trait Range {
    fn of<'a>(&self, set: &'a SortedSet) -> impl DoubleEndedIterator<Item = (&'a Bytes, f64)>;
}

/// From one place to another.
pub(super) struct RankRange {
    start: i64,
    stop: i64,
}

impl RankRange {
    pub(super) fn parse(start: &[u8], stop: &[u8]) -> Result<Self, Failure> {
        let (start, stop) = (parse_integer(start)?, parse_integer(stop)?);
        Ok(Self { start, stop })
    }

    /// The same places, counted from the other end.
    fn reversed(&self) -> Self {
        Self {
            start: (-1_i64).saturating_sub(self.stop),
            stop: (-1_i64).saturating_sub(self.start),
        }
    }
}

impl Range for RankRange {
    fn of<'a>(&self, set: &'a SortedSet) -> impl DoubleEndedIterator<Item = (&'a Bytes, f64)> {
        let span = span(set.len(), self.start, self.stop);
        let behind = set.len() - span.end;
        // From the nearer end, as the middle of a set is seldom asked for.
        let mut members = set.iter();
        if span.start > 0 {
            members.nth(span.start - 1);
        }
        if behind > 0 {
            members.nth_back(behind - 1);
        }
        members
    }
}

/// One end of a range of scores.
struct ScoreBound {
    score: f64,
    is_excluded: bool,
}

impl ScoreBound {
    fn parse(text: &[u8]) -> Result<Self, Failure> {
        let (is_excluded, number) = match text.strip_prefix(b"(") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let number = std::str::from_utf8(number).ok();
        let score = number.and_then(|number| match number {
            // As strtod reads it.
            "" => Some(0.0),
            number => number.trim_ascii_start().parse().ok(),
        });
        let score = score.filter(|score: &f64| !score.is_nan());
        let score = score.ok_or(Failure::fixed("ERR min or max is not a float"))?;
        Ok(Self { score, is_excluded })
    }
}

/// From one score to another.
pub(super) struct ScoreRange {
    min: ScoreBound,
    max: ScoreBound,
}

impl ScoreRange {
    pub(super) fn parse(min: &[u8], max: &[u8]) -> Result<Self, Failure> {
        let (min, max) = (ScoreBound::parse(min)?, ScoreBound::parse(max)?);
        Ok(Self { min, max })
    }
}

impl Range for ScoreRange {
    fn of<'a>(&self, set: &'a SortedSet) -> impl DoubleEndedIterator<Item = (&'a Bytes, f64)> {
        let (min, max) = (self.min.score, self.max.score);
        let members = set.between(min, max);
        let (no_min, no_max) = (self.min.is_excluded, self.max.is_excluded);
        members.filter(move |(_, score)| {
            let is_low = if no_min { *score <= min } else { *score < min };
            let is_high = if no_max { *score >= max } else { *score > max };
            !is_low && !is_high
        })
    }
}

/// One end of a range of names.
#[derive(Debug)]
enum LexBound {
    Lowest,
    Highest,
    Included(Bytes),
    Excluded(Bytes),
}

impl LexBound {
    fn parse(text: &[u8]) -> Result<Self, Failure> {
        match text {
            b"-" => Ok(Self::Lowest),
            b"+" => Ok(Self::Highest),
            [b'[', name @ ..] => Ok(Self::Included(name.to_vec())),
            [b'(', name @ ..] => Ok(Self::Excluded(name.to_vec())),
            _ => Err(Failure::fixed("ERR min or max not valid string range item")),
        }
    }
}

/// From one name to another; meant for sets whose members have equal scores.
pub(super) struct LexRange {
    min: LexBound,
    max: LexBound,
}

impl LexRange {
    pub(super) fn parse(min: &[u8], max: &[u8]) -> Result<Self, Failure> {
        let (min, max) = (LexBound::parse(min)?, LexBound::parse(max)?);
        Ok(Self { min, max })
    }

    fn contains(&self, member: &Bytes) -> bool {
        let is_above = match &self.min {
            LexBound::Lowest => true,
            LexBound::Highest => false,
            LexBound::Included(name) => member >= name,
            LexBound::Excluded(name) => member > name,
        };
        let is_below = match &self.max {
            LexBound::Lowest => false,
            LexBound::Highest => true,
            LexBound::Included(name) => member <= name,
            LexBound::Excluded(name) => member < name,
        };
        is_above && is_below
    }
}

impl Range for LexRange {
    fn of<'a>(&self, set: &'a SortedSet) -> impl DoubleEndedIterator<Item = (&'a Bytes, f64)> {
        set.iter().filter(|(member, _)| self.contains(member))
    }
}

/// How a range is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

/// What a command asks for behind the range.
struct RangeOptions {
    by: By,
    is_reversed: bool,
    with_scores: bool,
    limit: Option<(i64, i64)>,
}

impl RangeOptions {
    /// `by` and `is_reversed` of a command whose name says them; None for `ZRANGE`, where options do.
    fn parse(options: &[Bytes], named: Option<(By, bool)>) -> Result<Self, Failure> {
        let (by, is_reversed) = named.unwrap_or((By::Rank, false));
        let mut parsed = Self {
            by,
            is_reversed,
            with_scores: false,
            limit: None,
        };
        let mut rest = options;
        while let [word, after @ ..] = rest {
            rest = after;
            if is(word, "WITHSCORES") {
                parsed.with_scores = true;
            } else if is(word, "LIMIT") && after.len() >= 2 {
                parsed.limit = Some((parse_integer(&after[0])?, parse_integer(&after[1])?));
                rest = &after[2..];
            } else if named.is_none() && is(word, "REV") {
                parsed.is_reversed = true;
            } else if named.is_none() && is(word, "BYSCORE") {
                parsed.by = By::Score;
            } else if named.is_none() && is(word, "BYLEX") {
                parsed.by = By::Lex;
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        parsed.check()?;
        Ok(parsed)
    }

    fn check(&self) -> Result<(), Failure> {
        if self.limit.is_some_and(|limit| limit != (0, -1)) && self.by == By::Rank {
            let text = "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
            return Err(Failure::fixed(text));
        }
        if self.with_scores && self.by == By::Lex {
            let text = "ERR syntax error, WITHSCORES not supported in combination with BYLEX";
            return Err(Failure::fixed(text));
        }
        Ok(())
    }

    fn answer<'a>(&self, members: impl DoubleEndedIterator<Item = (&'a Bytes, f64)>) -> Reply {
        let (offset, count) = self.limit.unwrap_or((0, -1));
        // A negative offset is behind every member.
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if self.is_reversed {
            self.written(members.rev().skip(offset).take(count))
        } else {
            self.written(members.skip(offset).take(count))
        }
    }

    fn written<'a>(&self, members: impl Iterator<Item = (&'a Bytes, f64)>) -> Reply {
        if self.with_scores {
            let pairs =
                members.map(|(member, score)| (Reply::bulk(&**member), Reply::Double(score)));
            Reply::Pairs(pairs.collect())
        } else {
            Reply::bulks(members.map(|(member, _)| &**member))
        }
    }
}

pub(super) fn zrange(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    range(call, arguments, None)
}

pub(super) fn zrevrange(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    range(call, arguments, Some((By::Rank, true)))
}

pub(super) fn zrangebyscore(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    range(call, arguments, Some((By::Score, false)))
}

pub(super) fn zrevrangebyscore(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    range(call, arguments, Some((By::Score, true)))
}

pub(super) fn zrangebylex(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    range(call, arguments, Some((By::Lex, false)))
}

pub(super) fn zrevrangebylex(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    range(call, arguments, Some((By::Lex, true)))
}

fn range(call: &mut Call<'_>, arguments: &[Bytes], named: Option<(By, bool)>) -> Outcome {
    let options = RangeOptions::parse(&arguments[4..], named)?;
    let (first, last) = (&arguments[2], &arguments[3]);
    // Reversed, the highest score or name comes first.
    let (min, max) = if options.is_reversed {
        (last, first)
    } else {
        (first, last)
    };
    match options.by {
        By::Rank => {
            let range = RankRange::parse(first, last)?;
            let range = if options.is_reversed {
                range.reversed()
            } else {
                range
            };
            found(call, &arguments[1], &options, &range)
        }
        By::Score => found(call, &arguments[1], &options, &ScoreRange::parse(min, max)?),
        By::Lex => found(call, &arguments[1], &options, &LexRange::parse(min, max)?),
    }
}

fn found(call: &mut Call<'_>, key: &[u8], options: &RangeOptions, range: &impl Range) -> Outcome {
    let Some(set) = call.read::<SortedSet>(key)? else {
        return Ok(Reply::Array(Vec::new()));
    };
    Ok(options.answer(range.of(set)))
}
