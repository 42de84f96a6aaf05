//! Several locks as one: all of them or none. The handle, the set of its locks, and how they are taken together.
//!
//! 1. It never waits while it holds: it waits for one lock, with nothing in hand, and then tries the others once, all at
//!    the same time. So two of these never wait for each other, and none waits for a caller that takes the same locks in
//!    another order.
//! 2. When one of the others is busy, or fails in a way that may pass, all are given back. After a pause, it waits for that
//!    one next, but not always (3).
//! 3. The first lock to wait for is the one with the least name, or with a queue. So callers that want the same locks queue
//!    at the same one, first come first served, and do not block each other half-way. Callers that wait at a busy lock do
//!    block them: with a queue at each of two locks, every round finds the other lock busy. So only one of
//!    `ROUNDS_AT_FIRST` refused rounds at the first lock leads to the busy one, and each round there leads back to the
//!    first. So more callers leave the queue at the busy lock than come to it, and once it is empty, a round at the first
//!    lock gets all. That is an argument, not a proof: it needs rounds that take about equally long at both locks.
//! 4. The guards that it has lie in a [`Tray`] until the caller has all of them, so a caller that is not polled delays
//!    nobody.
//! 5. It returns within the longer of its wait and the command time-out, however long the single locks take.

use std::collections::HashSet;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;

use super::guard::{LockGuard, sealed};
use super::handle::{Handle, LockKind, LockTarget};
use super::object::{Lock, LockInfo, Ttl};
use super::several::{CompositeLevel, LONGEST_PAUSE, MOST, Pauses};
use crate::backend::{Failure, Timers};
use crate::clock::{Clock, Moment};
use crate::engine::gate::ticket::GRACE;
use crate::error::{Error, SetError};
use crate::lease::Lease;

/// Several locks as one: it is held when all of them are.
///
/// They may be of any kind, client and server. Each is an ordinary lock, which others may take on its own, also Java
/// services. Its hold is valid while all of its locks are, and [lost](LockGuard::lost) with the first of them.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// use watchlock::MultiLock;
///
/// let both = MultiLock::new([client.get_lock("account:1"), client.get_lock("account:2")])?;
/// both.run(async |guard| {
///     println!("nobody else is at {}", guard.name());
/// }).await
/// # }
/// ```
///
/// Of several kinds:
///
/// ```no_run
/// # fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// use watchlock::MultiLock;
///
/// let both = MultiLock::builder()
///     .with(client.get_lock("stock"))
///     .with(client.get_fenced_lock("ledger"))
///     .build()?;
/// # drop(both);
/// # Ok(())
/// # }
/// ```
///
/// **No deadlock, in any order.** It never waits while it holds: it waits for one lock, then tries the others at once. If
/// one is busy, it gives all back and waits for that one, or again for the first. So sets may overlap, be given in any
/// order, and compete with a `RedissonMultiLock` on the same locks. It has no place in a queue for the locks that it does
/// not wait for, so how long it waits is not bounded: where others always wait for each of its locks alone, or for many
/// sets that overlap, it may wait for long.
///
/// **Whom it acts for** depends on each of its locks: those of one [`Owner`](crate::Owner), or used in a scope, enter again
/// what that owner holds.
///
/// **Verbs.** Its name is the names of its locks in their order, separated by a comma and a space. The time-outs are those
/// of the client with the longest command time-out. A fixed lease begins for each lock when that is asked for. Without a
/// guard none is held for longer. `is_locked` returns whether anybody holds any of the locks, `hold_count`
/// the smallest of their counts, `remain_time_to_live` that of the lock with the longest time left. `unlock` and
/// `force_unlock` go on with the other locks when one fails, and return the first error. An acquire that is not polled for
/// longer than a command time-out gives back what it has.
///
/// **Errors** of one of its locks name that lock. The other locks are given back then. [`Error::Lost`] also when an acquire
/// repeatedly lost some locks before it had all.
///
/// **Guards.** [`reenter`](LockGuard::reenter) with the same sort of lease (watchdog or fixed) only counts in the guard, and
/// lengthens a fixed lease at each lock. With the other sort it enters each lock again. [`detach`](LockGuard::detach)
/// leaves each lock to its owner, so each must have one, and [`unlock`](Handle::unlock) gives back the newest detached
/// level of each. Guards that share a level after `reenter` can neither be detached nor left to expire
/// ([`LeaseError::OtherLevels`](crate::LeaseError::OtherLevels)).
///
/// It cannot see that two clients use the same server: if both have the same lock in one set, the second waits for the
/// first without end.
#[doc(alias = "RedissonMultiLock")]
#[doc(alias = "getMultiLock")]
pub type MultiLock = Handle<Several>;

/// The kind of [`MultiLock`].
#[derive(Debug)]
pub enum Several {}

