//! Which holds are asked for when, and which of them together: state over time as a value.
//!
//! 1. A hold is in one batch at a time. If it is wanted again meanwhile, it is asked for once more after the answer.
//! 2. The hold that ends first goes first, and never in one batch with holds that may wait longer for the answer.
//! 3. At most [`IN_FLIGHT`] batches are in flight, so that no answer waits behind all others.
//! 4. After a whole batch failed or was refused, batches have two holds, and come ever more rarely: they find out when
//!    the outage is over. One hold is the first to end. The other is a random one, because the first may fail for a
//!    reason of its own.
//! 5. A hold that was refused alone, or that was not answered while another of its batch was, is asked for again after a
//!    quarter of the time that it has left. It does not delay the others.
//! 6. A hold that has ended is dropped when its turn comes.
//! 7. The wait for an answer is half of the time that the first hold of the batch has left, but not less than the
//!    shortest time-out. With a quarter of a lease at most three tries for a hold are in flight.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::{Backoff, Delays};
use crate::clock::{Clock, Moment};
use crate::engine::hold::Hold;

/// How many holds a batch has: about as many commands as the queue of a connection takes at once.
pub(crate) const BATCH: usize = 1000;

/// How many batches are in flight at a time.
const IN_FLIGHT: usize = 4;

/// The shortest wait before a refused hold is asked for again.
const LEAST: Duration = Duration::from_millis(10);

/// The least that the pause after a failure is cut to for a hold that ends soon.
const HURRY: Duration = Duration::from_millis(50);

/// Holds that are asked for together.
pub(super) struct RenewalBatch {
    pub(super) holds: Vec<Arc<Hold>>,
    /// How long to wait for the answers before another try: short enough to leave time for it.
    pub(super) timeout: Duration,
}

/// What asking for one hold came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RenewalOutcome {
    /// Redis has the hold, or does not.
    Answered,
    /// Redis refused this hold, or did not answer within a time that was too short to blame the server.
    Refused,
    /// The call failed, as others may.
    Failed,
}

#[derive(Debug, Clone, Copy)]
enum RenewalState {
    /// In `wanted` or in `later`.
    Queued,
    /// In a batch, and with `again` to be asked for once more.
    Asked { again: bool },
}

/// The holds to ask for, by their numbers; `wanted` and `later` are sorted by a moment first.
pub(super) struct RenewalQueue {
    backoff: Backoff,
    timeouts: RangeInclusive<Duration>,
    clock: Clock,
    states: HashMap<u64, RenewalState>,
    /// By when the hold ends.
    wanted: BTreeMap<(Moment, u64), Arc<Hold>>,
    /// By the moment before which the hold is not asked for.
    later: BTreeMap<(Moment, u64), Arc<Hold>>,
    refused: HashSet<u64>,
    /// While whole batches fail: the pauses between them, and when the next may be sent.
    outage: Option<(Delays, Moment)>,
    in_flight: usize,
}

impl RenewalQueue {
    /// `timeouts`: the shortest and the longest wait for an answer.
    pub(super) fn new(backoff: Backoff, timeouts: RangeInclusive<Duration>, clock: Clock) -> Self {
        Self {
            backoff,
            timeouts,
            clock,
            states: HashMap::new(),
            wanted: BTreeMap::new(),
            later: BTreeMap::new(),
            refused: HashSet::new(),
            outage: None,
            in_flight: 0,
        }
    }

    /// Queues a hold. If it is in a batch by now, it is asked for once more only with `again`.
    pub(super) fn want(&mut self, hold: &Arc<Hold>, again: bool) {
        match self.states.get_mut(&hold.number) {
            None => self.queue(Arc::clone(hold)),
            Some(RenewalState::Asked { again: once_more }) => *once_more |= again,
            Some(RenewalState::Queued) => {}
        }
    }

    /// Takes the next batch, if one may be sent now.
    pub(super) fn take(&mut self, now: Moment) -> Option<RenewalBatch> {
        let batch = self.next_batch(now);
        if self.in_flight == 0 && self.states.is_empty() {
            // No hold is left that cannot be renewed.
            self.outage = None;
        }
        batch
    }

    fn next_batch(&mut self, now: Moment) -> Option<RenewalBatch> {
        if !self.may_ask(now) {
            return None;
        }
        self.queue_due(now);
        let first = self.next_end()?;
        let timeout = self.timeout(first, now);
        let most = if self.is_failing() { 1 } else { BATCH };
        let mut holds = Vec::new();
        while holds.len() < most
            && let Some(end) = self.next_end()
            && self.timeout(end, now) <= timeout * 2
            && let Some((_, hold)) = self.wanted.pop_first()
        {
            holds.push(hold);
        }
        if self.is_failing()
            && let Some((end, any)) = self.any()
            && self.timeout(end, now) <= timeout * 2
            && let Some(hold) = self.wanted.remove(&(end, any))
        {
            holds.push(hold);
        }
        for hold in &holds {
            let asked = RenewalState::Asked { again: false };
            self.states.insert(hold.number, asked);
        }
        self.in_flight += 1;
        Some(RenewalBatch { holds, timeout })
    }

