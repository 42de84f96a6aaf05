//! I2: a hold count follows from the operations before it.
//!
//! An operation without a clear answer leaves two counts possible; a lost hold allows a fresh start. When several locks
//! as one are lost, those that were not lost themselves stay with their owner, until their levels are given back or
//! their leases end.

use std::collections::{BTreeMap, BTreeSet};

use super::holds::Hold;
use super::model::{Key, Model, Op};
use super::ns;
use super::report::{Breach, Invariant, Report};
use super::spans::Span;
use crate::history::{Call, LockKind, Nanos, Outcome, Record};

pub(super) fn check(model: &Model, report: &mut Report) {
    let mut by_key: BTreeMap<Key, Vec<&Op>> = BTreeMap::new();
    for op in &model.ops {
        by_key.entry(op.key()).or_default().push(op);
    }
    let mut lost: BTreeMap<Key, Vec<u64>> = BTreeMap::new();
    for hold in &model.holds {
        if let Some((t, _, _)) = hold.lost {
            lost.entry(hold.key()).or_default().push(t);
        }
    }
    let kept = Kept::of(model);
    for (key, ops) in by_key {
        let lost = lost.remove(&key).unwrap_or_default();
        let (client, owner, kind, name) = key;
        // Several locks as one are plain ones.
        let kept = kept.get(&(client, owner, name));
        let kept = kept.filter(|_| kind == LockKind::Lock);
        check_key(model, &ops, &lost, kept.map_or(&[], Vec::as_slice), report);
    }
}

/// The levels of a name that its owner has through several locks as one.
struct Kept {
    when: Span,
    levels: u32,
}

impl Kept {
    fn of<'a>(model: &Model<'a>) -> BTreeMap<(u32, u32, &'a str), Vec<Self>> {
        let mut all: BTreeMap<_, Vec<Self>> = BTreeMap::new();
        for hold in &model.holds {
            let Some((when, levels)) = model.left_of(hold) else {
                continue;
            };
            for name in hold.names() {
                let when = lengthened(model, hold, name, when);
                let of_name = all.entry((hold.client, hold.owner, name)).or_default();
                of_name.push(Self { when, levels });
            }
        }
        all
    }
}

/// An owner that enters what was kept lengthens it: all levels share one lease.
fn lengthened(model: &Model, lost: &Hold, name: &str, mut when: Span) -> Span {
    let blur = ns(model.settings.scheduling);
    let own = |hold: &&Hold| {
        let same = (hold.client, hold.owner) == (lost.client, lost.owner);
        same && hold.has(name) && !std::ptr::eq(*hold, lost)
    };
    // They are in the order of their beginnings.
    for hold in model.holds.iter().filter(own) {
        let first = model.first(hold).span;
        if first.until >= when.from && first.from <= when.until.saturating_add(blur) {
            when.until = when.until.max(leaves(model, hold));
        }
    }
    when
}

/// Until when Redis may keep the remains of a hold.
fn leaves(model: &Model, hold: &Hold) -> Nanos {
    let lease = model.levels(hold).map(|op| op.lease(&model.settings));
    let lease = lease.max().unwrap_or_default();
    let released = model.last_release(hold);
    let released = released.map(|op| op.span.until.saturating_add(lease));
    let of_one = hold.lost.filter(|_| hold.names().count() == 1);
    let over = model.leases_over(hold).or(released);
    over.or(of_one.map(|(t, _, _)| t)).unwrap_or(Nanos::MAX)
}

fn check_key(model: &Model, ops: &[&Op], lost: &[u64], kept: &[Kept], report: &mut Report) {
    let mut possible = BTreeSet::from([0_u32]);
    let mut before: Vec<Record> = Vec::new();
    let mut began = 0;
    let blur = ns(model.settings.scheduling);
    for op in ops {
        if before.is_empty() {
            began = op.span.from;
        }
        let returned = op.span.until + blur;
        if lost.iter().any(|t| (began..=returned).contains(t)) {
            // A new acquire begins afresh; a release under way may find nothing left.
            possible.extend([0, 1]);
        }
        let near = Span::new(op.span.from.saturating_sub(blur), returned);
        let kept = kept.iter().filter(|kept| kept.when.overlaps(near));
        let kept: u32 = kept.map(|kept| kept.levels).sum();
        if let Some((got, step)) = counted(op) {
            report.looked(Invariant::I2);
            let now = after(&possible, kept, got, step);
            if now.is_empty() {
                let from = possible.last().copied().unwrap_or(0);
                let expected = u32::try_from(i64::from(from) + step).unwrap_or(0);
                before.extend(op.evidence());
                report.add(
                    Breach::WrongCount { got, expected },
                    op.name,
                    before.clone(),
                );
                // A caller that got a wrong count may have the level all the same.
                let counted = |from: &u32| u32::try_from(i64::from(*from) + step).ok();
                possible = possible.iter().filter_map(counted).chain([got]).collect();
            } else {
                possible = now;
            }
        } else {
            doubt(op, &mut possible);
        }
        if possible.len() == 1 && possible.contains(&0) {
            before.clear();
        } else {
            before.extend(op.evidence());
        }
    }
}

/// The counts after an operation that returned one, when up to `kept` levels may be there beside the `possible` ones.
fn after(possible: &BTreeSet<u32>, kept: u32, got: u32, step: i64) -> BTreeSet<u32> {
    let fits = |from: &&u32| {
        let mut beside = 0..=kept;
        beside.any(|kept| i64::from(**from) + i64::from(kept) + step == i64::from(got))
    };
    let own = |from: &u32| u32::try_from(i64::from(*from) + step).unwrap_or(0);
    possible.iter().filter(fits).map(own).collect()
}

/// The count that an operation returned, and what it adds.
const fn counted(op: &Op) -> Option<(u32, i64)> {
    match op.outcome {
        Some(Outcome::Acquired(count)) => Some((*count, 1)),
        Some(Outcome::Released(left)) => Some((*left, -1)),
        _ => None,
    }
}

/// The counts possible after an operation without one.
fn doubt(op: &Op, possible: &mut BTreeSet<u32>) {
    match (op.call, op.outcome) {
        (_, Some(Outcome::Failed(kind))) if kind == "not_owner" => {
            possible.insert(0);
        }
        (Call::Acquire { .. }, _) => {}
        // The level is given back, whatever the answer; after a lost hold perhaps all are.
        (Call::Release | Call::Drop, _) => {
            let fewer: Vec<u32> = possible.iter().map(|n| n.saturating_sub(1)).collect();
            possible.extend(fewer);
        }
    }
}