impl sealed::Sealed for Several {}

impl LockKind for Several {
    const HANDLE: &'static str = "MultiLock";
    type Target = Arc<Set>;
    type Guard = LockGuard;
}

/// The locks of a [`MultiLock`], collected one by one: they may be of different kinds.
///
/// ```no_run
/// # fn example(client: watchlock::Client, shards: u32) -> Result<(), watchlock::Error> {
/// let mut builder = watchlock::MultiLock::builder().with(client.get_read_write_lock("schema").read_lock());
/// for shard in 0..shards {
///     builder = builder.with(client.get_lock(format!("shard:{shard}")));
/// }
/// let all = builder.build()?;
/// # drop(all);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct MultiLockBuilder {
    locks: Vec<Arc<dyn Lock>>,
}

impl fmt::Debug for MultiLockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.locks.iter().map(Lock::name);
        f.debug_list().entries(names).finish()
    }
}

impl MultiLockBuilder {
    /// Adds a lock of any kind.
    pub fn with(mut self, lock: impl Lock + 'static) -> Self {
        self.locks.push(Arc::new(lock));
        self
    }

    /// The locks as one. No I/O.
    ///
    /// # Errors
    ///
    /// As [`MultiLock::new`].
    pub fn build(self) -> Result<MultiLock, Error> {
        MultiLock::new(self.locks)
    }
}

impl MultiLock {
    /// For locks of several kinds.
    pub fn builder() -> MultiLockBuilder {
        MultiLockBuilder::default()
    }

    /// These locks as one: 2 to 64, each once. No I/O.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSet`] when there are too few or too many, when a client's name occurs twice (also as two kinds of
    /// lock), or when more than one has a [queue](LockInfo::has_queue) in Redis.
    pub fn new<L: Into<Arc<dyn Lock>>>(locks: impl IntoIterator<Item = L>) -> Result<Self, Error> {
        let set = Set::of(locks.into_iter().map(Into::into).collect())?;
        Ok(Self::to(Arc::new(set)))
    }
}

/// Used when no lock reports the command time-out of its client.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);

/// Locks that are taken together.
pub struct Set {
    /// Their names, joined.
    name: Arc<str>,
    locks: Box<[Arc<dyn Lock>]>,
    info: LockInfo,
    /// The place of the lock to wait for first.
    first: usize,
}

impl Set {
    fn of(locks: Vec<Arc<dyn Lock>>) -> Result<Self, SetError> {
        let given = locks.len();
        if !(2..=MOST).contains(&given) {
            return Err(SetError::Number { given });
        }
        let infos: Vec<_> = locks.iter().map(Lock::info).collect();
        each_once(&infos)?;
        let queue = only_queue(&locks, &infos)?;
        let names: Vec<_> = locks.iter().map(Lock::name).collect();
        // Sets that begin with the same lock queue there, instead of blocking each other half-way.
        let least = (0..given).min_by_key(|at| names[*at]);
        Ok(Self {
            name: names.join(", ").into(),
            first: queue.or(least).unwrap_or_default(),
            info: joined(infos),
            locks: locks.into(),
        })
    }

    fn each(&self) -> impl Iterator<Item = &dyn Lock> {
        self.locks.iter().map(|lock| &**lock)
    }

    /// The longest command time-out of the locks' clients.
    fn command_timeout(&self) -> Duration {
        match self.info.command_timeout {
            Duration::ZERO => COMMAND_TIMEOUT,
            timeout => timeout,
        }
    }
}

fn each_once(infos: &[LockInfo]) -> Result<(), SetError> {
    let mut seen = HashSet::new();
    let mut all = infos.iter().flat_map(|info| &info.locks);
    match all.find(|(client, names)| !seen.insert((client, names.key()))) {
        Some((_, names)) => Err(SetError::Twice {
            lock: names.name().into(),
        }),
        None => Ok(()),
    }
}

/// The place of the lock with a queue, if there is one.
fn only_queue(locks: &[Arc<dyn Lock>], infos: &[LockInfo]) -> Result<Option<usize>, SetError> {
    let mut queues = (0..infos.len()).filter(|at| infos[*at].has_queue);
    let first = queues.next();
    match (first, queues.next()) {
        (Some(first), Some(second)) => Err(SetError::Queues {
            first: locks[first].name().into(),
            second: locks[second].name().into(),
        }),
        _ => Ok(first),
    }
}

fn joined(infos: Vec<LockInfo>) -> LockInfo {
    let mut joined = LockInfo::default();
    for info in infos {
        joined.locks.extend(info.locks);
        joined.has_queue |= info.has_queue;
        joined.command_timeout = joined.command_timeout.max(info.command_timeout);
        joined.timers = joined.timers.or(info.timers);
    }
    joined
}

impl LockTarget for Arc<Set> {
    fn name(&self) -> &str {
        &self.name
    }

