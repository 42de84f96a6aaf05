//! Which commands of a lane are on its connection, and which wait in a queue.
//!
//! 1. At most [`MOST`] commands are on a connection and unanswered. redis-rs has room for 1 024, and a command that waits
//!    for that room may run at any time. A command that waits here was certainly not sent.
//! 2. A new connection has [`FIRST`] places, and one more for each answer. If it never answers, few commands have an
//!    unknown outcome. An answer that took a quarter of a command time-out longer than the fastest one takes a place away,
//!    and from then on the number grows by one for all of them. A server that others keep busy would not answer all that is
//!    on the connection in time; it would get that again, and have ever more to do. Where so few places as at first are
//!    too many, the server is far away by now: that answer counts as the fastest.
//! 3. Queued commands are submitted by [`Turn`], and in the order of arrival within a turn.
//! 4. A place is given back by the answer, whether or not anybody still waits for it; while places are not scarce, only
//!    when somebody polls the command.
//! 5. One thread at a time submits queued commands, and each counts as queued until it was polled. So no command
//!    overtakes an earlier one of its turn.
//! 6. The number of commands that are not about holds may be limited. Where they would wait for the acknowledgement of
//!    others, they wait here instead, and are not sent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use scopeguard::defer;

use crate::backend::failure::Failure;
use crate::clock::nanos;
use crate::script::Turn;

/// How many commands may be on a connection: fewer than redis-rs queues, so that a ping has room beside them.
const MOST: u16 = 768;

/// How many on a new one.
const FIRST: u16 = 16;

/// Where a command waits: its turn, and its number in the order of arrival.
pub(super) type QueueKey = (Turn, u64);

/// A command that may wait for a place.
pub(super) trait Queueable: Send + Sync {
    /// Hands it over, if it still waits. Returns whether it took the place. Polls it, so no lock may be held.
    fn begin(self: Arc<Self>, place: Place) -> bool;

    /// Polls it, if it was submitted; no lock may be held.
    fn go_on(self: Arc<Self>);

    /// Ends it with `failure`, if it still waits.
    fn fail_unsent(&self, failure: &Failure);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    connection: u32,
}

/// The places of a lane.
pub(super) struct Window {
    places: AtomicU64,
    /// How long the fastest answer on this connection took, in nanoseconds.
    fastest: AtomicU64,
    /// How much longer than the fastest one a slow answer takes, in nanoseconds.
    slower: u64,
    /// Whether each answer adds a place.
    grows_fast: AtomicBool,
    /// Whether its connection is in doubt, so that nobody gets a place.
    paused: AtomicBool,
    /// How many commands that are not about holds may still get a place (rule 6); the maximum without a limit.
    others: AtomicUsize,
    /// How many commands wait.
    count: AtomicUsize,
    waiting: Mutex<WaitingCommands>,
    admitting: AtomicBool,
    /// Commands that can go on, until a task polls them.
    woken: Mutex<Vec<Weak<dyn Queueable>>>,
}

#[derive(Default)]
struct WaitingCommands {
    /// Each with whether it is patient: it goes on waiting when an attempt to connect fails.
    commands: BTreeMap<QueueKey, (Weak<dyn Queueable>, bool)>,
    arrived: u64,
}

impl WaitingCommands {
    fn starts_with_hold(&self) -> bool {
        let first = self.commands.first_key_value();
        first.is_some_and(|((turn, _), _)| *turn == Turn::Hold)
    }
}

/// The present connection, how many places it has, and how many of them are free: one atomic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places {
    connection: u32,
    all: u16,
    free: u16,
}

impl Places {
    const NONE: Self = Self {
        connection: 0,
        all: 0,
        free: 0,
    };

    fn packed(self) -> u64 {
        (u64::from(self.connection) << 32) | (u64::from(self.all) << 16) | u64::from(self.free)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "each part has its own bits"
    )]
    fn of(packed: u64) -> Self {
        Self {
            connection: (packed >> 32) as u32,
            all: (packed >> 16) as u16,
            free: packed as u16,
        }
    }
}

