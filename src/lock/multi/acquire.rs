//! Taking several locks together.
//!
//! 1. It never waits while it holds: it waits for one lock, with nothing in hand, and then tries the others once, all at
//!    the same time. So two of these never wait for each other, and none waits for a caller that takes the same locks in
//!    another order.
//! 2. When one of the others is busy, or fails in a way that may pass, all are given back. After a pause, it waits for that
//!    one next.
//! 3. The first lock to wait for is the one with the least name, or with a queue. So callers that want the same locks queue
//!    at the same one, first come first served, and do not block each other half-way.
//! 4. The guards that it has lie in a [`Tray`] until the caller has all of them, so a caller that is not polled delays
//!    nobody.
//! 5. It returns within the longer of its wait and the command time-out, however long the single locks take.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, ready};
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;

use super::set::Set;
use crate::backend::{Failure, Timers};
use crate::clock::{Clock, Moment};
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::guard::LockGuard;
use crate::lock::several::{CompositeLevel, LONGEST_PAUSE, Pauses};

/// How long a refused round waits for the answers on the way. The round gives back the locks that they grant sooner than
/// the background would.
const LATE_ANSWERS: Duration = Duration::from_millis(10);

/// How much later than its wait an acquire may return.
const GRACE: Duration = Duration::from_millis(25);

/// How often a round may lose locks before it has all. After that the lease is too short for the distance to Redis.
const MOST_LOSSES: u32 = 3;

