//! The fingerprint of a state: two worlds with the same one have the same future.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

/// A number that only says which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Number {
    Hold(u64),
    Ticket(u64),
    Command(usize),
}

/// All that the future depends on. Holds, tickets and commands are given by the rank of their numbers, because the
/// numbers themselves make no difference.
#[derive(Default)]
pub(super) struct Words {
    words: Vec<u64>,
    /// Which words become the rank of a number, and of which.
    numbers: Vec<(usize, Number)>,
}

impl Words {
    fn number(&mut self, number: Number) {
        self.numbers.push((self.words.len(), number));
        self.words.push(0);
    }

    pub(super) fn hold_number(&mut self, number: u64) {
        self.number(Number::Hold(number));
    }

    pub(super) fn ticket(&mut self, ticket: &Ticket) {
        self.number(Number::Ticket(ticket.number));
    }

    pub(super) fn command(&mut self, command: usize) {
        self.number(Number::Command(command));
    }

    pub(super) fn hold(&mut self, hold: &Hold) {
        self.hold_number(field(hold));
        hold.with(|state| state.hash(self));
    }

    fn attempt(&mut self, attempt: &Attempt<usize>) {
        self.hold(&attempt.hold);
        self.ticket(&attempt.ticket);
        self.command(attempt.command);
        self.all(&attempt.beside, |words, (ticket, hold)| {
            words.ticket(ticket);
            words.hold(hold);
        });
    }

    /// Adds a value as its text.
    fn text(&mut self, value: &impl Debug) {
        let _ = write!(self, "{value:?}");
        self.write_u8(0xff);
    }

    pub(super) fn all<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut add: impl FnMut(&mut Self, T),
    ) {
        let at = self.words.len();
        self.words.push(0);
        for item in items {
            self.words[at] += 1;
            add(self, item);
        }
    }

    fn commands(&self) -> BTreeSet<usize> {
        let commands = self.numbers.iter().filter_map(|(_, number)| match number {
            Number::Command(command) => Some(*command),
            _ => None,
        });
        commands.collect()
    }

    /// Long enough that no two of so many are the same by chance.
    fn fingerprint(mut self) -> u128 {
        let mut ranks: Vec<_> = self.numbers.iter().map(|(_, number)| *number).collect();
        ranks.sort_unstable();
        ranks.dedup();
        for (at, number) in self.numbers {
            self.words[at] = ranks.partition_point(|other| *other < number) as u64;
        }
        let half = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, &self.words).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        half(0) << 64 | half(1)
    }
}

/// A word for each value; a longer text has several.
impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        self.words.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
    }

    fn finish(&self) -> u64 {
        self.words.len() as u64
    }
}

impl std::fmt::Write for Words {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.write(text.as_bytes());
        Ok(())
    }
}

impl World {
    pub(super) fn fingerprint(&self) -> u128 {
        let mut words = Words::default();
        self.add_gate(&mut words);
        words.all(&self.callers, |words, caller| {
            Self::add_caller(caller, words);
            (caller.rounds, caller.owner_ended, caller.manner).hash(words);
            let waits = matches!(caller.at, At::Waiting(..));
            (waits && caller.found_none).hash(words);
        });
        let reaps = self.reaps.iter();
        let reaps = reaps.filter(|(_, reaping)| !matches!(reaping, Reaping::Over));
        words.all(reaps, |words, (of, reaping)| {
            words.hold(of);
            std::mem::discriminant(reaping).hash(words);
            if let Reaping::Sent(in_seat, command, _, behind) = reaping {
                (in_seat.is_some(), behind).hash(words);
                words.command(*command);
            }
        });
        words.all(&self.downgrades, |words, (hold, command)| {
            words.hold(hold);
            words.all(*command, Words::command);
        });
        self.add_counts(&mut words);
        self.places.add_to(&mut words);
        self.permits.add_to(&mut words);
        self.add_commands(&mut words);
        words.all(self.held_by, Words::hold_number);
        words.all(self.read_by.iter().copied(), Words::hold_number);
        (self.faults, self.polls, self.ticks, self.calls).hash(&mut words);
        (self.laters, self.asks, self.closes_window.is_some()).hash(&mut words);
        (self.now < self.left_until, self.now < self.rest_until).hash(&mut words);
        (
            self.strangers,
            self.deaths,
            self.forgets,
            self.shortfalls,
            self.closed,
        )
            .hash(&mut words);
        self.add_notes(&mut words);
        let waiting = self.found_busy.iter().filter(|ticket| ticket.is_waiting());
        waiting.count().hash(&mut words);
        words.fingerprint()
    }

