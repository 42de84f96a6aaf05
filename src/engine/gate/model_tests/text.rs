//! A state as a text: two worlds with the same text have the same future.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

impl World {
    /// A hash of [`Self::text`], long enough that no two of so many are the same by chance.
    pub(super) fn fingerprint(&self) -> u128 {
        let text = self.text();
        let half = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, &text).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        half(0) << 64 | half(1)
    }

    /// All that the future depends on. Holds, tickets and commands go by their rank: which numbers they have
    /// makes no difference.
    fn text(&self) -> String {
        let mut text = self.seat_text();
        let gate = &self.gate;
        let queue: Vec<_> = gate
            .queue
            .iter()
            .map(|ticket| format!("t{}", ticket.number))
            .collect();
        let _ = write!(
            text,
            "|{queue:?} {:?} {:?} {} {} {:?} {:?}",
            (self.job, self.listening, self.asleep_text()),
            gate.last_answer,
            gate.failing_since.is_some(),
            gate.try_at_once,
            (
                gate.succession.passes_on(self.now),
                gate.succession.text(self.now)
            ),
            gate.wakeups,
        );
        for caller in &self.callers {
            let _ = write!(
                text,
                "|{} {} {} {}",
                Self::caller_text(caller),
                caller.rounds,
                caller.owner_ended,
                caller.manner as u8
            );
        }
        for (of, reaping) in &self.reaps {
            let reaping = match reaping {
                Reaping::Over => continue,
                Reaping::Begun => "begun".to_owned(),
                Reaping::Again => "again".to_owned(),
                Reaping::Sent(in_seat, command, _, behind) => {
                    format!("{} c{command} {behind}", in_seat.is_some())
                }
            };
            let _ = write!(text, "|reap {} {reaping}", hold_text(of));
        }
        for (hold, command) in &self.downgrades {
            let command = command.map(|command| format!("c{command}"));
            let _ = write!(text, "|turn {} {command:?}", hold_text(hold));
        }
        text.push_str(&self.counts_text());
        text.push_str(&self.places.text());
        let awaited = numbers(&text).into_iter().filter(|n| n.kind == b'c');
        let awaited: BTreeSet<_> = awaited.map(|n| n.value).collect();
        for (i, c) in (0u64..).zip(&self.commands) {
            let open = c.executed.is_none() && !c.refused;
            let unsure = c.what == What::Releases && c.ended && c.hold.outcome().is_ok();
            if open || unsure || awaited.contains(&i) {
                let places: Vec<_> = c.places.iter().map(|hold| hold_text(hold)).collect();
                let ahead = c.ahead.map(|ahead| format!("h{ahead}"));
                let _ = write!(
                    text,
                    "|c{i} h{} {ahead:?} {places:?} {:?} {} {:?} {} {} {}",
                    field(&c.hold),
                    c.what,
                    c.lane,
                    c.executed,
                    c.refused,
                    c.reply_lost,
                    c.ended
                );
            }
        }
        let _ = write!(
            text,
            "|{:?} {} {} {:?} {:?} {:?} {}",
            (
                self.held_by.map(|by| format!("h{by}")),
                self.read_by
                    .iter()
                    .map(|by| format!("h{by}"))
                    .collect::<Vec<_>>(),
            ),
            self.faults,
            self.polls,
            (self.ticks, self.calls),
            (
                self.laters,
                self.asks,
                self.closes_window.is_some(),
                self.now < self.left_until,
                self.now < self.rest_until
            ),
            (self.strangers, self.deaths, self.forgets),
            self.closed,
        );
        text.push_str(&self.marks_text());
        let waiting = self
            .found_busy
            .iter()
            .filter(|ticket| ticket.is_waiting())
            .count();
        let _ = write!(text, "|{waiting}");
        ranked(&text)
    }

    fn marks_text(&self) -> String {
        let marked = self.gate.writer_waits.as_ref().map(|note| note.withdrawn);
        let unmarks: Vec<_> = self.unmarks.iter().map(|(c, _)| format!("c{c}")).collect();
        format!(
            "|{:?} {marked:?} {unmarks:?} {} {:?}",
            (self.mark, self.stranger_mark, self.stranger_marks),
            self.now >= self.mark_at,
            (self.shut, self.faulted && self.marking),
        )
    }

    pub(super) fn asleep_text(&self) -> String {
        match self.asleep {
            Asleep::Command(command) => format!("c{command}"),
            other => format!("{other:?}"),
        }
    }

    pub(super) fn seat_text(&self) -> String {
        match &self.gate.seat {
            Seat::Free => "free".to_owned(),
            Seat::Trying(a) => format!("try {} {} {}", attempt_text(a), a.early, a.overdue),
            Seat::Held { hold, uncollected } => {
                let ticket = uncollected
                    .as_ref()
                    .map(|grant| format!("t{} {}", grant.ticket.number, grant.called));
                format!("held {} {ticket:?}", hold_text(hold))
            }
            Seat::Shared { shared, join } => {
                let shares: Vec<_> = shared.reads().map(|share| hold_text(share)).collect();
                let join = join.as_ref().map(attempt_text);
                let open = shared.is_open(self.now);
                let alone = shared.is_exclusive();
                let lying: Vec<_> = shared
                    .not_collecting()
                    .map(|ticket| format!("t{}", ticket.number))
                    .collect();
                let shared = hold_text(shared.hold());
                format!("shared {shared} {alone} {open} {shares:?} {join:?} {lying:?}")
            }
            Seat::HandingOver { hold } => format!("over {}", hold_text(hold)),
            Seat::Releasing {
                hold,
                command,
                next,
                ..
            } => {
                let next = next.as_ref().map(attempt_text);
                let command = command.map(|command| format!("c{command}"));
                format!("release {} {command:?} {next:?}", hold_text(hold))
            }
        }
    }

    pub(super) fn caller_text(caller: &Caller) -> String {
        match &caller.at {
            At::Start => "start".to_owned(),
            At::Looked => "looked".to_owned(),
            At::Waiting(ticket, first) => {
                let first = first.map(|command| format!("c{command}"));
                let unsettled = ticket.unsettled().map(|hold| hold_text(&hold));
                let breaks = ticket.breaks.load(std::sync::atomic::Ordering::Relaxed);
                let waits = (ticket.is_waiting(), ticket.is_called());
                format!(
                    "wait t{} {first:?} {unsettled:?} {breaks} {waits:?}",
                    ticket.number
                )
            }
            At::Entering(entered, count, command) => {
                format!("enter {} {count} c{command}", hold_text(&entered.hold))
            }
            At::Leaving(hold, count, command) => {
                let command = command.map(|command| format!("c{command}"));
                format!("leave {} {count} {command:?}", hold_text(hold))
            }
            At::Holding(entered) => format!("hold {}", hold_text(&entered.hold)),
            At::Unlocking(hold, command, _) => format!("unlock {} c{command}", hold_text(hold)),
            At::Watching(hold) => format!("watch {}", hold_text(hold)),
            At::Detached => "detached".to_owned(),
            At::Gone => "gone".to_owned(),
        }
    }
}

