//! Holds out of operations: their levels, their signals, their certain windows.

use std::collections::{BTreeMap, HashMap};

use super::model::{Key, Model, Op};
use super::spans::Span;
use super::{drift, ns};
use crate::history::{Call, LockKind, Nanos, Outcome, Record};

/// A signal goes through several threads until it gets its time stamp: so many times the blur.
pub(super) const SIGNAL_LAG: Nanos = 5;

/// What ended a certain window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    ReleaseFailed,
    Lost,
    Killed,
    Lease,
    Deleted,
    /// Its owner began afresh.
    Replaced,
    /// Nothing: it lasts to the end of the history.
    Open,
}

/// One owner's possession of one name.
#[derive(Debug)]
pub(super) struct Hold<'a> {
    pub(super) client: u32,
    pub(super) owner: u32,
    pub(super) kind: LockKind,
    pub(super) name: &'a str,
    /// The acquires that succeeded, the first of them began it.
    pub(super) acquires: Vec<usize>,
    /// Re-entries without a clear answer: they may have lengthened the lease.
    pub(super) unclear: Vec<usize>,
    pub(super) releases: Vec<usize>,
    /// Whether its last level was given back.
    pub(super) ended: bool,
    pub(super) lost: Option<(Nanos, &'a str, &'a Record)>,
    /// The certain window.
    pub(super) window: Span,
    pub(super) end: End,
    levels: u32,
    /// When its owner asked for the level that began a fresh one, before all of its own were given back.
    pub(super) replaced: Option<Span>,
}

impl<'a> Model<'a> {
    /// A level joins the owner's hold of that name, or begins one.
    pub(super) fn note_holds(&mut self) {
        let mut current: BTreeMap<Key, usize> = BTreeMap::new();
        // Ended by a release without a clear answer, and how many levels there were before that.
        let mut unclear: BTreeMap<Key, (usize, u32)> = BTreeMap::new();
        for (index, op) in self.ops.iter().enumerate() {
            let key = op.key();
            match (op.call, op.outcome) {
                (Call::Acquire { .. }, Some(Outcome::Acquired(count))) => {
                    // A count of 1 begins a hold, whatever was known of the one before. I2 checks whether that may be,
                    // and I8 whether its owner knew.
                    if *count == 1
                        && let Some(before) = current.remove(&key)
                    {
                        self.holds[before].replaced = Some(op.span);
                    }
                    if let Some((hold, levels)) = unclear.remove(&key)
                        && *count == levels + 1
                    {
                        // That release did not run.
                        (self.holds[hold].ended, self.holds[hold].levels) = (false, levels);
                        current.insert(key, hold);
                    }
                    let hold = *current.entry(key).or_insert_with(|| {
                        self.begun_by.insert(op.id, self.holds.len());
                        self.holds.push(Hold::new(op));
                        self.holds.len() - 1
                    });
                    self.holds[hold].acquires.push(index);
                    self.holds[hold].levels += 1;
                }
                (Call::Acquire { .. }, _) => {
                    if let Some(hold) = current.get(&key) {
                        self.holds[*hold].unclear.push(index);
                    }
                }
                (Call::Release | Call::Drop, outcome) => {
                    let Some(hold) = current.get(&key).copied() else {
                        continue;
                    };
                    let levels = self.holds[hold].levels;
                    if self.holds[hold].release(index, outcome) {
                        current.remove(&key);
                        if !matches!(outcome, Some(Outcome::Released(_))) && !op.says_gone() {
                            unclear.insert(key, (hold, levels));
                        }
                    }
                }
            }
        }
    }