    fn add_gate(&self, words: &mut Words) {
        self.add_seats(words);
        let gate = &self.gate;
        words.all(gate.queue.iter(), |words, ticket| words.ticket(ticket));
        (self.job, self.listening).hash(words);
        std::mem::discriminant(&self.asleep).hash(words);
        match self.asleep {
            Asleep::Command(command) => words.command(command),
            other => other.hash(words),
        }
        words.text(&gate.last_answer);
        (gate.failing_since.is_some(), gate.try_at_once).hash(words);
        gate.succession.passes_on(self.now).hash(words);
        gate.succession.future(self.now).hash(words);
        words.text(&gate.wakeups);
    }

    /// Adds the commands that may still run or matter, or that the words added before refer to.
    fn add_commands(&self, words: &mut Words) {
        let awaited = words.commands();
        let commands = self.commands.iter().enumerate().filter(|(i, c)| {
            let open = c.executed.is_none() && !c.refused;
            let unsure = c.what == What::Releases && c.ended && c.hold.outcome().is_ok();
            open || unsure || awaited.contains(i)
        });
        words.all(commands, |words, (i, c)| {
            words.command(i);
            words.hold_number(field(&c.hold));
            words.all(c.ahead, Words::hold_number);
            words.all(&c.others, |words, hold| words.hold(hold));
            (
                c.what,
                c.lane,
                c.refused,
                c.reply_lost,
                c.unacknowledged,
                c.ended,
            )
                .hash(words);
            words.all(c.executed, |words, reply| words.text(&reply));
        });
    }

    fn add_notes(&self, words: &mut Words) {
        let noted = self.gate.writer_waits.as_ref().map(|note| note.withdrawn);
        noted.hash(words);
        words.all(&self.removed_notes, |words, (command, _)| {
            words.command(*command);
        });
        (self.note, self.stranger_note, self.stranger_notes).hash(words);
        (self.now >= self.note_at, self.shut).hash(words);
        (self.faulted && self.leaves_notes).hash(words);
    }

    fn add_seats(&self, words: &mut Words) {
        words.all(self.not_collecting(), |words, grant| {
            words.ticket(&grant.ticket);
            grant.called.hash(words);
        });
        self.add_seat(&self.gate.seat, words);
        words.all(self.gate.own_seats.values(), |words, seat| {
            self.add_seat(seat, words);
        });
        (self.gate.busy_for, self.gate.together).hash(words);
    }

    fn add_seat(&self, seat: &Seat<usize>, words: &mut Words) {
        std::mem::discriminant(seat).hash(words);
        match seat {
            Seat::Free => {}
            Seat::Trying(attempt) => {
                words.attempt(attempt);
                (attempt.early, attempt.overdue).hash(words);
            }
            Seat::Shared { shared, join } => {
                words.hold(shared.hold());
                (shared.is_exclusive(), shared.is_open(self.now)).hash(words);
                words.all(shared.reads(), |words, share| words.hold(share));
                words.all(join, Words::attempt);
            }
            Seat::Held { hold } | Seat::HandingOver { hold } => words.hold(hold),
            Seat::Releasing {
                hold,
                command,
                next,
                ..
            } => {
                words.hold(hold);
                words.all(*command, Words::command);
                words.all(next, Words::attempt);
            }
        }
    }

    fn add_caller(caller: &Caller, words: &mut Words) {
        std::mem::discriminant(&caller.at).hash(words);
        match &caller.at {
            At::Start | At::Looked | At::Detached | At::Gone => {}
            At::Waiting(ticket, first) => {
                words.ticket(ticket);
                words.all(*first, Words::command);
                words.all(ticket.unsettled(), |words, hold| words.hold(&hold));
                let breaks = ticket.breaks.load(std::sync::atomic::Ordering::Relaxed);
                (breaks, ticket.is_waiting(), ticket.is_called()).hash(words);
            }
            At::Entering(entered, count, command) => {
                words.hold(&entered.hold);
                count.hash(words);
                words.command(*command);
            }
            At::Leaving(hold, count, command) => {
                words.hold(hold);
                count.hash(words);
                words.all(*command, Words::command);
            }
            At::Holding(entered) => words.hold(&entered.hold),
            At::Unlocking(hold, command, _) => {
                words.hold(hold);
                words.command(*command);
            }
            At::Watching(hold) => words.hold(hold),
        }
    }
}
