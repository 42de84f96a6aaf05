//! I5: free lock and a live waiter => somebody acquires soon.
//!
//! It computes when each name was free from everything that may have held it, and cuts out a waiter's own faults and the
//! time in which its caller did not poll it; what is left is bounded. Any acquire ends a stretch, whoever makes it.
//!
//! 1. For a reader only writers count, those that hold and those that wait: they go first.
//! 2. In a fair lock's queue nobody advances while somebody ahead is disturbed, or dead and still in it. Who gave up and
//!    was killed before the leave got through is dead and still in it, too.
//! 3. The cap is the bound for waiters that listen to nobody (of a spin lock), and for those whose wake-up is only the
//!    beginning: several locks as one and the locks of a quorum are taken in rounds, which may collide with others and
//!    have pauses. A caller of several that competes with others of several may find its locks in a round of each of
//!    them, and in one more of every fourth round ([`Busy::rounds`]): they pass by in turn, each within a hand-over.
//! 4. Permits are free when there are as many as the largest request asks for. One that waits and is disturbed may keep the
//!    others waiting, as in a queue.
//! 5. Several locks as one are free when all of them are. An acquire of several may have each for a moment, which
//!    excuses others, but not those who try for several, too.

use std::collections::{HashMap, HashSet};

use super::holds::Hold;
use super::model::{Model, Op};
use super::ns;
use super::report::{Breach, Invariant, Report};
use super::spans::{Span, Spans};
use crate::history::{Call, LockKind, Nanos, Outcome, Record};

/// A name, as seen by a kind that shares it or by one that does not.
type Seen<'a> = (&'a str, bool);

/// When each name may be held, and where clean releases ended that.
pub(super) struct Busy<'m> {
    spans: HashMap<Seen<'m>, Spans>,
    /// The same, without undisturbed tries that were answered busy, or were for several locks as one.
    held: HashMap<Seen<'m>, Spans>,
    /// The ends of holds by undisturbed releases: when, whose, which operation.
    clean: HashMap<&'m str, Vec<(Nanos, u32, usize)>>,
    acquires: HashMap<&'m str, Vec<usize>>,
    /// For each of `acquires`, the latest end up to it: with it a search from the back ends early.
    latest: HashMap<&'m str, Vec<Nanos>>,
}

pub(super) fn check(model: &Model, report: &mut Report) {
    let busy = Busy::of(model);
    for op in &model.ops {
        if op.waits() && (op.outcome.is_some() || !model.killed.contains_key(&op.client)) {
            check_waiter(model, &busy, op, report);
        }
    }
}

fn check_waiter(model: &Model, busy: &Busy, op: &Op, report: &mut Report) {
    let settings = &model.settings;
    let faults = model.excuses(op);
    let cap = ns(settings.backoff_cap) + ns(settings.scheduling) + ns(settings.clean_wake);
    for free in busy.gaps(model, op) {
        let polled = op.unpolled.gaps(free).into_iter();
        for calm in polled.flat_map(|polled| faults.gaps(polled)) {
            report.looked(Invariant::I5);
            let release = busy.clean_release(model, op, calm);
            let hand_over = ns(settings.clean_wake) + ns(settings.scheduling);
            let bound = match release {
                Some(_) => hand_over,
                None if calm.len() > cap => cap + hand_over * busy.rounds(model, op, calm),
                None => cap,
            };
            if calm.len() > bound {
                let breach = Breach::MissedWakeUp {
                    free_for: calm.len(),
                    bound,
                    clean: release.is_some(),
                };
                let mut evidence = release.map_or_else(Vec::new, |op| model.ops[op].evidence());
                evidence.extend(op.evidence());
                evidence.extend(busy.ended_gap(model, op.name, calm));
                report.add(breach, op.name, evidence);
            }
        }
    }
}

