//! Fair locks: who came for certain before somebody else, and waits, is not let in after him.
//!
//! *Came for certain before* means that his acquire was called more than a margin earlier. From the call to the place in
//! the queue there are a first try and, when that is told busy, the way into the queue: without a fault two round trips,
//! well below a millisecond each. What they may really take is what the machine makes of it: each side may be run late
//! by [`Settings::scheduling`], the client and the server that lets it in. The margin is that, twice, and
//! [`Settings::clean_wake`] on top, so an overtaking by less is not seen. With the blur of a campaign it is 300 ms.
//!
//! *Let in after him* means that he was told later, by more than the blur, or was told busy later: had he been let in
//! first, the other would have had to wait for his release, which comes after he was told.
//!
//! A fault of his client in the time between excuses, for then he may not have come into the queue, or may have lost his
//! place; so does a loss of all data.

use std::collections::BTreeMap;

use super::model::{Model, Op};
use super::report::{Breach, Invariant, Report};
use super::spans::Span;
use super::{Settings, ns};
use crate::history::{Call, LockKind, Nanos, Outcome};

pub(super) fn check(model: &Model, report: &mut Report) {
    let mut by_name: BTreeMap<&str, Vec<&Op>> = BTreeMap::new();
    for op in &model.ops {
        if op.kind == LockKind::Fair && matches!(op.call, Call::Acquire { .. }) {
            by_name.entry(op.name).or_default().push(op);
        }
    }
    for ops in by_name.values() {
        check_queue(model, ops, report);
    }
}

pub(crate) fn margin(settings: &Settings) -> Nanos {
    2 * ns(settings.scheduling) + ns(settings.clean_wake)
}

/// Acquires of one name, in the order of their calls.
fn check_queue(model: &Model, ops: &[&Op], report: &mut Report) {
    let mut latest: Vec<Nanos> = Vec::with_capacity(ops.len());
    for op in ops {
        latest.push(latest.last().copied().unwrap_or(0).max(op.span.until));
    }
    let blur = ns(model.settings.scheduling);
    for later in ops.iter().filter(|op| model.begun_by.contains_key(&op.id)) {
        let before = later.span.from.saturating_sub(margin(&model.settings));
        let told = later.span.until.saturating_add(blur);
        let came_before = ops.partition_point(|op| op.span.from < before);
        let waited = (0..came_before)
            .rev()
            .take_while(|index| latest[*index] > told)
            .map(|index| ops[index]);
        report.looked(Invariant::Order);
        for earlier in waited.filter(|op| op.span.until > told && queued(model, op, later)) {
            let by = later.span.from - earlier.span.from;
            let mut evidence = earlier.evidence();
            evidence.extend(later.evidence());
            report.add(Breach::Overtaken { by }, later.name, evidence);
        }
    }
}

/// Whether an acquire had its place in the queue for certain from before another was called until that was let in.
fn queued(model: &Model, earlier: &Op, later: &Op) -> bool {
    let between = Span::new(earlier.span.from, later.span.until);
    let waited = match earlier.outcome {
        // An owner who enters again waits for nobody.
        Some(Outcome::Acquired(_)) => model.begun_by.contains_key(&earlier.id),
        Some(Outcome::Busy) => true,
        _ => false,
    };
    let lost_all =
        |(when, name, _): &(Span, Option<&str>, _)| name.is_none() && when.overlaps(between);
    let other_owner = (earlier.client, earlier.owner) != (later.client, later.owner);
    waited
        && other_owner
        && !model.disturbed(earlier.client, between)
        && !model.deleted.iter().any(lost_all)
}
