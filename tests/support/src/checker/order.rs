//! Fair locks: if one acquire certainly came before another and still waits, the other must not be let in first. The same
//! for permits, among the requests of a client; and the first of a client that has waited for a while precedes younger ones of
//! other clients, which leave it as many permits as it asks for ([`check_older`]).
//!
//! *Certainly came before* means that the first was called more than a margin earlier. From the call to the place in
//! the queue there are a first try and, when that is answered busy, the enqueueing: without a fault two round trips,
//! well below a millisecond each. But the machine may delay both sides by [`Settings::scheduling`], the client and the
//! server that lets it in. The margin is twice that and [`Settings::clean_wake`], so an overtaking by less goes unseen.
//! With the blur of a campaign it is 300 ms.
//!
//! *Let in after* means that the first was answered later, by more than the blur, or answered busy later: had it been
//! let in first, the other would have had to wait for its release, which comes after its answer.
//!
//! A fault of the first's client in the meantime excuses: it may not have entered the queue, or may have lost its
//! place. So does a loss of all data.
//!
//! A client has at most [`PLACES`] places for a name. A waiter that came behind as many of its client came to the queue when
//! one of those was answered, and the margin counts from there.
//!
//! A client uses its places in the order of its waiters. When one of them gives up while its client is disturbed, its
//! place stays until the withdrawal arrives, and the client may use it for a waiter that came later. When one is not
//! polled at its turn, the client does not wait for it: it goes on with its next waiter, and later it is the first one
//! again, with a place at the end. So a client with a waiter that is not polled may come early or late with others.

use std::collections::BTreeMap;

use super::model::{Model, Op};
use super::report::{Breach, Invariant, Report};
use super::spans::Span;
use super::{Settings, ns};
use crate::history::{Call, LockKind, MS, Nanos, Outcome};

/// How many waiters of a client are in the queue of a name at most.
const PLACES: usize = 64;

pub(super) fn check(model: &Model, report: &mut Report) {
    let mut queues: BTreeMap<(&str, Option<u32>), Vec<&Op>> = BTreeMap::new();
    for op in &model.ops {
        let of_client = match op.kind {
            LockKind::Fair => None,
            LockKind::Permits(_) => Some(op.client),
            _ => continue,
        };
        if matches!(op.call, Call::Acquire { .. }) {
            queues.entry((op.name, of_client)).or_default().push(op);
        }
    }
    for ops in queues.values() {
        check_queue(model, ops, report);
    }
    for ((name, client), ops) in &queues {
        for ((_, other), others) in queues.iter().filter(|((other, _), _)| other == name) {
            if client.is_some() && client != other {
                check_older(model, ops, others, report);
            }
        }
    }
}

/// After how long a request for permits precedes younger ones of other clients, and for how long it does so then, by a clock
/// that is a little faster.
const OLD: Nanos = 100 * MS;
const PRECEDES: Nanos = 29_000 * MS;

/// Requests of one client, in the order of their calls, and those of another one, which it may not overtake: the first of them
/// leaves its note with a try, which it makes at the latest when the longest sleep is over.
fn check_older(model: &Model, ops: &[&Op], others: &[&Op], report: &mut Report) {
    let settings = &model.settings;
    let margin = margin(settings) + OLD + ns(settings.backoff_cap);
    let blur = ns(settings.scheduling);
    for later in ops.iter().filter(|op| model.begun_by.contains_key(&op.id)) {
        let before = later.span.from.saturating_sub(margin);
        let came_before = others.iter().take_while(|op| op.span.from < before);
        let mut waiting = came_before.filter(|op| op.span.until > before);
        // Who is behind another one of its client has no note.
        let Some(earlier) = waiting.next() else {
            continue;
        };
        let waited = earlier.span.until > later.span.until.saturating_add(blur)
            && later.span.until < earlier.span.from + PRECEDES;
        let both = earlier.kind.weight() + later.kind.weight();
        let quiet = earlier.unpolled.gaps(earlier.span).len() == 1
            && !model.disturbed(later.client, later.span);
        report.looked(Invariant::Order);
        if waited && both > settings.permits && quiet && queued(model, earlier, later) {
            let by = later.span.from - earlier.span.from;
            let mut evidence = earlier.evidence();
            evidence.extend(later.evidence());
            report.add(Breach::Overtaken { by }, later.name, evidence);
        }
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
        let answered = later.span.until.saturating_add(blur);
        let came_before = ops.partition_point(|op| op.span.from < before);
        let waited = (0..came_before)
            .rev()
            .take_while(|index| latest[*index] > answered)
            .map(|index| ops[index]);
        report.looked(Invariant::Order);
        let waited = waited.filter(|op| op.span.until > answered && queued(model, op, later));
        let waited = waited.filter(|op| came_to_queue(ops, op) < before);
        for earlier in waited.filter(|op| !out_of_step(model, ops, op, later)) {
            let by = later.span.from - earlier.span.from;
            let mut evidence = earlier.evidence();
            evidence.extend(later.evidence());
            report.add(Breach::Overtaken { by }, later.name, evidence);
        }
    }
}

/// When a place of its client was free for an acquire, which was called behind others of that client.
fn came_to_queue(ops: &[&Op], of: &Op) -> Nanos {
    let called = of.span.from;
    let ahead = ops.iter().take_while(|op| op.span.from < called);
    let ahead = ahead.filter(|op| op.client == of.client && op.span.until > called);
    let mut answers: Vec<_> = ahead.map(|op| op.span.until).collect();
    answers.sort_unstable();
    let first_free = answers.len().checked_sub(PLACES);
    first_free.map_or(called, |at| answers[at])
}

/// Whether an acquire certainly had its place in the queue from before another was called until that one was let in.
fn queued(model: &Model, earlier: &Op, later: &Op) -> bool {
    let between = Span::new(earlier.span.from, later.span.until);
    let waited = match earlier.outcome {
        // An owner that enters again waits for nobody.
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

/// Whether the places of one of the two clients may not have been those of its waiters: by one that came first.
fn out_of_step(model: &Model, ops: &[&Op], earlier: &Op, later: &Op) -> bool {
    let came_before = ops.partition_point(|op| op.span.from <= earlier.span.from);
    ops[..came_before].iter().any(|op| {
        let gave_up = !matches!(op.outcome, Some(Outcome::Acquired(_)));
        let since = Span::new(op.span.until.min(later.span.until), later.span.until);
        let left_its_place =
            op.span.until <= later.span.until && gave_up && model.disturbed(op.client, since);
        let unpolled = op.span.until >= earlier.span.from && op.unpolled.hits(op.span);
        op.client == later.client && (left_its_place || unpolled)
            || op.client == earlier.client && unpolled
    })
}