impl<'m> Busy<'m> {
    pub(super) fn of(model: &'m Model<'m>) -> Self {
        let mut tries: HashMap<Seen, Vec<(Span, u32)>> = HashMap::new();
        let mut held: HashMap<Seen, Vec<(Span, u32)>> = HashMap::new();
        // How many permits each semaphore has beyond the largest request for it.
        let mut beyond: HashMap<&str, u32> = HashMap::new();
        let mut busy = Self {
            spans: HashMap::new(),
            held: HashMap::new(),
            clean: HashMap::new(),
            acquires: HashMap::new(),
            latest: HashMap::new(),
        };
        for (index, op) in model.ops.iter().enumerate() {
            if matches!(op.call, Call::Acquire { .. }) {
                busy.note_acquire(index, op);
                let for_a_moment = op.outcome == Some(&Outcome::Busy) || op.kind == LockKind::Multi;
                let for_a_moment = for_a_moment && !model.disturbed(op.client, op.span);
                let weight = op.kind.weight();
                let span = attempt(model, op).map(|span| (span, weight));
                for name in op.names() {
                    if op.kind.is_counted() {
                        let left = model.settings.permits.saturating_sub(weight);
                        let least = beyond.entry(name).or_insert(left);
                        *least = left.min(*least);
                    }
                    let kind = if for_a_moment { &mut tries } else { &mut held };
                    kind.entry((name, false)).or_default().extend(span);
                    if op.kind != LockKind::Read {
                        let wish = (wish(model, op), weight);
                        let kept_out = Some(wish).into_iter().chain(span);
                        held.entry((name, true)).or_default().extend(kept_out);
                    }
                }
            }
        }
        for hold in &model.holds {
            let (span, clean) = held_span(model, hold);
            let weighed = (span, hold.kind.weight());
            for name in hold.names() {
                held.entry((name, false)).or_default().push(weighed);
                if hold.kind != LockKind::Read {
                    held.entry((name, true)).or_default().push(weighed);
                }
                if let (true, Some(release)) = (clean, hold.releases.last()) {
                    let end = (span.until, hold.client, *release);
                    busy.clean.entry(name).or_default().push(end);
                }
            }
        }
        for ends in busy.clean.values_mut() {
            ends.sort_unstable();
        }
        for seen in busy
            .acquires
            .keys()
            .flat_map(|name| [(*name, false), (*name, true)])
        {
            let held = held.remove(&seen).unwrap_or_default();
            let mut all = tries.remove(&seen).unwrap_or_default();
            all.extend(&held);
            let most = beyond.get(seen.0).copied().unwrap_or(0);
            busy.held.insert(seen, Spans::of_more_than(most, held));
            busy.spans.insert(seen, Spans::of_more_than(most, all));
        }
        busy
    }

    fn note_acquire(&mut self, index: usize, op: &Op<'m>) {
        for name in op.names() {
            self.acquires.entry(name).or_default().push(index);
            let latest = self.latest.entry(name).or_default();
            let end = latest.last().copied().unwrap_or(0);
            latest.push(end.max(op.span.until));
        }
    }

    /// Whether somebody else may have held the name of a try, or asked for it, meanwhile.
    pub(super) fn wanted_by_others(&self, op: &Op, model: &Model) -> bool {
        // An attempt given up just before may still be cleaned up.
        let late = ns(model.settings.scheduling) + ns(model.settings.given_up);
        let near = Span::new(op.span.from.saturating_sub(late), op.span.until);
        op.names().any(|name| {
            self.held[&seen_by(op, name)].hits(near) || self.asked_for(name, op, near, model)
        })
    }

    /// Whether somebody else asked for the lock.
    fn asked_for(&self, name: &str, op: &Op, near: Span, model: &Model) -> bool {
        let others = &self.acquires[name];
        let latest = &self.latest[name];
        let after = others.partition_point(|other| model.ops[*other].span.from <= near.until);
        (0..after)
            .rev()
            .take_while(|index| latest[*index] >= near.from)
            .map(|index| &model.ops[others[index]])
            .filter(|other| other.kind.excludes(op.kind))
            .any(|other| !std::ptr::eq(other, op) && other.span.overlaps(near))
    }

    /// In how many rounds of others a caller of several locks may find one of them: each other caller leaves the first lock
    /// for a busy one after its first refused round, and after one of four of the others.
    fn rounds(&self, model: &Model, op: &Op, calm: Span) -> u64 {
        if op.kind != LockKind::Multi {
            return 0;
        }
        let of = |name| {
            let others = &self.acquires[name];
            let latest = &self.latest[name];
            let after = others.partition_point(|other| model.ops[*other].span.from <= calm.until);
            let near = (0..after).rev().take_while(|at| latest[*at] >= calm.from);
            near.map(|at| others[at])
        };
        let others: HashSet<usize> = op.names().flat_map(of).collect();
        let others = others.into_iter().map(|other| &model.ops[other]);
        let others = others.filter(|other| {
            other.kind == LockKind::Multi && other.span.overlaps(calm) && !std::ptr::eq(*other, op)
        });
        (others.count() as u64 * 4).div_ceil(3)
    }

    /// The stretches in which a caller waits and nobody has what it wants. A part of several locks that is deleted costs
    /// their caller a round.
    fn gaps(&self, model: &Model, op: &Op) -> Vec<Span> {
        let (of, deleted) = if op.kind == LockKind::Multi {
            let hit = |(_, name, _): &&(Span, Option<&str>, _)| {
                name.is_none_or(|name| op.names().any(|own| own == name))
            };
            let deleted = model.deleted.iter().filter(hit).map(|(when, _, _)| *when);
            (&self.held, deleted.collect())
        } else {
            (&self.spans, Vec::new())
        };
        let spans = op.names().map(|name| &of[&seen_by(op, name)]);
        let gaps = |gaps: Vec<Span>, spans: &Spans| {
            gaps.into_iter().flat_map(|gap| spans.gaps(gap)).collect()
        };
        spans.fold(Spans::of(deleted).gaps(op.span), gaps)
    }