    fn has_owner(&self) -> bool {
        false
    }

    fn info(&self) -> LockInfo {
        self.info.clone()
    }

    async fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
    ) -> Result<Option<LockGuard>, Error> {
        let lease = lease
            .of_several()
            .map_err(|problem| Error::from(problem).about(self.name()))?;
        AcquireAll::new(self, wait, lease).run().await
    }

    async fn unlock(&self) -> Result<(), Error> {
        let given_back = join_all(self.each().map(Lock::unlock)).await;
        given_back.into_iter().collect()
    }

    fn hold_count(&self) -> u32 {
        self.each().map(Lock::hold_count).min().unwrap_or_default()
    }

    async fn is_locked(&self) -> Result<bool, Error> {
        any(join_all(self.each().map(Lock::is_locked)).await)
    }

    async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        let mut longest = Ttl::Free;
        for ttl in join_all(self.each().map(Lock::remain_time_to_live)).await {
            longest = match (longest, ttl?) {
                (Ttl::NoExpiry, _) | (_, Ttl::NoExpiry) => Ttl::NoExpiry,
                (Ttl::Left(one), Ttl::Left(other)) => Ttl::Left(one.max(other)),
                (Ttl::Free, ttl) | (ttl, Ttl::Free) => ttl,
            };
        }
        Ok(longest)
    }

    async fn force_unlock(&self) -> Result<bool, Error> {
        any(join_all(self.each().map(Lock::force_unlock)).await)
    }
}

/// Whether any answer is yes, or the first error.
fn any(answers: Vec<Result<bool, Error>>) -> Result<bool, Error> {
    let mut answers = answers.into_iter();
    answers.try_fold(false, |any, answer| Ok(any | answer?))
}

/// How long a refused round waits for the answers on the way. The round gives back the locks that they grant sooner than
/// the background would.
const LATE_ANSWERS: Duration = Duration::from_millis(10);

/// How often a round may lose locks before it has all. After that the lease is too short for the distance to Redis.
const MOST_LOSSES: u32 = 3;

/// One of so many refused rounds at the first lock leads to a busy one: the first, so a lock that is held for long is waited
/// for. A round at a busy lock must take less than so many times as long as one at the first, and takes about as long.
const ROUNDS_AT_FIRST: u32 = 4;

struct AcquireAll<'a> {
    set: &'a Set,
    lease: Lease,
    clock: Clock,
    end: Option<Moment>,
    /// When it returns at the latest.
    hard_end: Option<Moment>,
    /// The timers of one of its clients, or of a guard if no lock names any.
    timers: Option<Timers>,
    pauses: Pauses,
    losses: u32,
    refused_at_first: u32,
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

impl RoundFailure {
    fn of(place: usize, error: Error) -> Self {
        if error.is_transient() {
            Self::Passing(place, error)
        } else {
            Self::Failed(error)
        }
    }
}

impl<'a> AcquireAll<'a> {
    /// Without `wait` it waits without a limit.
    fn new(set: &'a Set, wait: Option<Duration>, lease: Lease) -> Self {
        // Its locks end their waits by that clock, too, which a test may stop.
        let clock = set.info.timers.as_ref().map(Timers::clock);
        let clock = clock.unwrap_or_else(Clock::system);
        let since = clock.now();
        Self {
            set,
            lease,
            end: wait.map(|wait| since + wait),
            hard_end: wait.map(|wait| since + wait.max(set.command_timeout()) + GRACE),
            clock,
            timers: set.info.timers.clone(),
            pauses: Pauses::new(),
            losses: 0,
            refused_at_first: 0,
        }
    }

