//! Taking several locks together.
//!
//! 1. It never waits while it holds: it waits for one lock, with nothing in hand, and then tries the rest once, side by
//!    side. So no two of these wait for each other, nor does one with somebody who takes the same locks in any order.
//! 2. When one of the rest is busy, or fails in a way that may pass, all are given back, and that one is waited for
//!    next, after a pause: going on round from there.
//! 3. Whoever begins waits for the lock with the least name, or the one with a queue: those who want the same locks
//!    queue at one, first come first served, and do not meet half-way.
//! 4. What it has lies in a [`Tray`] until the caller has all of it (I9).
//! 5. It returns within the longer of its wait and the command time-out (I6), whatever the single locks take.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::ready;
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};

use super::set::Set;
use super::tray::Tray;
use crate::backend::{Failure, Timers};
use crate::clock::{Clock, Moment};
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::LockGuard;
use crate::lock::composite::Level;
use crate::lock::pauses::{LONGEST, Pauses};

/// For how long the other tries of a round are still heard when one of them was refused: their answers are on the
/// way, and what they got is given back sooner by us.
const STILL_HEARD: Duration = Duration::from_millis(10);

/// How much later than it should an acquire may return.
const GRACE: Duration = Duration::from_millis(25);

/// How often a round may lose what it took before it had all: then the lease is too short for the way to Redis.
const MOST_LOSSES: u32 = 3;

/// Takes all of `set`; `None` when one stayed busy. Without a wait it waits for ever.
pub(super) async fn acquire(
    set: &Set,
    wait: Option<Duration>,
    lease: Lease,
) -> Result<Option<LockGuard>, Error> {
    let clock = Clock::system();
    let since = clock.now();
    let mut acquire = Acquire {
        set,
        lease,
        end: wait.map(|wait| since + wait),
        hard_end: wait.map(|wait| since + wait.max(set.command_timeout()) + GRACE),
        clock,
        pauses: Pauses::new(),
        losses: 0,
    };
    acquire.run().await
}

struct Acquire<'a> {
    set: &'a Set,
    lease: Lease,
    clock: Clock,
    /// When the wait is over.
    end: Option<Moment>,
    /// When it returns at the latest.
    hard_end: Option<Moment>,
    pauses: Pauses,
    losses: u32,
}

/// What a round came to that did not get all.
enum Refused {
    /// The lock at this place was busy.
    Busy(usize),
    /// It failed, and a later try may do better.
    Passing(usize, Error),
    /// What it had was taken away: nobody polled it for long.
    TakenAway,
    Failed(Error),
}

