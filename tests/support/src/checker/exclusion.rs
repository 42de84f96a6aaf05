//! I1: certain windows of one name never overlap, and nobody overwrites what a certain holder wrote.
//!
//! All kinds of lock exclude each other on a name, with two exceptions: readers share, and an owner may read under its
//! own write. Several locks as one have each of their names. Those who are certain of permits have no more than there are.

use std::collections::BTreeMap;

use super::holds::{End, Hold};
use super::model::Model;
use super::report::{Breach, Invariant, Report};
use super::spans::Span;
use crate::history::Record;

pub(super) fn check(model: &Model, report: &mut Report) {
    let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in &model.holds {
        for name in hold.names() {
            by_name.entry(name).or_default().push(hold);
        }
    }
    for (name, mut holds) in by_name {
        holds.sort_by_key(|hold| hold.window.from);
        check_name(model, name, &holds, report);
    }
    for pair in &model.pairs {
        check_pair(model, pair, report);
    }
}

/// Compares each hold, in the order of their starts, with all earlier ones that last until then. A hold that claims to
/// last for ever hides no other.
fn check_name(model: &Model, name: &str, holds: &[&Hold], report: &mut Report) {
    let mut open: Vec<&Hold> = Vec::new();
    for hold in holds {
        report.looked(Invariant::I1);
        open.retain(|earlier| earlier.window.until > hold.window.from);
        if hold.kind.is_counted() {
            check_permits(model, name, &open, hold, report);
            open.push(hold);
            continue;
        }
        let excluded = |earlier: &&&Hold| hold.window.len() > 0 && excludes(earlier, hold);
        for earlier in open.iter().filter(excluded) {
            let end = earlier.window.until.min(hold.window.until);
            let by = end - hold.window.from;
            let mut evidence = model.evidence(earlier);
            evidence.extend(model.evidence(hold));
            report.add(Breach::Overlap { by }, name, evidence.clone());
            if !matches!(earlier.end, End::Released | End::Killed | End::Deleted) {
                report.add(Breach::NotNotified, name, evidence);
            }
        }
        open.push(hold);
    }
}

/// Whether one more hold has more permits than those that last leave.
fn check_permits(model: &Model, name: &str, open: &[&Hold], hold: &Hold, report: &mut Report) {
    let all = || open.iter().copied().chain([hold]);
    let taken: u32 = all().map(|one| one.kind.weight()).sum();
    let end = all().map(|one| one.window.until).min();
    let by = end.unwrap_or(0).saturating_sub(hold.window.from);
    if taken > model.settings.permits && by > 0 {
        let evidence = all().flat_map(|one| model.evidence(one)).collect();
        report.add(Breach::Overlap { by }, name, evidence);
    }
}

fn excludes(one: &Hold, other: &Hold) -> bool {
    let same_owner = (one.client, one.owner) == (other.client, other.owner);
    one.kind.excludes(other.kind) && !(same_owner && one.kind != other.kind)
}

/// A pair is torn when both writers were certain while they wrote; a reader's looks are, when a certain writer came in
/// between.
fn check_pair(model: &Model, pair: &Record, report: &mut Report) {
    let (op, from, until, first, seen) = match pair {
        Record::Pair {
            op,
            from,
            until,
            seen,
            ..
        } => (op, from, until, op, seen),
        Record::Look {
            op,
            from,
            until,
            first,
            seen,
        } => (op, from, until, first, seen),
        _ => return,
    };
    let Some(hold) = hold_of(model, *op) else {
        return;
    };
    if !covers(hold.window, Span::new(*from, *until)) {
        return;
    }
    report.looked(Invariant::I1);
    if seen == first {
        return;
    }
    let wrote_it = |other: &&&Record| matches!(other, Record::Pair { op, .. } if op == seen);
    let Some(other) = model.pairs.iter().find(wrote_it) else {
        return;
    };
    let certain = hold_of(model, *seen).is_some_and(|hold| covers(hold.window, written(other)));
    if certain {
        let evidence = vec![pair.clone(), (*other).clone()];
        report.add(Breach::TornPair, hold.name, evidence);
    }
}

fn hold_of<'m, 'a>(model: &'m Model<'a>, op: u64) -> Option<&'m Hold<'a>> {
    model.begun_by.get(&op).map(|hold| &model.holds[*hold])
}

const fn covers(window: Span, part: Span) -> bool {
    window.from <= part.from && part.until <= window.until
}

fn written(pair: &Record) -> Span {
    match pair {
        Record::Pair { from, wrote, .. } => Span::new(*from, *wrote),
        _ => Span::new(0, 0),
    }
}
