//! I8: a holder knows when it no longer holds, and what is lost stays lost.
//!
//! The windows show that the signal comes before anybody else gets in (see `exclusion`).

use super::holds::{End, Hold, SIGNAL_LAG};
use super::model::Model;
use super::report::{Breach, Invariant, Report, ms};
use super::spans::Span;
use super::{drift, ns};
use crate::history::{LockKind, Nanos, Outcome};

pub(super) fn check(model: &Model, report: &mut Report) {
    for hold in &model.holds {
        report.looked(Invariant::I8);
        let breaches = [
            lost_then_released(model, hold),
            no_signal(model, hold),
            ended_unsaid(model, hold),
            outlived(model, hold),
            released_deleted(model, hold),
            lost_early(model, hold),
        ];
        for breach in breaches.into_iter().flatten() {
            report.add(breach, hold.name, evidence(model, hold));
        }
    }
}

fn evidence(model: &Model, hold: &Hold) -> Vec<crate::history::Record> {
    let mut lines = model.evidence(hold);
    let of_it = |name: Option<&str>| name.is_none_or(|name| hold.has(name));
    let deleted = model.deleted.iter().filter(|(_, name, _)| of_it(*name));
    lines.extend(deleted.map(|(_, _, line)| (*line).clone()));
    lines
}

/// When the holder was notified; an announced shutdown leaves the hold as it is.
fn notified(hold: &Hold) -> Option<Nanos> {
    let lost = hold
        .lost
        .filter(|(_, reason, _)| !reason.eq_ignore_ascii_case("shutdown"));
    lost.map(|(t, _, _)| t)
}

fn lost_then_released(model: &Model, hold: &Hold) -> Option<Breach> {
    let notified = notified(hold)?;
    let last = model.last_release(hold);
    let released = |op: &usize| {
        let op = &model.ops[*op];
        let ended = last.is_some_and(|last| std::ptr::eq(last, op));
        let succeeded = matches!(op.outcome, Some(Outcome::Released(_)));
        succeeded && (ended || op.span.from > notified)
    };
    let any = hold.releases.iter().any(released);
    any.then_some(Breach::LostThenReleased)
}

/// A last release that finds the hold gone reports that itself: sending it ended the hold. A release that leaves levels
/// must not be the only one to report it.
fn no_signal(model: &Model, hold: &Hold) -> Option<Breach> {
    let failed = model.release_failed(hold)?;
    let last = model.last_release(hold);
    let ended_it = last.is_some_and(|last| std::ptr::eq(last, failed));
    let due = failed
        .span
        .until
        .saturating_add(ns(model.settings.scheduling));
    let killed = model.killed.get(&hold.client).copied();
    let silent = hold.lost.is_none() && killed.unwrap_or(model.horizon) > due;
    (silent && !ended_it).then_some(Breach::NoSignal)
}

/// An owner that begins afresh with levels in hand had lost them, and must have been notified. Each level of a reader
/// ends by itself, so which of them a signal was about is not known here.
fn ended_unsaid(model: &Model, hold: &Hold) -> Option<Breach> {
    let by = hold.replaced.filter(|_| hold.kind != LockKind::Read)?;
    let lag = SIGNAL_LAG * ns(model.settings.scheduling);
    let due = Span::new(by.from, by.until.saturating_add(lag));
    // A client that is stopped when it should report a loss reports it when it goes on.
    let stop = model.stop_near(hold.client, due);
    let due = stop.map_or(due.until, |stop| stop.until.saturating_add(lag));
    let killed = model.killed.get(&hold.client).copied();
    let silent = hold.lost.is_none() && model.release_failed(hold).is_none();
    (silent && killed.unwrap_or(model.horizon) > due).then_some(Breach::NoSignal)
}

/// A hold that nothing ended must be reported lost when its lease is over: fixed leases after the last of
/// them, the watchdog's one lease after the data was deleted.
fn outlived(model: &Model, hold: &Hold) -> Option<Breach> {
    let blur = SIGNAL_LAG * ns(model.settings.scheduling);
    let over = [model.leases_over(hold), learns_by(model, hold)];
    let mut over = over.into_iter().flatten().min()?;
    // A client that is stopped when it should report a loss reports it when it goes on.
    let due = Span::new(over, over.saturating_add(blur));
    let stop = model.stop_near(hold.client, due);
    over = stop.map_or(over, |stop| over.max(stop.until));
    let claims = [
        // Also by a shutdown, which takes what is held at its time-out.
        hold.lost.map(|(t, _, _)| t),
        model.release_failed(hold).map(|op| op.span.from),
        model.last_release(hold).map(|op| op.span.from),
        model.killed.get(&hold.client).copied(),
    ];
    let until = claims.into_iter().flatten().min().unwrap_or(model.horizon);
    let by = until.saturating_sub(over.saturating_add(blur));
    (by > 0).then_some(Breach::OutlivedLease { by })
}