impl Acquire<'_> {
    async fn run(&mut self) -> Result<Option<LockGuard>, Error> {
        let mut place = self.set.first;
        let mut timers = None;
        loop {
            let Some(guard) = self.wait_for(place, timers.as_ref()).await? else {
                return Ok(None);
            };
            timers = guard.timers();
            let since = self.clock.now();
            let last = match self.take_rest(place, guard, timers.as_ref()).await {
                Ok(guards) => return Ok(Some(self.guard(guards))),
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Busy(busy)) => {
                    place = busy;
                    Ok(None)
                }
                Err(Refused::Passing(failed, error)) => {
                    place = failed;
                    Err(error)
                }
                Err(Refused::TakenAway) => continue,
            };
            let Some(pause) = self.pause_after(since, last.is_ok()) else {
                return last;
            };
            if let Some(timers) = &timers {
                timers.sleep(pause).await;
            }
        }
    }

    /// How long to stay away after a round that began at `since`; `None` when there is no time for another.
    fn pause_after(&mut self, since: Moment, was_busy: bool) -> Option<Duration> {
        let now = self.clock.now();
        let round = since.until(now);
        let pause = self.pauses.after(round);
        let Some(end) = self.end else {
            return Some(pause);
        };
        let left = now.until(end);
        // Busy is an answer; what the next round is told may come too late to be one.
        let too_late = was_busy && left + GRACE < round.min(LONGEST);
        // A pause is no reason to give up: it leaves the time for one more round.
        let pause = pause.min(left.saturating_sub(round * 2));
        (!left.is_zero() && !too_late).then_some(pause)
    }

    fn guard(&self, guards: Vec<LockGuard>) -> LockGuard {
        let needed = guards.len();
        let guards = guards.into_iter().map(Some).collect();
        // All are needed, so there are no others to wait for.
        let spare_timeout = Duration::ZERO;
        let level = Level::first(&self.set.name, needed, spare_timeout, guards, self.lease);
        LockGuard::of_several(level)
    }

    /// Waits for one lock, with nothing in hand.
    async fn wait_for(
        &self,
        place: usize,
        timers: Option<&Timers>,
    ) -> Result<Option<LockGuard>, Error> {
        let lock = &self.set.locks[place];
        let Some(end) = self.end else {
            return match self.lease {
                Lease::Watchdog => lock.lock().await,
                Lease::Fixed(lease) => lock.lock_for(lease).await,
            }
            .map(Some);
        };
        let waiting = lock.try_lock(self.clock.now().until(end), self.lease);
        let waited = self.by_the_end(timers, waiting).await;
        waited.unwrap_or_else(|| Err(silence_of(lock.name())))
    }

    /// What `future` comes to, unless it is time to return. The first round has no timers yet, and needs none.
    async fn by_the_end<T>(
        &self,
        timers: Option<&Timers>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        match (timers, self.hard_end) {
            (Some(timers), Some(end)) => timers.within(self.clock.now().until(end), future).await,
            _ => Some(future.await),
        }
    }

    /// Tries all but the lock at `first`, which is `guard`. What it got is given back when it did not get all.
    async fn take_rest(
        &mut self,
        first: usize,
        guard: LockGuard,
        timers: Option<&Timers>,
    ) -> Result<Vec<LockGuard>, Refused> {
        let tray = Tray::new(first, guard);
        let limit = self.set.command_timeout() + 2 * GRACE;
        let alarm = timers.map(|timers| tray.taken_away_after(limit, timers));
        let tried = self.try_rest(first, &tray, timers).await;
        drop(alarm);
        let Some(mut got) = tray.take() else {
            return Err(Refused::TakenAway);
        };
        let refused = match tried {
            Ok(()) => match got.iter().find(|(_, guard)| !guard.is_valid()) {
                None => {
                    got.sort_unstable_by_key(|(place, _)| *place);
                    return Ok(got.into_iter().map(|(_, guard)| guard).collect());
                }
                Some((place, guard)) => self.lost(*place, guard),
            },
            Err(refused) => refused,
        };
        self.give_back(got, timers).await;
        Err(refused)
    }

    /// What it means that a lock was lost before all were there.
    fn lost(&mut self, place: usize, guard: &LockGuard) -> Refused {
        self.losses += 1;
        match guard.check() {
            Ok(()) => Refused::Busy(place),
            Err(error) if self.losses >= MOST_LOSSES => Refused::Failed(error),
            Err(error) => Refused::Passing(place, error),
        }
    }

    /// One try for each of the rest, side by side.
    async fn try_rest(
        &self,
        first: usize,
        tray: &Arc<Tray>,
        timers: Option<&Timers>,
    ) -> Result<(), Refused> {
        let places = (1..self.set.locks.len()).map(|step| (first + step) % self.set.locks.len());
        let mut tries: FuturesUnordered<_> = places
            .clone()
            .map(|place| async move {
                let lock = &self.set.locks[place];
                (place, lock.try_lock(Duration::ZERO, self.lease).await)
            })
            .collect();
        match self.by_the_end(timers, heard(&mut tries, tray)).await {
            Some(None) => Ok(()),
            Some(Some(refused)) => {
                let rest = async { while heard(&mut tries, tray).await.is_some() {} };
                if let Some(timers) = timers {
                    timers.within(STILL_HEARD, rest).await;
                }
                Err(refused)
            }
            None => {
                let silent = places.clone().find(|place| !tray.has(*place));
                let silent = silent.unwrap_or(first);
                Err(Refused::Passing(
                    silent,
                    silence_of(self.set.locks[silent].name()),
                ))
            }
        }
    }

    /// Gives back what a round got; what is not answered in time is seen to in the background.
    async fn give_back(&self, got: Vec<(usize, LockGuard)>, timers: Option<&Timers>) {
        let given_back: FuturesUnordered<_> =
            got.into_iter().map(|(_, guard)| guard.unlock()).collect();
        // What a release was answered changes nothing here.
        self.by_the_end(timers, given_back.for_each(|_| ready(())))
            .await;
    }
}

/// Hears tries up to the first that was refused, and puts what they got on the tray. None: no other was.
async fn heard(
    tries: &mut (impl Stream<Item = (usize, Result<Option<LockGuard>, Error>)> + Unpin),
    tray: &Tray,
) -> Option<Refused> {
    while let Some((place, tried)) = tries.next().await {
        match tried {
            Ok(Some(guard)) => tray.put(place, guard),
            Ok(None) => return Some(Refused::Busy(place)),
            Err(error) if error.is_transient() => return Some(Refused::Passing(place, error)),
            Err(error) => return Some(Refused::Failed(error)),
        }
    }
    None
}

/// Nothing was heard of the lock `name` in time.
fn silence_of(name: &str) -> Error {
    Error::from(Failure::silence()).about(name)
}
