//! Which holds Redis is to be asked for, and which of them together: state over time as a value.
//!
//! 1. A hold is in one batch at a time. Who wants it asked meanwhile has it asked once more after the answer.
//! 2. What is nearest its end goes first, and never with what has time to wait for an answer.
//! 3. At most [`OUT`] are out, so that an answer does not wait for all that was asked before it.
//! 4. When a whole batch fails, two holds at a time are asked for, ever more rarely: they find out for all when that is
//!    over. One is the nearest to its end, the other any one: the first may fail for itself.
//! 5. A hold that was refused for itself, or whose call failed while another of its batch was answered, is asked for again
//!    after a quarter of what it has left. It does not delay the others.
//! 6. A hold that has ended is forgotten when its turn comes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use crate::backoff::{Backoff, Delays};
use crate::clock::Moment;

/// How many holds are asked for together: about as many as the queue of a connection takes at once.
pub(super) const BATCH: usize = 1000;

/// How many batches are out at a time.
const OUT: usize = 4;

/// The shortest wait for an answer, and until a hold that was refused is asked for again.
const LEAST: Duration = Duration::from_millis(10);

/// The shortest that the wait after a failed call is cut to, for what is near its end.
const HURRY: Duration = Duration::from_millis(50);

/// By when a hold ends, and its number.
type Key = (Moment, u64);

/// What is asked for together.
#[derive(Debug)]
pub(super) struct Batch<T> {
    pub(super) holds: Vec<(u64, T)>,
    /// How long its answer is waited for: so that another can be tried within what is left.
    pub(super) patience: Duration,
}

/// What came of asking for one hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is known whether the hold is there.
    Known,
    /// Refused for itself, or not answered within a patience that was too short to tell.
    Refused,
    /// Its call failed, maybe as all would.
    Failed,
}

#[derive(Debug, Clone, Copy)]
enum Mark {
    /// In `wanted` or in `later`.
    Waits,
    /// In a batch.
    Asked { again: bool },
}

type End<T> = Box<dyn Fn(&T) -> Option<Moment> + Send>;

/// Calls fail.
struct Failing {
    delays: Delays,
    /// When the next one may be made.
    next: Moment,
}

/// The holds to ask for. `end` tells of a hold when it ends, and nothing once it has.
pub(super) struct Asking<T> {
    backoff: Backoff,
    patience: Duration,
    end: End<T>,
    marks: HashMap<u64, Mark>,
    wanted: BTreeMap<Key, T>,
    /// Not before that moment.
    later: BTreeMap<Key, T>,
    refused: HashSet<u64>,
    failing: Option<Failing>,
    out: usize,
}

impl<T> Asking<T> {
    /// `patience`: the longest wait for an answer.
    pub(super) fn new(
        backoff: Backoff,
        patience: Duration,
        end: impl Fn(&T) -> Option<Moment> + Send + 'static,
    ) -> Self {
        Self {
            backoff,
            patience,
            end: Box::new(end),
            marks: HashMap::new(),
            wanted: BTreeMap::new(),
            later: BTreeMap::new(),
            refused: HashSet::new(),
            failing: None,
            out: 0,
        }
    }

    /// Has a hold asked for; with `again`, also when it is being asked for just now.
    pub(super) fn want(&mut self, number: u64, hold: T, again: bool) {
        match self.marks.get_mut(&number) {
            None => self.queue(number, hold),
            Some(Mark::Asked { again: once_more }) => *once_more |= again,
            Some(Mark::Waits) => {}
        }
    }

    /// The next batch, if one may be asked for now.
    pub(super) fn take(&mut self, now: Moment) -> Option<Batch<T>> {
        if !self.may_ask(now) {
            return None;
        }
        self.bring_up(now);
        let first = self.next_end()?;
        let patience = self.patience(first, now);
        let most = if self.is_failing() { 1 } else { BATCH };
        let mut holds = Vec::new();
        while holds.len() < most
            && let Some(end) = self.next_end()
            && self.patience(end, now) <= patience * 2
            && let Some(((_, number), hold)) = self.wanted.pop_first()
        {
            holds.push((number, hold));
        }
        if self.is_failing()
            && let Some((end, any)) = self.any()
            && self.patience(end, now) <= patience * 2
            && let Some(hold) = self.wanted.remove(&(end, any))
        {
            holds.push((any, hold));
        }
        for (number, _) in &holds {
            self.marks.insert(*number, Mark::Asked { again: false });
        }
        self.out += 1;
        Some(Batch { holds, patience })
    }

