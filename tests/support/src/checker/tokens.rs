//! Fenced locks, of one server or of a quorum: each hold has a token, larger than those of all holds before it, and no
//! other all its life. A plain hold gets one when it is entered through a fenced lock.
//!
//! One hold certainly came before another
//!
//! 1. when its acquire had returned before the other's was called, or
//! 2. when its acquire returned first and nothing disturbed the other's: an undisturbed holder gets its answer before
//!    it can lose the hold, so the one that was answered later was let in later. A deletion of data disturbs.
//!
//! That holds across losses of the data and of the lock itself: tokens must grow even when I1 does not hold.

use std::collections::{BTreeMap, HashMap};

use super::holds::Hold;
use super::model::Model;
use super::report::{Breach, Invariant, Report};
use super::spans::Span;
use crate::history::Nanos;

/// A hold, its first token and its last: they are the same, unless a re-entry changed it.
struct Fenced<'m, 'a> {
    hold: &'m Hold<'a>,
    acquire: Span,
    first: u64,
    last: u64,
}

pub(super) fn check(model: &Model, report: &mut Report) {
    let mut by_name: BTreeMap<&str, Vec<Fenced>> = BTreeMap::new();
    for hold in &model.holds {
        if let Some(fenced) = Fenced::of(model, hold, report) {
            by_name.entry(hold.name).or_default().push(fenced);
        }
    }
    for holds in by_name.values_mut() {
        check_growth(model, holds, report);
    }
}

impl<'m, 'a> Fenced<'m, 'a> {
    /// `None` when there is no token. That is a breach, unless the hold is one of a plain lock.
    fn of(model: &Model, hold: &'m Hold<'a>, report: &mut Report) -> Option<Self> {
        let mut tokens = Vec::new();
        for op in hold.acquires.iter().map(|op| &model.ops[*op]) {
            match op.token {
                Some(token) => tokens.push(token),
                None if !hold.kind.has_tokens() && tokens.is_empty() => continue,
                None => report.add(Breach::NoToken, hold.name, op.evidence()),
            }
            report.looked(Invariant::Tokens);
        }
        let (first, last) = (*tokens.first()?, *tokens.iter().max()?);
        if let Some(token) = tokens.into_iter().find(|token| *token != first) {
            let breach = Breach::TokenChanged {
                token,
                before: first,
            };
            report.add(breach, hold.name, model.evidence(hold));
        }
        Some(Self {
            hold,
            acquire: model.first(hold).span,
            first,
            last,
        })
    }
}

/// Compares with the largest token of all holds that certainly came before, by either rule, and with all holds for
/// equality.
fn check_growth(model: &Model, holds: &mut [Fenced], report: &mut Report) {
    holds.sort_by_key(|fenced| fenced.acquire.until);
    let mut largest: Vec<usize> = Vec::with_capacity(holds.len());
    let mut whose: HashMap<u64, usize> = HashMap::new();
    for (index, fenced) in holds.iter().enumerate() {
        let answered_before =
            |time: Nanos| holds.partition_point(|other| other.acquire.until < time);
        let calm = !model.disturbed(fenced.hold.client, fenced.acquire)
            && !model
                .deleted
                .iter()
                .any(|(when, _, _)| when.overlaps(fenced.acquire));
        let end = if calm {
            fenced.acquire.until
        } else {
            fenced.acquire.from
        };
        let before = answered_before(end)
            .checked_sub(1)
            .map(|last| largest[last]);
        let before = before.filter(|before| holds[*before].last >= fenced.first);
        let before = before.or_else(|| whose.insert(fenced.first, index));
        if let Some(before) = before.map(|before| &holds[before]) {
            let breach = Breach::TokenWentBack {
                token: fenced.first,
                before: before.last,
            };
            let mut evidence = model.evidence(before.hold);
            evidence.extend(model.evidence(fenced.hold));
            report.add(breach, fenced.hold.name, evidence);
        }
        let best = largest.last().copied().unwrap_or(index);
        largest.push(if holds[best].last > fenced.last {
            best
        } else {
            index
        });
    }
}
