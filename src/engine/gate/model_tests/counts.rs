//! Writes of the hold count, where a hold may be passed on: a hold with another count than one must not be.

use std::hash::Hash;

use super::fingerprint::Words;
use super::*;

/// A write of a count that the keeper sees to.
#[derive(Debug, Clone, Copy)]
pub(super) enum CountWrite {
    /// A caller sent it and went away: once it runs no more, the keeper writes what is true.
    Behind(usize, u32),
    Due,
    Sent(usize, u32),
}

impl World {
    /// As `enter::enter`, behind the new level.
    pub(super) fn enter(&mut self, i: usize, entered: HeldLevel, count: u32) -> At {
        if !entered.hold.kind.commands.rules().passes_on {
            return At::Holding(entered);
        }
        entered.hold.with(HoldState::write_begins);
        let command = self.send(&entered.hold, What::Counts(count), i);
        At::Entering(entered, count, command)
    }

    /// The caller has an answer, or will get none.
    pub(super) fn entered(&mut self, entered: HeldLevel, count: u32, command: usize) -> At {
        if self.counted(&entered.hold, command, count) {
            return At::Holding(entered);
        }
        self.give_back(&entered, None, usize::MAX);
        At::Gone
    }

    /// A level was given back, and `count` are left: as `release::write`, or as `release::leave_to_keeper`.
    pub(super) fn left(&mut self, hold: &Arc<Hold>, count: u32, sends: bool) -> At {
        if !hold.kind.commands.rules().passes_on {
            return At::Gone;
        }
        if sends {
            return At::Leaving(Arc::clone(hold), count, None);
        }
        self.write_ends(hold, count, false);
        At::Gone
    }

    pub(super) fn write_count(&mut self, i: usize) {
        if let At::Leaving(hold, count, None) = &self.callers[i].at {
            let (hold, count) = (Arc::clone(hold), *count);
            let command = self.send(&hold, What::Counts(count), i);
            self.callers[i].at = At::Leaving(hold, count, Some(command));
        }
    }

    /// As the drop of `release::Writing`, with a command that was not acknowledged.
    pub(super) fn write_behind(&mut self, hold: &Arc<Hold>, count: u32, command: usize) {
        let behind = CountWrite::Behind(command, count);
        self.counts.push((Arc::clone(hold), behind));
    }

    fn write_ends(&mut self, hold: &Arc<Hold>, count: u32, acknowledged: bool) {
        if hold.with(|state| state.write_ends(Some(count), acknowledged)) {
            self.counts.push((Arc::clone(hold), CountWrite::Due));
        }
    }

    /// Returns whether Redis wrote it.
    pub(super) fn counted(&mut self, hold: &Arc<Hold>, command: usize, count: u32) -> bool {
        let reply = self.reply_of(command);
        let written = reply == ReplyState::Done(Reply::Done(0));
        self.write_ends(hold, count, written);
        if reply == ReplyState::Done(Reply::Gone) {
            self.lose(hold);
        }
        written
    }

    /// As `reaper::write_count`.
    pub(super) fn count_on(&mut self, i: usize) {
        let (hold, write) = self.counts.remove(i);
        match write {
            CountWrite::Behind(_, count) => self.write_ends(&hold, count, false),
            CountWrite::Due => {
                if let Some(count) = hold.with(HoldState::begins_needed_count) {
                    let command = self.send(&hold, What::Counts(count), KEEPER);
                    let sent = CountWrite::Sent(command, count);
                    self.counts.push((hold, sent));
                }
            }
            CountWrite::Sent(command, count) => {
                self.counted(&hold, command, count);
                self.counts.push((hold, CountWrite::Due));
            }
        }
    }

    pub(super) fn choices_of_counts(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (i, (_, write)) in self.counts.iter().enumerate() {
            let waits = match write {
                CountWrite::Due => false,
                CountWrite::Behind(command, _) | CountWrite::Sent(command, _) => {
                    self.reply_of(*command) == ReplyState::InFlight
                }
            };
            if !waits {
                choices.push(Choice::Count(i));
            }
        }
        choices
    }

    /// `hold` was passed on: its count is one, and stays.
    pub(super) fn check_count(&self, hold: &Hold) {
        let open = |c: &&Command| c.executed.is_none() && !c.refused && c.hold.id == hold.id;
        let counts = |c: &&Command| matches!(c.what, What::Counts(_));
        let mut writes = self.commands.iter().filter(open).filter(counts);
        assert!(writes.next().is_none(), "a count that may still be written");
        assert_eq!(self.count, 1, "passed on with another count");
    }

    pub(super) fn add_counts(&self, words: &mut Words) {
        self.count.hash(words);
        words.all(&self.counts, |words, (hold, write)| {
            words.hold_number(field(hold));
            std::mem::discriminant(write).hash(words);
            if let CountWrite::Behind(command, count) | CountWrite::Sent(command, count) = write {
                words.command(*command);
                count.hash(words);
            }
        });
    }
}