    /// Gives each `lost` signal to its hold: the latest that had begun. While that one is still being acquired, and for
    /// as long as a signal may lag, the signal goes to the hold before it, if that one is known to be gone and has no
    /// signal yet, unless a call is just learning that the latest is gone. A signal lags as little behind the
    /// answer that the hold is gone.
    pub(super) fn note_signals(&mut self, records: &'a [Record]) {
        let lag = SIGNAL_LAG * ns(self.settings.scheduling);
        let mut by_key: HashMap<Key, Vec<usize>> = HashMap::new();
        for (index, hold) in self.holds.iter().enumerate() {
            by_key.entry(hold.key()).or_default().push(index);
        }
        for record in records {
            let Record::Lost {
                t,
                client,
                owner,
                kind,
                name,
                reason,
            } = record
            else {
                continue;
            };
            let key = (*client, *owner, *kind, name.as_str());
            let Some(holds) = by_key.get(&key) else {
                continue;
            };
            let first = |hold: &usize| self.first(&self.holds[*hold]).span;
            let mut begun = holds.iter().rev().filter(|hold| first(hold).from <= *t);
            let latest = begun.next();
            let missing = |hold: &&usize| {
                let hold = &self.holds[**hold];
                let failed = self.release_failed(hold).map(|op| op.span);
                let gone = hold.replaced.into_iter().chain(failed);
                let gone = gone.map(|by| by.until.saturating_add(lag)).max();
                hold.lost.is_none() && gone.is_some_and(|until| *t <= until)
            };
            let starts = latest.is_some_and(|hold| first(hold).until.saturating_add(lag) > *t);
            let is_of_latest = latest.is_some_and(|hold| self.is_reported(&self.holds[*hold], *t));
            let before = begun.next().filter(missing);
            let before = before.filter(|_| starts && !is_of_latest);
            let hold = before.or(latest);
            if let Some(hold) = hold.copied() {
                let signal = &mut self.holds[hold].lost;
                signal.get_or_insert((*t, reason, record));
            }
        }
    }

