//! A history in order: operations with both their ends, and what disturbed whom.

use std::collections::HashMap;

use super::holds::Hold;
use super::spans::{Span, Spans};
use super::{Settings, ns, report::ms};
use crate::history::{Call, LockKind, Nanos, Outcome, Record, Scope};

/// An operation with both its ends.
#[derive(Debug)]
pub(super) struct Op<'a> {
    pub(super) client: u32,
    pub(super) owner: u32,
    pub(super) kind: LockKind,
    pub(super) name: &'a str,
    pub(super) call: &'a Call,
    /// From the invoke to the return, or to when nobody can have waited for it any more.
    pub(super) span: Span,
    /// `None`: unknown.
    pub(super) outcome: Option<&'a Outcome>,
    pub(super) token: Option<u64>,
    pub(super) id: u64,
    /// When its caller did not poll it.
    pub(super) unpolled: Spans,
    lines: Vec<&'a Record>,
}

/// A client, an owner of it, and a lock: one name may be held as several kinds.
pub(super) type Key<'a> = (u32, u32, LockKind, &'a str);

impl<'a> Op<'a> {
    pub(super) const fn key(&self) -> Key<'a> {
        (self.client, self.owner, self.kind, self.name)
    }

    /// Whether its answer was that the hold is gone.
    pub(super) fn says_gone(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Failed(kind)) if kind == "lost" || kind == "not_owner")
    }

    /// The single locks that it is about.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.kind.names(self.name)
    }

    pub(super) fn evidence(&self) -> Vec<Record> {
        self.lines.iter().copied().cloned().collect()
    }

    /// The lease that an acquire asks for.
    pub(super) fn lease(&self, settings: &Settings) -> Nanos {
        match self.call {
            Call::Acquire { lease_ms, .. } => lease_ms.map_or(ns(settings.watchdog_lease), ms),
            Call::Release | Call::Drop => 0,
        }
    }

    /// Whether it is an acquire that may wait.
    pub(super) const fn waits(&self) -> bool {
        match self.call {
            Call::Acquire { wait_ms, .. } => !matches!(wait_ms, Some(0)),
            Call::Release | Call::Drop => false,
        }
    }

    pub(super) const fn fixed(&self) -> bool {
        let Call::Acquire { lease_ms, .. } = self.call else {
            return false;
        };
        lease_ms.is_some()
    }
}

/// A deletion of data: when, of which name, and its line in the history.
pub(super) type Deletion<'a> = (Span, Option<&'a str>, &'a Record);

/// The history in order.
#[derive(Debug)]
pub(super) struct Model<'a> {
    pub(super) settings: Settings,
    pub(super) ops: Vec<Op<'a>>,
    pub(super) holds: Vec<Hold<'a>>,
    pub(super) pairs: Vec<&'a Record>,
    pub(super) deleted: Vec<Deletion<'a>>,
    pub(super) killed: HashMap<u32, Nanos>,
    /// The last time in the history.
    pub(super) horizon: Nanos,
    /// The hold that an acquire began, by its number.
    pub(super) begun_by: HashMap<u64, usize>,
    frozen: HashMap<u32, Spans>,
    /// When the machine stood still, unless a fault of a server was the cause.
    stalls: Spans,
    faults: HashMap<u32, Spans>,
    faults_of_all: Spans,
    /// For each fair lock and semaphore, when one of its waiters was disturbed or dead: then nobody behind that waiter
    /// advances.
    queues: HashMap<&'a str, Spans>,
    /// The longest lease that a reader of a name asked for.
    read_leases: HashMap<&'a str, Nanos>,
}

impl<'a> Model<'a> {
    pub(super) fn build(records: &'a [Record], settings: &Settings) -> Self {
        let mut model = Self {
            settings: *settings,
            ops: Vec::new(),
            holds: Vec::new(),
            pairs: Vec::new(),
            deleted: Vec::new(),
            killed: HashMap::new(),
            horizon: records.iter().map(end_of).max().unwrap_or(0),
            begun_by: HashMap::new(),
            frozen: HashMap::new(),
            stalls: Spans::default(),
            faults: HashMap::new(),
            faults_of_all: Spans::default(),
            queues: HashMap::new(),
            read_leases: HashMap::new(),
        };
        model.note_surroundings(records);
        model.note_faults(records);
        model.note_ops(records);
        model.note_queues();
        model.note_read_leases();
        model.note_holds();
        model.note_signals(records);
        for index in 0..model.holds.len() {
            (model.holds[index].window, model.holds[index].end) = model.window(index);
        }
        model
    }