    /// A random wanted hold, unless the end that it is sorted by is out of date.
    fn any(&self) -> Option<(Moment, u64)> {
        let (first, last) = (self.wanted.keys().next()?, self.wanted.keys().next_back()?);
        let from = fastrand::u64(first.0.as_nanos()..=last.0.as_nanos());
        let mut later = self.wanted.range((Moment::from_nanos(from), 0)..);
        let (&(end, number), hold) = later.next()?;
        (self.end_of(hold) == Some(end)).then_some((end, number))
    }

    /// Records the outcomes of a batch.
    pub(super) fn answered(
        &mut self,
        holds: impl Iterator<Item = (Arc<Hold>, RenewalOutcome)>,
        now: Moment,
    ) {
        self.in_flight -= 1;
        let (mut answered, mut failed, mut refused) = (false, Vec::new(), Vec::new());
        for (hold, outcome) in holds {
            let state = self.states.remove(&hold.number);
            match outcome {
                RenewalOutcome::Answered => {
                    answered = true;
                    self.refused.remove(&hold.number);
                    if matches!(state, Some(RenewalState::Asked { again: true })) {
                        self.queue(hold);
                    }
                }
                RenewalOutcome::Refused => refused.push(hold),
                RenewalOutcome::Failed => failed.push(hold),
            }
        }
        // A single refusal says nothing about other holds, unless calls fail anyway.
        let is_single = refused.len() == 1 && failed.is_empty() && !self.is_failing();
        let holds = failed.into_iter().chain(refused);
        if answered || is_single {
            self.outage = None;
            for hold in holds {
                self.postpone(hold, now);
            }
        } else {
            for hold in holds {
                self.queue(hold);
            }
            self.fail(now);
        }
    }

    /// A batch that had no answer in time is answered now, so calls do not fail.
    pub(super) fn answered_late(&mut self) {
        self.outage = None;
    }

    /// When the next batch may be sent, if nothing changes before.
    pub(super) fn next(&self, now: Moment) -> Moment {
        let first = match (self.wanted.is_empty(), self.later.keys().next()) {
            (false, _) => now,
            (true, Some((moment, _))) => *moment,
            (true, None) => return Moment::NEVER,
        };
        match &self.outage {
            // The answer to a batch changes this.
            Some(_) if self.in_flight > 0 => Moment::NEVER,
            Some((_, next)) => first.max(*next),
            None if self.in_flight >= IN_FLIGHT => Moment::NEVER,
            None => first,
        }
    }

    /// Whether calls fail, or a hold was refused.
    pub(super) fn has_trouble(&self) -> bool {
        self.outage.is_some() || !self.refused.is_empty()
    }

    /// Whether there is no hold to ask for, and no trouble to remember.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.states.is_empty() && !self.has_trouble()
    }

    /// Whether whole batches fail.
    pub(super) fn is_failing(&self) -> bool {
        self.outage.is_some()
    }

    fn may_ask(&self, now: Moment) -> bool {
        match &self.outage {
            Some((_, next)) => self.in_flight == 0 && now >= *next,
            None => self.in_flight < IN_FLIGHT,
        }
    }

    /// How long to wait for the answer for a hold that ends at `end`.
    fn timeout(&self, end: Moment, now: Moment) -> Duration {
        let (least, most) = (*self.timeouts.start(), *self.timeouts.end());
        (now.until(end) / 2).max(least).min(most)
    }

    /// When a hold ends; `None` once it has ended.
    fn end_of(&self, hold: &Hold) -> Option<Moment> {
        hold.asked_until(|| self.clock.now())
    }

    fn queue(&mut self, hold: Arc<Hold>) {
        let Some(end) = self.end_of(&hold) else {
            self.refused.remove(&hold.number);
            return;
        };
        self.states.insert(hold.number, RenewalState::Queued);
        self.wanted.insert((end, hold.number), hold);
    }

    fn postpone(&mut self, hold: Arc<Hold>, now: Moment) {
        let Some(end) = self.end_of(&hold) else {
            self.refused.remove(&hold.number);
            return;
        };
        self.refused.insert(hold.number);
        self.states.insert(hold.number, RenewalState::Queued);
        let longest = self.backoff.cap_delay().max(LEAST);
        let delay = (now.until(end) / 4).clamp(LEAST, longest);
        self.later.insert((now + delay, hold.number), hold);
    }

    fn queue_due(&mut self, now: Moment) {
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now
        {
            let hold = entry.remove();
            self.states.remove(&hold.number);
            self.queue(hold);
        }
    }

    /// When the first wanted hold ends. Sorts holds again whose end has changed.
    fn next_end(&mut self) -> Option<Moment> {
        loop {
            let (&(known, number), hold) = self.wanted.first_key_value()?;
            if self.end_of(hold) == Some(known) {
                return Some(known);
            }
            let hold = self.wanted.remove(&(known, number))?;
            self.states.remove(&number);
            self.queue(hold);
        }
    }

    fn fail(&mut self, now: Moment) {
        let backoff = self.backoff;
        let begin = || (backoff.delays(fastrand::u64(..)), now);
        let (delays, next) = self.outage.get_or_insert_with(begin);
        let delay = delays.step();
        // The hold that ends first must be asked for before it ends.
        let left = self.wanted.keys().next().map(|(end, _)| now.until(*end));
        let delay = left.map_or(delay, |left| delay.min((left / 4).max(HURRY)));
        *next = now + delay.max(LEAST);
    }
}

#[cfg(test)]
#[path = "renewal_queue_tests.rs"]
mod tests;