/// When a holder must have learnt that its data was deleted: with its lease, or much sooner, at the next renewal, when
/// it is under the watchdog and nothing disturbs it.
fn learns_by(model: &Model, hold: &Hold) -> Option<Nanos> {
    let ops = || model.levels(hold);
    let lease = ops().map(|op| op.lease(&model.settings)).max()?;
    let when = deletion(model, hold)?;
    let renewal = when
        .until
        .saturating_add(ns(model.settings.watchdog_lease) / 2);
    let quiet = !model.disturbed(hold.client, Span::new(hold.window.from, renewal));
    let renewed = ops().all(|op| !op.fixed());
    let end = when.until.saturating_add(lease);
    Some(if quiet && renewed {
        end.min(renewal)
    } else {
        end
    })
}

/// The first deletion that certainly hit a hold.
fn deletion(model: &Model, hold: &Hold) -> Option<Span> {
    let hit = |(when, name, _): &&(Span, Option<&str>, _)| {
        name.is_none_or(|name| hold.has(name)) && when.from > hold.window.from
    };
    model
        .deleted
        .iter()
        .filter(hit)
        .map(|(when, _, _)| *when)
        .min()
}

/// Whether a deletion may have hit a hold in this time; also when its acquire was under way, before or after it.
fn may_be_deleted(model: &Model, hold: &Hold, been: Span) -> bool {
    let hit = |(when, name, _): &(Span, Option<&str>, _)| {
        name.is_none_or(|name| hold.has(name)) && when.overlaps(been)
    };
    model.deleted.iter().any(hit)
}

/// Only the last release asks Redis whether the hold is there, unless it passes the hold on to an owner that waits. A
/// re-entry after the deletion does not bring it back. The readers of a client share one hold, so a reader beside others,
/// or one that reads under its own write, learns it from the last release of those.
fn released_deleted(model: &Model, hold: &Hold) -> Option<Breach> {
    let when = deletion(model, hold)?;
    let op = model.last_release(hold)?;
    let after = op.span.from > when.until && matches!(op.outcome, Some(Outcome::Released(0)));
    let calm = !model.disturbed(hold.client, op.span);
    let shares = |other: &Hold| {
        let reads = other.kind == LockKind::Read;
        let writes = other.kind == LockKind::Write
            && other.owner == hold.owner
            && other.window.from < hold.window.from;
        other.client == hold.client && other.name == hold.name && (reads || writes)
    };
    let blur = ns(model.settings.scheduling);
    let goes_on = |other: &Hold| {
        let given_back = model.last_release(other);
        // One that nobody gave back may have been over before.
        let is_over = other.window.until.saturating_add(blur) < when.from;
        other.window.from < op.span.from
            && hold.window.from < other.window.until
            && given_back.map_or(!is_over, |release| release.span.until > op.span.from)
    };
    let mut others = model
        .holds
        .iter()
        .filter(|other| !std::ptr::eq(*other, hold));
    let asks = hold.kind != LockKind::Read || !others.any(|other| shares(other) && goes_on(other));
    let got_it = |other: &Hold| {
        let acquire = model.first(other).span;
        let same = (other.client, other.name) == (hold.client, hold.name);
        same && acquire.from < op.span.from
            && acquire.until > op.span.from
            && model.may_be_passed_on(other, when)
    };
    let passes_on = matches!(hold.kind, LockKind::Lock | LockKind::Spin);
    let asks = asks && !(passes_on && model.holds.iter().any(got_it));
    (after && calm && asks).then_some(Breach::ReleasedDeleted)
}

fn lost_early(model: &Model, hold: &Hold) -> Option<Breach> {
    let notified = notified(hold)?;
    let blur = ns(model.settings.scheduling);
    let first = model.first(hold);
    let lease = hold
        .acquires
        .iter()
        .map(|op| model.ops[*op].lease(&model.settings));
    let lease = lease.min()?;
    let before = lease.saturating_mul(2).saturating_add(blur);
    let looked_at = Span::new(
        notified.saturating_sub(before).min(first.span.from),
        notified,
    );
    // A read may enter what its client had before.
    let deleted_in = match hold.kind {
        LockKind::Read => looked_at,
        _ => Span::new(first.span.from, notified),
    };
    let excused = model.disturbed(hold.client, looked_at)
        || hold.end == End::Deleted
        || may_be_deleted(model, hold, deleted_in);
    let due = first
        .span
        .from
        .saturating_add(lease - drift(lease).min(lease));
    let faster = lease / 1_000_000 * Nanos::from(model.settings.drift);
    let early = notified.saturating_add(ms(2) + ms(1) + faster) < due;
    // Nothing that a fault does takes it away so soon, where grants outlive faults. A lease counts from later than here, and
    // by a clock that steps a little.
    let gone = hold
        .lost
        .is_some_and(|(_, reason, _)| reason.eq_ignore_ascii_case("missing"));
    let taken = model.settings.keeps_what_it_grants
        && gone
        && hold.end != End::Deleted
        && notified.saturating_add(faster + ms(100)) < due;
    // It is not known here which of several levels is left.
    let watched = hold.acquires.iter().all(|op| !model.ops[*op].fixed());
    (taken || !excused && (early || watched)).then_some(Breach::LostEarly)
}