impl Window {
    pub(super) fn new(command_timeout: Duration) -> Self {
        Self {
            places: AtomicU64::new(Places::NONE.packed()),
            fastest: AtomicU64::new(u64::MAX),
            slower: nanos(command_timeout / 4),
            grows_fast: AtomicBool::new(true),
            paused: AtomicBool::new(false),
            others: AtomicUsize::new(usize::MAX),
            count: AtomicUsize::new(0),
            waiting: Mutex::default(),
            admitting: AtomicBool::new(false),
            woken: Mutex::default(),
        }
    }

    /// A connection is there, with this number.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a place of a connection four thousand million earlier is long given back"
    )]
    pub(super) fn open(&self, generation: u64) {
        let places = Places {
            connection: generation as u32,
            all: FIRST,
            free: FIRST,
        };
        self.begin_with(u64::MAX);
        self.places.store(places.packed(), Ordering::SeqCst);
        self.go_on();
    }

    /// Gives nobody a place until it [goes on](Self::go_on). Returns false if it was paused already.
    pub(super) fn pause(&self) -> bool {
        !self.paused.swap(true, Ordering::SeqCst)
    }

    /// The caller must [admit](Self::admit) afterwards.
    pub(super) fn go_on(&self) {
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Gives places to so many more commands that are not about holds. The caller must [admit](Self::admit) afterwards.
    pub(super) fn let_in(&self, others: usize) {
        self.others.store(others, Ordering::SeqCst);
    }

    /// Counts a command that gets a place. False if it may not get one.
    fn counts(&self, turn: Turn) -> bool {
        let less = |others: usize| match others {
            usize::MAX => Some(others),
            limited => limited.checked_sub(1),
        };
        let others = &self.others;
        turn == Turn::Hold
            || others
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok()
    }

    /// A command that was counted needs no place.
    fn uncount(&self, turn: Turn) {
        let more = |others: usize| (others < usize::MAX - 1).then(|| others + 1);
        if turn != Turn::Hold {
            // It fails where there is no limit.
            let _ = self
                .others
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        }
    }

    /// There is no connection.
    pub(super) fn close(&self) {
        self.places.store(Places::NONE.packed(), Ordering::SeqCst);
    }

    fn change(&self, change: impl Fn(Places) -> Option<Places>) -> Option<Places> {
        let change = |packed| change(Places::of(packed)).map(Places::packed);
        // Sequentially consistent, as `count`: a thread that gives a place back sees a command that was queued just before,
        // or the thread that queued it sees the place.
        let before = self
            .places
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        before.ok().map(Places::of)
    }

    /// Takes a free place, unless commands are queued.
    pub(super) fn enter(&self, turn: Turn) -> Option<Place> {
        if self.is_awaited() || self.is_paused() {
            return None;
        }
        let place = self.take()?;
        if !self.counts(turn) {
            self.leave(place, None);
            return None;
        }
        Some(place)
    }

    fn take(&self) -> Option<Place> {
        let taken = self.change(|places| {
            let free = places.free.checked_sub(1)?;
            Some(Places { free, ..places })
        });
        taken.map(|Places { connection, .. }| Place { connection })
    }

    /// Gives a place back. `took`: how long the answer took, if there was one. The caller must [admit](Self::admit)
    /// afterwards.
    pub(super) fn leave(&self, place: Place, took: Option<Duration>) {
        let now = Places::of(self.places.load(Ordering::SeqCst));
        if now.connection != place.connection {
            return;
        }
        let is_slow = took.map(|took| self.is_slow(took, now.all));
        let grows = is_slow == Some(false)
            && (self.grows_fast.load(Ordering::Relaxed) || fastrand::u16(..now.all) == 0);
        self.change(|places| {
            // It may have been given up just now.
            if places.connection != place.connection {
                return None;
            }
            let all = match is_slow {
                Some(false) if grows => (places.all + 1).min(MOST),
                Some(true) => (places.all - 1).max(FIRST),
                _ => places.all,
            };
            let free = places.free + 1 + all - places.all;
            Some(Places {
                all,
                free,
                ..places
            })
        });
    }

    /// Whether an answer took too long on a connection with so many places.
    fn is_slow(&self, took: Duration, all: u16) -> bool {
        // Relaxed: numbers that stand for themselves, and a few answers more or less count little.
        let took = nanos(took);
        let fastest = self.fastest.fetch_min(took, Ordering::Relaxed).min(took);
        if took < fastest.saturating_add(self.slower) {
            return false;
        }
        if all == FIRST {
            self.begin_with(took);
        } else {
            self.grows_fast.store(false, Ordering::Relaxed);
        }
        true
    }

    fn begin_with(&self, fastest: u64) {
        self.fastest.store(fastest, Ordering::Relaxed);
        self.grows_fast.store(true, Ordering::Relaxed);
    }

    /// Whether answered commands that nobody polls must give their places back. Up to half of [`FIRST`], the fewest that
    /// there can be, may keep theirs.
    pub(super) fn is_scarce(&self) -> bool {
        let places = Places::of(self.places.load(Ordering::SeqCst));
        places.all - places.free > FIRST / 2
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Queues a command. The caller must [admit](Self::admit) afterwards.
    pub(super) fn wait(&self, turn: Turn, patient: bool, command: Weak<dyn Queueable>) -> QueueKey {
        let mut waiting = self.waiting.lock();
        let place = (turn, waiting.arrived);
        waiting.arrived += 1;
        waiting.commands.insert(place, (command, patient));
        self.count.fetch_add(1, Ordering::SeqCst);
        place
    }

    /// Takes out a command that does not wait any more.
    pub(super) fn forget(&self, key: QueueKey) {
        let forgotten = self.waiting.lock().commands.remove(&key);
        if forgotten.is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Whether the first queued command gets a place.
    fn has_room(&self) -> bool {
        let free = Places::of(self.places.load(Ordering::SeqCst)).free;
        free > 0
            && !self.is_paused()
            && (self.others.load(Ordering::SeqCst) > 0 || self.waiting.lock().starts_with_hold())
    }

    /// Hands over queued commands while there are free places. Polls them, so no lock may be held.
    pub(super) fn admit(&self) {
        while self.is_awaited() && self.has_room() {
            if self.admitting.swap(true, Ordering::SeqCst) {
                // The thread that admits looks again after it has reset the flag.
                return;
            }
            // Also if a waker that is called meanwhile panics.
            defer! { self.admitting.store(false, Ordering::SeqCst) }
            self.admit_alone();
        }
    }

    fn admit_alone(&self) {
        while self.is_awaited() && self.has_room() {
            let Some(place) = self.take() else {
                return;
            };
            let Some((turn, first)) = self.pop() else {
                return self.leave(place, None);
            };
            // Also if a waker panics, as above.
            defer! { self.count.fetch_sub(1, Ordering::SeqCst); }
            let command = first.upgrade();
            if !command.is_some_and(|command| command.begin(place)) {
                self.uncount(turn);
                self.leave(place, None);
            }
        }
    }

    /// Takes out and counts the first queued command; none if it may not get a place, or was forgotten at this moment. It
    /// counts before it begins: as soon as it has begun, more may be let in.
    fn pop(&self) -> Option<(Turn, Weak<dyn Queueable>)> {
        let mut waiting = self.waiting.lock();
        let first = waiting.commands.first_entry()?;
        let (turn, _) = *first.key();
        if !self.counts(turn) {
            return None;
        }
        let (command, _) = first.remove();
        Some((turn, command))
    }

    /// Notes that a command can go on. Returns whether it is the first one, so that the caller must start a task that
    /// [polls](Self::poll_woken) them.
    pub(super) fn note_woken(&self, command: Weak<dyn Queueable>) -> bool {
        let mut woken = self.woken.lock();
        woken.push(command);
        woken.len() == 1
    }

    /// Polls what can go on, and submits queued commands. No lock may be held.
    pub(super) fn poll_woken(&self) {
        let woken = std::mem::take(&mut *self.woken.lock());
        for command in woken.iter().filter_map(Weak::upgrade) {
            command.go_on();
        }
        self.admit();
    }

    /// Takes out all queued commands if `patient`, else all but the patient ones.
    pub(super) fn take_out(&self, patient: bool) -> Vec<Weak<dyn Queueable>> {
        let mut waiting = self.waiting.lock();
        let commands = &mut waiting.commands;
        let mut out = Vec::new();
        commands.retain(|_, (command, is_patient)| {
            let stays = *is_patient && !patient;
            if !stays {
                out.push(Weak::clone(command));
            }
            stays
        });
        self.count.fetch_sub(out.len(), Ordering::SeqCst);
        out
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
