//! Plain locks: no client keeps a lock to itself while another one waits.
//!
//! Clients have no order, and luck decides each time. So this looks for what luck cannot explain: somebody waits
//! undisturbed while another client has the lock more than [`MOST`] times, and nobody else once, and while that goes on for
//! longer than [`LONGEST`]. Of a time in which nobody gets it, because somebody has it for long, only [`MOMENT`] counts. A
//! client for which the longest gap is too short has no such chance.

use std::collections::BTreeMap;
use std::time::Duration;

use super::model::{Model, Op};
use super::ns;
use super::report::{Breach, Invariant, Report};
use super::spans::Span;
use crate::history::{Call, LockKind, Nanos, Outcome};

const LONGEST: Duration = Duration::from_secs(3);
const MOMENT: Duration = Duration::from_millis(100);
const MOST: usize = 50;

pub(super) fn check(model: &Model, report: &mut Report) {
    if model.settings.has_far_clients {
        return;
    }
    let mut by_name: BTreeMap<&str, (Vec<&Op>, Vec<&Op>)> = BTreeMap::new();
    for op in model.ops.iter().filter(|op| op.kind == LockKind::Lock) {
        let (grants, waits) = by_name.entry(op.name).or_default();
        if matches!(op.call, Call::Acquire { .. }) && op.waits() {
            if model.begun_by.contains_key(&op.id) {
                grants.push(op);
            }
            waits.push(op);
        }
    }
    for (grants, waits) in by_name.values_mut() {
        grants.sort_by_key(|op| op.span.until);
        for waiter in waits.iter() {
            check_waiter(model, waiter, grants, report);
        }
    }
}

/// `grants`: of the same name, ordered by their answers.
fn check_waiter(model: &Model, waiter: &Op, grants: &[&Op], report: &mut Report) {
    let waited = matches!(
        waiter.outcome,
        Some(Outcome::Acquired(_) | Outcome::Busy) | None
    );
    let blur = ns(model.settings.recovery) + ns(model.settings.scheduling);
    let span = Span::new(
        waiter.span.from + blur,
        waiter.span.until.max(waiter.span.from + blur),
    );
    let long = waiter.span.until > span.from + ns(LONGEST);
    if !waited || !long || model.disturbed(waiter.client, waiter.span) {
        return;
    }
    report.looked(Invariant::Turns);
    let first = grants.partition_point(|op| op.span.until <= span.from);
    let meanwhile = grants[first..]
        .iter()
        .take_while(|op| op.span.until < span.until);
    let meanwhile: Vec<_> = meanwhile.collect();
    let Some(one) = meanwhile.first().map(|op| op.client) else {
        return;
    };
    let alone = one != waiter.client && meanwhile.iter().all(|op| op.client == one);
    let apart = meanwhile
        .windows(2)
        .map(|two| two[1].span.until - two[0].span.until);
    let changing: Nanos = apart.map(|apart| apart.min(ns(MOMENT))).sum();
    if alone && meanwhile.len() > MOST && changing > ns(LONGEST) {
        let times = meanwhile.len();
        let mut evidence = waiter.evidence();
        evidence.extend(meanwhile[times - 1].evidence());
        report.add(Breach::KeptToItself { times }, waiter.name, evidence);
    }
}
