//! I2: a hold count is what the operations before it make it.
//!
//! An operation without a clear answer leaves two counts possible; a lost hold allows a fresh start. Of several locks as
//! one that were lost, those that were not lost themselves stay with their owner, until their leases end.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Key, Model, Op};
use super::ns;
use super::report::{Breach, Invariant, Report};
use crate::history::{Call, Outcome, Record};

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
    let kept = kept(model);
    for (key, ops) in by_key {
        let lost = lost.remove(&key).unwrap_or_default();
        let (client, owner, _, name) = key;
        let kept = kept.get(&(client, owner, name)).copied();
        check_key(model, &ops, &lost, kept, report);
    }
}

/// From when on an owner may have a level of a name that it took as one of several.
fn kept<'a>(model: &Model<'a>) -> BTreeMap<(u32, u32, &'a str), u64> {
    let mut kept = BTreeMap::new();
    for hold in &model.holds {
        let Some((t, _, _)) = hold.lost.filter(|_| hold.names().count() > 1) else {
            continue;
        };
        for name in hold.names() {
            let since = kept.entry((hold.client, hold.owner, name)).or_insert(t);
            *since = t.min(*since);
        }
    }
    kept
}

fn check_key(model: &Model, ops: &[&Op], lost: &[u64], kept: Option<u64>, report: &mut Report) {
    let mut possible = BTreeSet::from([0_u32]);
    let mut before: Vec<Record> = Vec::new();
    let mut began = 0;
    for op in ops {
        if before.is_empty() {
            began = op.span.from;
        }
        let returned = op.span.until + ns(model.settings.scheduling);
        if lost.iter().any(|t| (began..=returned).contains(t)) {
            // Whoever enters begins afresh; a release under way may find nothing left.
            possible.extend([0, 1]);
        }
        if kept.is_some_and(|since| since <= returned) {
            let around = possible
                .iter()
                .flat_map(|n: &u32| [n.saturating_sub(1), n + 1]);
            possible.extend(around.collect::<Vec<_>>());
        }
        if let Some((got, step)) = counted(op) {
            report.looked(Invariant::I2);
            let fits = |from: &u32| i64::from(*from) + step == i64::from(got);
            if !possible.iter().any(fits) {
                let from = possible.last().copied().unwrap_or(0);
                let expected = u32::try_from(i64::from(from) + step).unwrap_or(0);
                before.extend(op.evidence());
                report.add(
                    Breach::WrongCount { got, expected },
                    op.name,
                    before.clone(),
                );
            }
            // Who was told a wrong count may have the level all the same.
            let counted = |from: &u32| u32::try_from(i64::from(*from) + step).ok();
            let mut now = BTreeSet::from([got]);
            if !possible.iter().any(fits) {
                now.extend(possible.iter().filter_map(counted));
            }
            possible = now;
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