    /// Takes all of the set; `None` when one stayed busy.
    async fn run(&mut self) -> Result<Option<LockGuard>, Error> {
        let mut place = self.set.first;
        loop {
            let Some(guard) = self.wait_for(place).await? else {
                return Ok(None);
            };
            self.timers = self.timers.take().or_else(|| guard.timers());
            let since = self.clock.now();
            let last = match self.take_rest(place, guard).await {
                Ok(guards) => return Ok(Some(self.guard(guards))),
                Err(RoundFailure::Failed(error)) => return Err(error),
                Err(RoundFailure::Busy(busy)) => {
                    place = self.after_busy(place, busy);
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
            if let Some(timers) = self.timers.clone() {
                self.by_the_end(timers.sleep(pause)).await;
            }
        }
    }

    /// The lock to wait for after a round that began at `place` and found `busy` (3: most rounds begin at the first).
    fn after_busy(&mut self, place: usize, busy: usize) -> usize {
        if place != self.set.first {
            return self.set.first;
        }
        let leaves = self.refused_at_first.is_multiple_of(ROUNDS_AT_FIRST);
        self.refused_at_first += 1;
        if leaves { busy } else { self.set.first }
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
    async fn wait_for(&mut self, place: usize) -> Result<Option<LockGuard>, Error> {
        let lock = &self.set.locks[place];
        let Some(end) = self.end else {
            return match self.lease {
                Lease::Watchdog => lock.lock().await,
                Lease::Fixed(lease) | Lease::AtMost(lease) => lock.lock_with_lease(lease).await,
            }
            .map(Some);
        };
        let waiting = lock.try_lock(self.clock.now().until(end), self.lease);
        let waited = self.by_the_end(waiting).await;
        waited.unwrap_or_else(|| Err(self.silence_of(lock.name())))
    }

    /// The lock `name` did not answer in time, or the client of the timers has ended.
    fn silence_of(&self, name: &str) -> Error {
        if self.timers.as_ref().is_some_and(Timers::have_stopped) {
            return Error::Closed;
        }
        Error::from(Failure::silence()).about(name)
    }

    /// The output of `future`, unless it is time to return.
    ///
    /// If its timer is late, the caller was not polled, or the process stood still. That is not the silence of a lock, so
    /// it returns later by as much. Towards the end the timers are short, so that they show when it began.
    async fn by_the_end<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let (Some(timers), Some(mut end)) = (self.timers.clone(), self.hard_end) else {
            return Some(future.await);
        };
        let timeout = self.set.command_timeout();
        let mut future = pin!(future);
        loop {
            let now = self.clock.now();
            let left = now.until(end);
            let at_most = left.saturating_sub(timeout).max(timeout / 8).min(left);
            let output = timers.within(at_most, &mut future).await;
            let late = now.until(self.clock.now()).saturating_sub(at_most);
            if late > GRACE {
                end = end + late;
                self.hard_end = Some(end);
            }
            let is_over = self.clock.now() >= end && late <= GRACE;
            if output.is_some() || is_over || timers.have_stopped() {
                return output;
            }
        }
    }

    /// Tries all locks but that at `first`, which is `guard`. Gives back what it got when it did not get all.
    async fn take_rest(
        &mut self,
        first: usize,
        guard: LockGuard,
    ) -> Result<Vec<LockGuard>, RoundFailure> {
        let tray = Tray::new(first, guard);
        let limit = self.set.command_timeout() + 2 * GRACE;
        let timer = self
            .timers
            .as_ref()
            .map(|timers| tray.taken_away_after(limit, timers));
        let tried = self.try_rest(first, &tray).await;
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
        let given_back = join_all(got.into_iter().map(|(_, guard)| guard.unlock()));
        // The answers change nothing here, and the background finishes what is not answered in time.
        self.by_the_end(given_back).await;
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
    async fn try_rest(&mut self, first: usize, tray: &Tray) -> Result<(), RoundFailure> {
        let (set, lease) = (self.set, self.lease);
        let places = (1..set.locks.len()).map(|step| (first + step) % set.locks.len());
        let mut tries: FuturesUnordered<_> = places
            .clone()
            .map(|place| async move {
                let lock = &set.locks[place];
                (place, lock.try_lock(Duration::ZERO, lease).await)
            })
            .collect();
        let collecting = collect_until_refused(&mut tries, tray);
        match self.by_the_end(collecting).await {
            Some(None) => Ok(()),
            Some(Some(refused)) => {
                let rest =
                    async { while collect_until_refused(&mut tries, tray).await.is_some() {} };
                if let Some(timers) = &self.timers {
                    timers.within(LATE_ANSWERS, rest).await;
                }
                Err(refused)
            }
            None => {
                let silent = places.clone().find(|place| !tray.has(*place));
                let silent = silent.unwrap_or(first);
                let error = self.silence_of(self.set.locks[silent].name());
                Err(RoundFailure::of(silent, error))
            }
        }
    }
}

/// Puts the granted locks on the tray, up to the first try that is refused. None when no more is refused, or when the tray
/// was emptied: what is granted from then on would only be given back.
async fn collect_until_refused(
    tries: &mut (impl Stream<Item = (usize, Result<Option<LockGuard>, Error>)> + Unpin),
    tray: &Tray,
) -> Option<RoundFailure> {
    while let Some((place, tried)) = poll_fn(|context| {
        if tray.is_emptied() {
            return Poll::Ready(None);
        }
        tries.poll_next_unpin(context)
    })
    .await
    {
        match tried {
            Ok(Some(guard)) => tray.put(place, guard),
            Ok(None) => return Some(RoundFailure::Busy(place)),
            Err(error) => return Some(RoundFailure::of(place, error)),
        }
    }
    None
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

    fn has(&self, place: usize) -> bool {
        let tray = self.0.lock();
        tray.iter().flatten().any(|(of, _)| *of == place)
    }

    fn is_emptied(&self) -> bool {
        self.0.lock().is_none()
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