    pub(super) fn first(&self, hold: &Hold) -> &Op<'a> {
        &self.ops[hold.acquires[0]]
    }

    /// The release that gave the last level back.
    pub(super) fn last_release(&self, hold: &Hold) -> Option<&Op<'a>> {
        let last = hold.releases.last().filter(|_| hold.ended);
        last.map(|op| &self.ops[*op])
    }

    /// When a client was disturbed, each time with its recovery.
    pub(super) fn faults(&self, client: u32) -> &Spans {
        self.faults.get(&client).unwrap_or(&self.faults_of_all)
    }

    pub(super) fn disturbed(&self, client: u32, span: Span) -> bool {
        self.faults(client).hits(span)
    }

    /// A span, lengthened to the end of the faults that its end falls into: commands may be late.
    pub(super) fn until_calm(&self, client: u32, span: Span) -> Span {
        let at_end = Span::new(span.until, span.until);
        let faults = self.faults(client).within(at_end);
        let late = faults.last().map_or(span.until, |fault| fault.until);
        Span::new(span.from, span.until.max(late))
    }

    /// What excuses a waiter: its own faults; in a queue, and beside older requests for permits, those of everybody in it.
    pub(super) fn excuses(&self, op: &Op) -> &Spans {
        let queue = self.queues.get(op.name);
        let queue = queue.filter(|_| op.kind == LockKind::Fair || op.kind.is_counted());
        queue.unwrap_or_else(|| self.faults(op.client))
    }

    /// The lease that Redis may still keep for an acquire: readers of one client share a hold, which lasts as long as
    /// the longest of their leases.
    pub(super) fn kept(&self, op: &Op) -> Nanos {
        let longest = self.read_leases.get(op.name);
        let longest = longest.filter(|_| op.kind == LockKind::Read);
        longest.copied().unwrap_or_else(|| op.lease(&self.settings))
    }

    /// How long a client was stopped, or the machine stood still, within a span.
    pub(super) fn stopped(&self, client: u32, span: Span) -> Nanos {
        let own = self
            .frozen
            .get(&client)
            .map_or(&[][..], |own| own.within(span));
        let all = own.iter().chain(self.stalls.within(span)).copied();
        Spans::of(all.collect()).cover(span)
    }

    /// The first stop of a client that overlaps a span.
    pub(super) fn stop_near(&self, client: u32, span: Span) -> Option<Span> {
        self.frozen.get(&client)?.within(span).first().copied()
    }

    /// All lines of a hold's story.
    pub(super) fn evidence(&self, hold: &Hold) -> Vec<Record> {
        let ops = hold.acquires.iter().chain(&hold.releases);
        let mut lines: Vec<Record> = ops.flat_map(|op| self.ops[*op].evidence()).collect();
        lines.extend(hold.lost.map(|(_, _, line)| line.clone()));
        lines
    }

    fn note_surroundings(&mut self, records: &'a [Record]) {
        let mut frozen: HashMap<u32, Vec<Span>> = HashMap::new();
        let (mut slow, mut stalls, mut strikes) = (Vec::new(), Vec::new(), Vec::new());
        for record in records {
            match record {
                Record::Killed { t, client } => {
                    self.killed.insert(*client, *t);
                }
                Record::Frozen {
                    from,
                    until,
                    client,
                } => {
                    let span = Span::new(*from, *until);
                    frozen.entry(*client).or_default().push(span);
                }
                Record::Fault {
                    from, until, scope, ..
                } => match scope {
                    Scope::Answer => slow.push(Span::new(*from, *until)),
                    Scope::Machine => stalls.push(Span::new(*from, *until)),
                    Scope::All => strikes.push(Span::new(*from, *until)),
                    Scope::Client(_) => {}
                },
                Record::Deleted { from, until, name } => {
                    let span = Span::new(*from, *until);
                    self.deleted.push((span, name.as_deref(), record));
                }
                Record::Pair { .. } | Record::Look { .. } => self.pairs.push(record),
                _ => {}
            }
        }
        let merged = |(client, spans)| (client, Spans::of(spans));
        self.frozen = frozen.into_iter().map(merged).collect();
        let strikes = Spans::of(strikes);
        slow.retain(|answer| !strikes.hits(*answer));
        stalls.append(&mut slow);
        self.stalls = Spans::of(stalls);
    }

    fn note_faults(&mut self, records: &[Record]) {
        let mut of_all = Vec::new();
        let mut own: HashMap<u32, Vec<Span>> = HashMap::new();
        let recovery = ns(self.settings.recovery);
        for record in records {
            match record {
                Record::Fault {
                    from, until, scope, ..
                } => {
                    let span = Span::new(*from, *until).lengthened(recovery);
                    match scope {
                        Scope::All | Scope::Answer | Scope::Machine => of_all.push(span),
                        Scope::Client(client) => own.entry(*client).or_default().push(span),
                    }
                }
                Record::Frozen {
                    from,
                    until,
                    client,
                } => {
                    let span = Span::new(*from, *until).lengthened(recovery);
                    own.entry(*client).or_default().push(span);
                }
                _ => {}
            }
        }
        for (client, mut spans) in own {
            spans.extend(&of_all);
            self.faults.insert(client, Spans::of(spans));
        }
        self.faults_of_all = Spans::of(of_all);
    }

    fn note_ops(&mut self, records: &'a [Record]) {
        let mut known: HashMap<u64, usize> = HashMap::new();
        for record in records {
            match record {
                Record::Invoke { op, .. } => {
                    let before = known.insert(*op, self.ops.len());
                    assert!(before.is_none(), "operation {op} is invoked twice");
                    self.ops.extend(self.invoked(record));
                }
                Record::Return {
                    t,
                    op,
                    since,
                    outcome,
                    token,
                } => {
                    let index = known.get(op).expect("a return follows its invoke");
                    let op = &mut self.ops[*index];
                    op.span = Span::new(since.unwrap_or(op.span.from), *t);
                    op.outcome = Some(outcome);
                    op.token = *token;
                    op.lines.push(record);
                }
                Record::Unpolled { from, until, op } => {
                    let index = known
                        .get(op)
                        .expect("an operation is invoked before it rests");
                    self.ops[*index].unpolled = Spans::of(vec![Span::new(*from, *until)]);
                }
                _ => {}
            }
        }
        self.ops.sort_by_key(|op| op.span.from);
    }

    fn note_queues(&mut self) {
        let settings = &self.settings;
        let mut queues: HashMap<&str, Vec<Span>> = HashMap::new();
        let mut dead: Vec<(Nanos, Nanos, &str)> = Vec::new();
        for op in &self.ops {
            let dead_for = match op.kind {
                LockKind::Fair => settings.dead_waiter,
                LockKind::Permits(_) => settings.writer_note,
                _ => continue,
            };
            let dead_for = ns(dead_for) + ns(settings.recovery);
            let spans = queues.entry(op.name).or_default();
            spans.extend(self.faults(op.client).within(op.span));
            spans.extend(op.unpolled.within(op.span));
            let killed = self.killed.get(&op.client);
            let killed = killed.filter(|t| **t <= self.left_queue_by(op));
            dead.extend(killed.map(|t| (*t, t.saturating_add(dead_for), op.name)));
        }
        // A dead waiter of Redisson's starts to run out when those ahead of it are out.
        dead.sort_unstable();
        let mut out: HashMap<&str, Nanos> = HashMap::new();
        for (killed, dead_until, name) in dead {
            let out = out.entry(name).or_default();
            *out = dead_until.max(*out).saturating_add(ns(settings.dead_turn));
            queues
                .entry(name)
                .or_default()
                .push(Span::new(killed, *out));
        }
        let merged = |(name, spans)| (name, Spans::of(spans));
        self.queues = queues.into_iter().map(merged).collect();
    }

    /// When an operation was out of the queue of its fair lock at the latest, if its client was not killed before.
    fn left_queue_by(&self, op: &Op) -> Nanos {
        match op.outcome {
            None => Nanos::MAX,
            Some(Outcome::Acquired(_) | Outcome::Released(_)) => op.span.until,
            Some(_) => {
                let calm = self.until_calm(op.client, op.span);
                calm.until.saturating_add(ns(self.settings.cleanup))
            }
        }
    }

    fn note_read_leases(&mut self) {
        for op in self.ops.iter().filter(|op| op.kind == LockKind::Read) {
            let longest = self.read_leases.entry(op.name).or_default();
            *longest = (*longest).max(op.lease(&self.settings));
        }
    }

    /// An operation that is still open.
    fn invoked(&self, record: &'a Record) -> Option<Op<'a>> {
        let Record::Invoke {
            t,
            op,
            client,
            owner,
            kind,
            name,
            call,
        } = record
        else {
            return None;
        };
        let end = self.killed.get(client).copied().unwrap_or(self.horizon);
        Some(Op {
            id: *op,
            client: *client,
            owner: *owner,
            kind: *kind,
            name,
            call,
            span: Span::new(*t, end.max(*t)),
            outcome: None,
            token: None,
            unpolled: Spans::default(),
            lines: vec![record],
        })
    }
}

const fn end_of(record: &Record) -> Nanos {
    match record {
        Record::Invoke { t, .. }
        | Record::Return { t, .. }
        | Record::Lost { t, .. }
        | Record::Killed { t, .. }
        | Record::Sample { t, .. }
        | Record::Leftover { t, .. } => *t,
        Record::Frozen { until, .. }
        | Record::Unpolled { until, .. }
        | Record::Fault { until, .. }
        | Record::Deleted { until, .. }
        | Record::Pair { until, .. }
        | Record::Look { until, .. } => *until,
    }
}