/// Takes all of `set`; `None` when one stayed busy. Without `wait` it waits without a limit.
pub(super) async fn acquire(
    set: &Set,
    wait: Option<Duration>,
    lease: Lease,
) -> Result<Option<LockGuard>, Error> {
    let clock = Clock::system();
    let since = clock.now();
    let mut acquire = AcquireAll {
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

struct AcquireAll<'a> {
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

/// Why a round did not get all locks.
enum RoundFailure {
    /// The lock at this place was busy.
    Busy(usize),
    /// The lock at this place failed in a way that may pass.
    Passing(usize, Error),
    /// The tray was emptied, as the caller was not polled for long.
    TakenAway,
    Failed(Error),
}

impl AcquireAll<'_> {
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
                Err(RoundFailure::Failed(error)) => return Err(error),
                Err(RoundFailure::Busy(busy)) => {
                    place = busy;
                    Ok(None)
                }
                Err(RoundFailure::Passing(failed, error)) => {
                    place = failed;
                    Err(error)
                }
                Err(RoundFailure::TakenAway) => continue,
            };
            let Some(pause) = self.pause_after(since, last.is_ok()) else {
                return last;
            };
            if let Some(timers) = &timers {
                timers.sleep(pause).await;
            }
        }
    }

    /// How long to pause after a round that began at `since`; `None` when there is no time for another round.
    fn pause_after(&mut self, since: Moment, was_busy: bool) -> Option<Duration> {
        let now = self.clock.now();
        let round = since.until(now);
        let pause = self.pauses.after(round);
        let Some(end) = self.end else {
            return Some(pause);
        };
        let left = now.until(end);
        // Return busy now if the result of another round may come too late.
        let too_late = was_busy && left + GRACE < round.min(LONGEST_PAUSE);
        // The pause leaves time for one more round.
        let pause = pause.min(left.saturating_sub(round * 2));
        (!left.is_zero() && !too_late).then_some(pause)
    }

    fn guard(&self, guards: Vec<LockGuard>) -> LockGuard {
        let needed = guards.len();
        let guards = guards.into_iter().map(Some).collect();
        // All are needed, so there are no spare ones to wait for.
        let spare_timeout = Duration::ZERO;
        CompositeLevel::first(&self.set.name, needed, spare_timeout, guards, self.lease)
            .into_guard()
    }

    /// Waits for one lock while it holds none.
    async fn wait_for(
        &self,
        place: usize,
        timers: Option<&Timers>,
    ) -> Result<Option<LockGuard>, Error> {
        let lock = &self.set.locks[place];
        let Some(end) = self.end else {
            return match self.lease {
                Lease::Watchdog => lock.lock().await,
                Lease::Fixed(lease) => lock.lock_with_lease(lease).await,
            }
            .map(Some);
        };
        let waiting = lock.try_lock(self.clock.now().until(end), self.lease);
        let waited = self.by_the_end(timers, waiting).await;
        waited.unwrap_or_else(|| Err(silence_of(lock.name())))
    }

    /// The output of `future`, unless it is time to return. The first wait has no timers yet, and needs none.
    async fn by_the_end<T>(
        &self,
        timers: Option<&Timers>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        match (timers, self.hard_end) {
            (Some(timers), Some(end)) => timers.until(end, future).await,
            _ => Some(future.await),
        }
    }

    /// Tries all locks but that at `first`, which is `guard`. Gives back what it got when it did not get all.
    async fn take_rest(
        &mut self,
        first: usize,
        guard: LockGuard,
        timers: Option<&Timers>,
    ) -> Result<Vec<LockGuard>, RoundFailure> {
        let tray = Tray::new(first, guard);
        let limit = self.set.command_timeout() + 2 * GRACE;
        let timer = timers.map(|timers| tray.taken_away_after(limit, timers));
        let tried = self.try_rest(first, &tray, timers).await;
        drop(timer);
        let Some(mut got) = tray.take() else {
            return Err(RoundFailure::TakenAway);
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

    /// A lock was lost before all were there.
    fn lost(&mut self, place: usize, guard: &LockGuard) -> RoundFailure {
        self.losses += 1;
        match guard.check() {
            Ok(()) => RoundFailure::Busy(place),
            Err(error) if self.losses >= MOST_LOSSES => RoundFailure::Failed(error),
            Err(error) => RoundFailure::Passing(place, error),
        }
    }

    /// One try for each other lock, all at the same time.
    async fn try_rest(
        &self,
        first: usize,
        tray: &Arc<Tray>,
        timers: Option<&Timers>,
    ) -> Result<(), RoundFailure> {
        let places = (1..self.set.locks.len()).map(|step| (first + step) % self.set.locks.len());
        let mut tries: FuturesUnordered<_> = places
            .clone()
            .map(|place| async move {
                let lock = &self.set.locks[place];
                (place, lock.try_lock(Duration::ZERO, self.lease).await)
            })
            .collect();
        match self
            .by_the_end(timers, collect_until_refused(&mut tries, tray))
            .await
        {
            Some(None) => Ok(()),
            Some(Some(refused)) => {
                let rest =
                    async { while collect_until_refused(&mut tries, tray).await.is_some() {} };
                if let Some(timers) = timers {
                    timers.within(LATE_ANSWERS, rest).await;
                }
                Err(refused)
            }
            None => {
                let silent = places.clone().find(|place| !tray.has(*place));
                let silent = silent.unwrap_or(first);
                Err(RoundFailure::Passing(
                    silent,
                    silence_of(self.set.locks[silent].name()),
                ))
            }
        }
    }

    /// Gives back what a round got. The background finishes what is not answered in time.
    async fn give_back(&self, got: Vec<(usize, LockGuard)>, timers: Option<&Timers>) {
        let given_back: FuturesUnordered<_> =
            got.into_iter().map(|(_, guard)| guard.unlock()).collect();
        // The answers change nothing here.
        self.by_the_end(timers, given_back.for_each(|_| ready(())))
            .await;
    }
}

/// Puts the granted locks on the tray, up to the first try that is refused. None when no more is refused.
async fn collect_until_refused(
    tries: &mut (impl Stream<Item = (usize, Result<Option<LockGuard>, Error>)> + Unpin),
    tray: &Tray,
) -> Option<RoundFailure> {
    while let Some((place, tried)) = tries.next().await {
        match tried {
            Ok(Some(guard)) => tray.put(place, guard),
            Ok(None) => return Some(RoundFailure::Busy(place)),
            Err(error) if error.is_transient() => return Some(RoundFailure::Passing(place, error)),
            Err(error) => return Some(RoundFailure::Failed(error)),
        }
    }
    None
}

/// The lock `name` did not answer in time.
fn silence_of(name: &str) -> Error {
    Error::from(Failure::silence()).about(name)
}

/// The guards that an acquire has so far, each with its place in the set. None once they are taken.
///
/// A caller may stop polling at any await, and must not delay others by that. So the guards lie here, and when a round takes
/// too long, a timer of the keeper takes them away. It wakes the tray itself, not the caller.
struct Tray(Mutex<Option<Vec<(usize, LockGuard)>>>);

impl Tray {
    fn new(place: usize, guard: LockGuard) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(vec![(place, guard)]))))
    }

    /// Adds a guard. One that comes too late is given back.
    fn put(&self, place: usize, guard: LockGuard) {
        let mut late = Some(guard);
        if let Some(got) = self.0.lock().as_mut() {
            got.extend(late.take().map(|guard| (place, guard)));
        }
        drop(late);
    }

    /// Whether it has the guard of this place.
    fn has(&self, place: usize) -> bool {
        let tray = self.0.lock();
        tray.iter().flatten().any(|(of, _)| *of == place)
    }

    /// All guards, unless they were taken away.
    fn take(&self) -> Option<Vec<(usize, LockGuard)>> {
        self.0.lock().take()
    }

    /// Takes the guards away after `limit` and gives them back, also when nobody polls. Dropping the timer stops it.
    fn taken_away_after(
        self: &Arc<Self>,
        limit: Duration,
        timers: &Timers,
    ) -> BoxFuture<'static, ()> {
        // Unconstrained: a timer wakes its task when the task's budget is used up, and here that would empty the tray.
        let mut timer: BoxFuture<'static, ()> =
            Box::pin(tokio::task::unconstrained(timers.timer(limit)));
        let waker = Waker::from(Arc::clone(self));
        if timer
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
        {
            // The keeper has ended, so nothing renews these guards.
            drop(self.take());
        }
        timer
    }
}

impl Wake for Tray {
    fn wake(self: Arc<Self>) {
        drop(self.take());
    }
}
