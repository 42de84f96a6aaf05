//! A state as a text: two worlds with the same text have the same future.

use super::*;

impl World {
    /// All that the future depends on. Holds, tickets and commands go by their rank: which numbers they have
    /// makes no difference.
    pub(super) fn fingerprint(&self) -> String {
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
            gate.known,
            gate.failing_since.is_some(),
            gate.prompt,
            (gate.row.lasts(self.now), gate.row.is_left(self.now)),
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
                Reaping::Haunted => "haunted".to_owned(),
                Reaping::Sent(in_seat, command, _) => format!("{} c{command}", in_seat.is_some()),
            };
            let _ = write!(text, "|reap {} {reaping}", hold_text(of));
        }
        for (hold, command) in &self.turns {
            let command = command.map(|command| format!("c{command}"));
            let _ = write!(text, "|turn {} {command:?}", hold_text(hold));
        }
        for (i, c) in self.commands.iter().enumerate() {
            let open = c.executed.is_none() && !c.refused;
            let unsure = c.what == What::Releases && c.ended && c.hold.outcome().is_ok();
            if open || unsure || text.contains(&format!("c{i}")) {
                let _ = write!(
                    text,
                    "|c{i} h{} {:?} {} {:?} {} {} {}",
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
            "|{:?} {} {} {} {:?} {} {}",
            (
                self.held_by.map(|by| format!("h{by}")),
                self.read_by
                    .iter()
                    .map(|by| format!("h{by}"))
                    .collect::<Vec<_>>(),
            ),
            self.faults,
            self.polls,
            self.ticks,
            (
                self.laters,
                self.asks,
                self.ends_row.is_some(),
                self.now < self.left_until
            ),
            self.strangers,
            self.closed,
        );
        let waiting = self
            .busy_told
            .iter()
            .filter(|ticket| ticket.is_waiting())
            .count();
        let _ = write!(text, "|{waiting}");
        ranked(&text)
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
                    .map(|(ticket, _)| format!("t{}", ticket.number));
                format!("held {} {ticket:?}", hold_text(hold))
            }
            Seat::Shared { joint, join } => {
                let shares: Vec<_> = joint.shares().map(|share| hold_text(share)).collect();
                let join = join.as_ref().map(attempt_text);
                let open = joint.is_open(self.now);
                let alone = joint.exclusive;
                let lying: Vec<_> = joint
                    .lying()
                    .map(|ticket| format!("t{}", ticket.number))
                    .collect();
                let joint = hold_text(&joint.hold);
                format!("shared {joint} {alone} {open} {shares:?} {join:?} {lying:?}")
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
                let waits = ticket.is_waiting();
                format!(
                    "wait t{} {first:?} {unsettled:?} {breaks} {waits}",
                    ticket.number
                )
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
    hold.with(|state: &mut State| format!("h{}:{state:?}", hold.id))
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

/// The text with each number behind an `h`, `t` or `c` replaced by its rank among those.
fn ranked(text: &str) -> String {
    let is_start = |at: usize| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric())
    };
    let mut found: Vec<(usize, usize, char, u64)> = Vec::new();
    for (at, kind) in text.char_indices().filter(|(_, c)| "htc".contains(*c)) {
        let digits = &text[at + 1..];
        let end = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        if end > 0 && is_start(at) {
            found.push((at + 1, at + 1 + end, kind, digits[..end].parse().unwrap()));
        }
    }
    let all: BTreeSet<_> = found
        .iter()
        .map(|(_, _, kind, number)| (*kind, *number))
        .collect();
    let mut ranked = String::with_capacity(text.len());
    let mut done = 0;
    for (begin, end, kind, number) in found {
        let rank = all
            .iter()
            .filter(|known| known.0 == kind && known.1 < number)
            .count();
        ranked.push_str(&text[done..begin]);
        let _ = write!(ranked, "{rank}");
        done = end;
    }
    ranked.push_str(&text[done..]);
    ranked
}