    /// The clean release that a stretch begins with, if nothing disturbed its client.
    fn clean_release(&self, model: &Model, waiter: &Op, calm: Span) -> Option<usize> {
        let ends = self.clean.get(waiter.name)?;
        let at = ends.partition_point(|(end, _, _)| *end < calm.from);
        let (end, client, release) = ends.get(at)?;
        let quiet = !model.disturbed(*client, calm);
        let heard = !matches!(
            waiter.kind,
            LockKind::Spin | LockKind::Multi | LockKind::Red | LockKind::RedFenced
        );
        (*end == calm.from && quiet && heard).then_some(*release)
    }

    /// The acquire that ended a stretch.
    fn ended_gap(&self, model: &Model, name: &str, calm: Span) -> Vec<Record> {
        let ops = self.acquires.get(name).into_iter().flatten();
        let ops = ops.map(|op| &model.ops[*op]);
        let mut ended = ops.filter(|op| op.span.until == calm.until);
        ended.next().map_or_else(Vec::new, Op::evidence)
    }
}

fn seen_by<'n>(op: &Op, name: &'n str) -> Seen<'n> {
    (name, op.kind == LockKind::Read)
}

/// When a caller that wants a lock for itself may keep readers out: as long as it asks, and until its note is gone.
fn wish(model: &Model, op: &Op) -> Span {
    let settings = &model.settings;
    let went_well = op.outcome.is_some() && !model.disturbed(op.client, op.span);
    if went_well {
        return op.span.lengthened(ns(settings.scheduling));
    }
    model
        .until_calm(op.client, op.span)
        .lengthened(ns(settings.writer_note))
}

/// When an acquire that did not become a hold may still hold the name; for one that did, the time before it returned in
/// which a fault, or a caller that did not poll, may have hidden that.
fn attempt(model: &Model, op: &Op) -> Option<Span> {
    let settings = &model.settings;
    let blur = ns(settings.scheduling);
    let lease = model.kept(op) + ns(settings.cleanup);
    let disturbed = model.disturbed(op.client, op.span);
    let around = Span::new(
        op.span.until.saturating_sub(blur).max(op.span.from),
        op.span.until,
    );
    if op.kind == LockKind::Multi && !disturbed && op.outcome.is_some() {
        return Some(op.span.lengthened(blur));
    }
    match op.outcome {
        Some(Outcome::Acquired(_)) => {
            let faults = model.faults(op.client).within(op.span).last();
            let hidden = faults.into_iter().chain(op.unpolled.within(op.span));
            let until = hidden.map(|span| span.until).max()?;
            Some(Span::new(op.span.from, op.span.until.min(until)))
        }
        // One try that was answered leaves nothing; at the end of a wait another may be under way.
        Some(Outcome::Busy) if !disturbed && !op.waits() => None,
        Some(Outcome::Busy) if !disturbed => Some(around.lengthened(blur)),
        Some(Outcome::Cancelled) if !disturbed => Some(op.span.lengthened(ns(settings.cleanup))),
        Some(_) if !disturbed => Some(around.lengthened(lease)),
        Some(_) => Some(model.until_calm(op.client, op.span).lengthened(lease)),
        None if model.killed.contains_key(&op.client) => {
            Some(model.until_calm(op.client, op.span).lengthened(lease))
        }
        None => None,
    }
}

/// When a hold may hold its name, and whether a clean release ended that.
fn held_span(model: &Model, hold: &Hold) -> (Span, bool) {
    let settings = &model.settings;
    let first = model.first(hold);
    let leases = model.levels(hold).map(|op| model.kept(op));
    let tail = leases.max().unwrap_or(0) + ns(settings.cleanup);
    let release = model.last_release(hold);
    let calm = |span: Span| !model.disturbed(hold.client, span);
    if let Some(op) = release
        && calm(first.span)
        && calm(op.span)
    {
        let span = Span::new(first.span.until, op.span.until);
        match op.outcome {
            Some(Outcome::Released(0)) => return (span, true),
            None | Some(Outcome::Released(_)) if *op.call == Call::Drop => {
                let end = op.span.from.max(span.from);
                return (
                    Span::new(span.from, end).lengthened(ns(settings.cleanup)),
                    false,
                );
            }
            _ => {}
        }
    }
    let kept = model.left_of(hold).map(|(span, _)| span.until);
    let signalled = kept.or(hold.lost.map(|(t, _, _)| t));
    let killed = model.killed.get(&hold.client).copied();
    let end = release.map(|op| op.span.until).or(signalled).or(killed);
    let end = end.unwrap_or(Nanos::MAX).max(first.span.until);
    let span = model.until_calm(hold.client, Span::new(first.span.until, end));
    (span.lengthened(tail), false)
}