    /// Any hold that is wanted.
    fn any(&self) -> Option<Key> {
        let (first, last) = (self.wanted.keys().next()?, self.wanted.keys().next_back()?);
        let from = fastrand::u64(first.0.as_nanos()..=last.0.as_nanos());
        let mut later = self.wanted.range((Moment::from_nanos(from), 0)..);
        let (&(end, number), hold) = later.next()?;
        ((self.end)(hold) == Some(end)).then_some((end, number))
    }

    /// A batch of [`take`](Self::take) was answered, with this for each of its holds.
    pub(super) fn answered(&mut self, holds: impl Iterator<Item = (u64, T, Outcome)>, now: Moment) {
        self.out -= 1;
        let mut answered = false;
        let mut failed = Vec::new();
        for (number, hold, outcome) in holds {
            let mark = self.marks.remove(&number);
            answered |= outcome == Outcome::Known;
            if outcome == Outcome::Known {
                self.refused.remove(&number);
            }
            match outcome {
                Outcome::Known if matches!(mark, Some(Mark::Asked { again: true })) => {
                    self.queue(number, hold);
                }
                Outcome::Known => {}
                Outcome::Refused => self.postpone(number, hold, now),
                Outcome::Failed => failed.push((number, hold)),
            }
        }
        if failed.is_empty() || answered {
            self.failing = None;
            for (number, hold) in failed {
                self.postpone(number, hold, now);
            }
        } else {
            for (number, hold) in failed {
                self.queue(number, hold);
            }
            self.fail(now);
        }
    }

    /// When there is a batch to ask for, if nothing changes before.
    pub(super) fn next(&self, now: Moment) -> Moment {
        let first = match (self.wanted.is_empty(), self.later.keys().next()) {
            (false, _) => now,
            (true, Some((moment, _))) => *moment,
            (true, None) => return Moment::NEVER,
        };
        match &self.failing {
            // Its end is a change.
            Some(_) if self.out > 0 => Moment::NEVER,
            Some(failing) => first.max(failing.next),
            None if self.out >= OUT => Moment::NEVER,
            None => first,
        }
    }

    /// Whether something is not answered as it should be.
    pub(super) fn is_troubled(&self) -> bool {
        self.failing.is_some() || !self.refused.is_empty()
    }

    /// Whether there is nothing to ask for, and no trouble to remember.
    pub(super) fn is_idle(&self) -> bool {
        self.out == 0 && self.marks.is_empty() && !self.is_troubled()
    }

    /// Whether calls fail at the moment.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    fn may_ask(&self, now: Moment) -> bool {
        match &self.failing {
            Some(failing) => self.out == 0 && now >= failing.next,
            None => self.out < OUT,
        }
    }

    /// How long an answer may take for a hold that ends at `end`.
    fn patience(&self, end: Moment, now: Moment) -> Duration {
        self.patience.min(now.until(end) / 3).max(LEAST)
    }

    fn queue(&mut self, number: u64, hold: T) {
        let Some(end) = (self.end)(&hold) else {
            self.refused.remove(&number);
            return;
        };
        self.marks.insert(number, Mark::Waits);
        self.wanted.insert((end, number), hold);
    }

    fn postpone(&mut self, number: u64, hold: T, now: Moment) {
        let Some(end) = (self.end)(&hold) else {
            self.refused.remove(&number);
            return;
        };
        self.refused.insert(number);
        self.marks.insert(number, Mark::Waits);
        let longest = self.backoff.cap_delay().max(LEAST);
        let delay = (now.until(end) / 4).clamp(LEAST, longest);
        self.later.insert((now + delay, number), hold);
    }

    fn bring_up(&mut self, now: Moment) {
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now
        {
            let ((_, number), hold) = entry.remove_entry();
            self.marks.remove(&number);
            self.queue(number, hold);
        }
    }

    /// When the first that is wanted ends, as far as is known by now.
    fn next_end(&mut self) -> Option<Moment> {
        loop {
            let (&(known, number), hold) = self.wanted.first_key_value()?;
            if (self.end)(hold) == Some(known) {
                return Some(known);
            }
            let hold = self.wanted.remove(&(known, number))?;
            self.marks.remove(&number);
            self.queue(number, hold);
        }
    }

    fn fail(&mut self, now: Moment) {
        let backoff = self.backoff;
        let failing = self.failing.get_or_insert_with(|| Failing {
            delays: backoff.delays(fastrand::u64(..)),
            next: now,
        });
        let delay = failing.delays.step();
        // The first to end must have its chance.
        let left = self.wanted.keys().next().map(|(end, _)| now.until(*end));
        let delay = left.map_or(delay, |left| delay.min((left / 4).max(HURRY)));
        failing.next = now + delay.max(LEAST);
    }
}

#[cfg(test)]
#[path = "asking_tests.rs"]
mod tests;