    /// The first release that said that the hold is gone.
    pub(super) fn release_failed(&self, hold: &Hold) -> Option<&Op<'a>> {
        let mut releases = hold.releases.iter().map(|op| &self.ops[*op]);
        releases.find(|op| op.says_gone())
    }

    /// Whether a release, or a re-entry, that began by `t` reported that the hold is gone.
    fn is_reported(&self, hold: &Hold, t: Nanos) -> bool {
        let calls = hold.releases.iter().chain(&hold.unclear);
        let mut calls = calls.map(|op| &self.ops[*op]);
        calls.any(|op| op.says_gone() && op.span.from <= t)
    }

    pub(super) fn window(&self, index: usize) -> (Span, End) {
        let hold = &self.holds[index];
        let first = self.first(hold).span;
        let (mut end, mut why) = self.claimed_until(hold);
        for (when, name, _) in &self.deleted {
            let ours = name.is_none_or(|name| hold.has(name));
            let hit = when.until >= first.from || self.may_be_passed_on(hold, *when);
            if ours && hit && when.from < end {
                (end, why) = (when.from, End::Deleted);
            }
        }
        (Span::new(first.until, end.max(first.until)), why)
    }

    /// Whether a hold of the same client, of which data was deleted, may have been passed on to this one: with two thirds of
    /// its lease left, which count from before.
    pub(super) fn may_be_passed_on(&self, hold: &Hold, when: Span) -> bool {
        let settings = &self.settings;
        let spent = ns(settings.watchdog_lease) / 3 + ns(settings.scheduling);
        let was_there = |other: &Hold| {
            let began = self.first(other).span.from;
            began <= when.until && self.claimed_until(other).0 >= when.from
        };
        let mut of_client = self.holds.iter().filter(|other| {
            (other.client, other.name) == (hold.client, hold.name) && !std::ptr::eq(*other, hold)
        });
        let granted = self.first(hold).span.until;
        granted.saturating_sub(when.from) <= spent && of_client.any(was_there)
    }

    /// The earliest of what ends a claim.
    fn claimed_until(&self, hold: &Hold) -> (Nanos, End) {
        let blur = ns(self.settings.scheduling);
        let killed = self.killed.get(&hold.client).copied();
        let lease = self.leases_over(hold).map(|t| t.saturating_sub(blur));
        // A signal is stamped late by as much as the machine blurs, or as the client was stopped.
        let unblurred = |t: Nanos| {
            let near = Span::new(t.saturating_sub(2 * blur), t);
            let stop = self.stop_near(hold.client, near);
            stop.map_or(near.until, |stop| stop.from.min(near.until))
        };
        let failed = self.release_failed(hold).map(|op| unblurred(op.span.from));
        // A holder that gives back as soon as it runs again may not have had the lock for as long as it was stopped.
        let released = self.last_release(hold).map(|op| match op.outcome {
            Some(Outcome::Released(_)) => op.span.from,
            _ => unblurred(op.span.from),
        });
        let lost = hold
            .lost
            .map(|(t, _, _)| unblurred(t).min(t.saturating_sub(blur)));
        let replaced = hold.replaced.map(|by| by.from);
        let ends = [
            (failed, End::ReleaseFailed),
            (released, End::Released),
            (killed, End::Killed),
            (lost, End::Lost),
            (lease, End::Lease),
            (replaced, End::Replaced),
        ];
        let known = ends.into_iter().filter_map(|(t, why)| Some((t?, why)));
        known
            .min_by_key(|(t, _)| *t)
            .unwrap_or((self.horizon, End::Open))
    }

    /// The acquires that may have set a hold's leases.
    pub(super) fn levels(&self, hold: &Hold) -> impl Iterator<Item = &Op<'a>> {
        let ops = hold.acquires.iter().chain(&hold.unclear);
        ops.map(|op| &self.ops[*op])
    }

    /// The latest end of the validity of a hold with fixed leases only.
    pub(super) fn leases_over(&self, hold: &Hold) -> Option<Nanos> {
        let ops = || self.levels(hold);
        let end = |op: &Op| {
            let lease = op.lease(&self.settings);
            op.span
                .until
                .saturating_add(lease - drift(lease).min(lease))
        };
        ops().all(Op::fixed).then(|| ops().map(end).max()).flatten()
    }

    /// What an owner may still have of several locks as one that it lost: levels that were not given back, of locks
    /// that were not lost themselves. From when until when, and how many.
    pub(super) fn left_of(&self, hold: &Hold) -> Option<(Span, u32)> {
        let (lost, _, _) = hold.lost.filter(|_| hold.names().count() > 1)?;
        let levels = hold.acquires.len().saturating_sub(hold.releases.len());
        let end = self.leases_over(hold).unwrap_or(Nanos::MAX);
        let levels = u32::try_from(levels).unwrap_or(u32::MAX);
        (levels > 0).then(|| (Span::new(lost, end.max(lost)), levels))
    }
}

impl<'a> Hold<'a> {
    fn new(first: &Op<'a>) -> Self {
        Self {
            client: first.client,
            owner: first.owner,
            kind: first.kind,
            name: first.name,
            acquires: Vec::new(),
            unclear: Vec::new(),
            releases: Vec::new(),
            ended: false,
            lost: None,
            window: first.span,
            end: End::Open,
            levels: 0,
            replaced: None,
        }
    }

    pub(super) const fn key(&self) -> Key<'a> {
        (self.client, self.owner, self.kind, self.name)
    }

    /// The single locks that it has.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.kind.names(self.name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// Notes a release; true when it was the last.
    fn release(&mut self, op: usize, outcome: Option<&Outcome>) -> bool {
        self.releases.push(op);
        self.levels = match outcome {
            // One of several levels is given back, even if the hold is lost when that returns.
            Some(Outcome::Released(0)) if self.levels > 1 => self.levels - 1,
            // Levels beyond its own are of several locks as one that were lost.
            Some(Outcome::Released(left)) => (*left).min(self.levels.saturating_sub(1)),
            Some(Outcome::Failed(kind)) if kind == "not_owner" => 0,
            _ => self.levels.saturating_sub(1),
        };
        self.ended = self.levels == 0;
        self.ended
    }
}