fn hold_text(hold: &Hold) -> String {
    hold.with(|state: &mut HoldState| format!("h{}:{state:?}", hold.id))
}

fn attempt_text(attempt: &Attempt<usize>) -> String {
    let Attempt {
        hold,
        ticket,
        command,
        ..
    } = attempt;
    format!("{} t{} c{command}", hold_text(hold), ticket.number)
}

/// A number in a text, and what it is the number of.
struct Number {
    begin: usize,
    end: usize,
    kind: u8,
    value: u64,
}

/// The numbers behind an `h`, `t` or `c` in the text.
fn numbers(text: &str) -> Vec<Number> {
    let (bytes, mut found, mut at) = (text.as_bytes(), Vec::new(), 0);
    // Whether a word may begin here.
    let mut starts = true;
    while at < bytes.len() {
        let kind = bytes[at];
        at += 1;
        if starts && matches!(kind, b'h' | b't' | b'c') {
            let begin = at;
            while at < bytes.len() && bytes[at].is_ascii_digit() {
                at += 1;
            }
            if let Ok(value) = text[begin..at].parse() {
                found.push(Number {
                    begin,
                    end: at,
                    kind,
                    value,
                });
            }
        }
        starts = !kind.is_ascii_alphanumeric();
    }
    found
}

/// The text with each of its numbers replaced by its rank among those of its kind.
fn ranked(text: &str) -> String {
    let numbers = numbers(text);
    let all: BTreeSet<_> = numbers.iter().map(|n| (n.kind, n.value)).collect();
    let mut ranks = BTreeMap::new();
    let mut last = (0, 0);
    for (kind, value) in all {
        let rank = if kind == last.0 { last.1 + 1 } else { 0 };
        last = (kind, rank);
        ranks.insert((kind, value), rank);
    }
    let mut ranked = String::with_capacity(text.len());
    let mut done = 0;
    for number in numbers {
        ranked.push_str(&text[done..number.begin]);
        let _ = write!(ranked, "{}", ranks[&(number.kind, number.value)]);
        done = number.end;
    }
    ranked.push_str(&text[done..]);
    ranked
}
