//! A hold: one owner's possession of one name. Its guards, its gate and the keeper share it.
//!
//! 1. Its life is the state machine of [`state`](super::hold::state). Every change goes through [`Hold::with`], or
//!    through [`Effects::change`] while a gate's lock is held: a waker may run any code, even code that takes the same
//!    gate's lock, so nothing is woken under it. A change collects its [`Effects`], and its caller carries them out after
//!    it has released the lock.
//! 2. Validity is read without a lock (I8).
//! 3. One attempt uses the number of a hold. If the attempt ends without a hold, the number is never used again (I3).
//! 4. A hold knows its owner by number only: an owner knows its holds, not the other way round.
//! 5. If several owners may hold a name at once, the hold in Redis is a *shared hold*, and each owner has a *read* of
//!    it. A read is a hold with its own levels and leases. It is lost with the shared hold, and never valid for longer.

pub(crate) mod kind;
pub(crate) mod owner;
pub(crate) mod schedule;
pub(crate) mod state;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use futures_util::future::select;
use parking_lot::Mutex;
use scopeguard::defer;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::hold::kind::Kind;
use super::hold::state::{Ended, HoldState, Level, Phase};
use crate::clock::{Moment, millis};
use crate::error::{Error, LostReason};
use crate::fencing::FencingToken;
use crate::lease::{LeaseMs, Term};

/// Who asks for a hold, to detect a task that waits for itself: a hash of the task's id. Outside of tasks, as in `block_on`
/// and in the body of `#[tokio::main]`, the thread stands for it. 0 is nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct TaskId(u64);

impl TaskId {
    pub(crate) fn current() -> Self {
        let mut hasher = DefaultHasher::new();
        match tokio::task::try_id() {
            Some(task) => task.hash(&mut hasher),
            None => ("thread", std::thread::current().id()).hash(&mut hasher),
        }
        Self(hasher.finish())
    }
}

/// One owner's possession of one name.
pub(crate) struct Hold {
    pub(crate) kind: Kind,
    /// The field in Redis: `<client uuid>:<number>`.
    pub(crate) id: Arc<str>,
    /// Unique among the holds of this client.
    pub(crate) number: u64,
    /// The lease that it was first asked with.
    pub(crate) lease: LeaseMs,
    /// The number of the owner that may enter it again.
    pub(crate) owner: Option<u64>,
    /// The number of the read through which it was entered without an owner, or its own number.
    pub(crate) entered_by: u64,
    /// The task that asked for it, or that used its guard last.
    task: AtomicU64,
    /// The shared hold that this is a read of.
    read_of: Option<Arc<Hold>>,
    /// Whether it is a read that was left to its lease, so that nobody holds it any more.
    pub(crate) is_abandoned: bool,
    /// Whether metrics count it as held. Written under the state's lock.
    counted: AtomicBool,
    state: Mutex<HoldState>,
    /// Validity for readers, 0 when there is none.
    valid_until: AtomicU64,
    /// Its fencing token, 0 when it has none.
    token: AtomicU64,
    /// How many ms the server that granted it had been up, and one more; 0 when it was not asked.
    server_age: AtomicU64,
    /// When the keeper looks next. Only the schedule writes it.
    pub(crate) look_at: AtomicU64,
    changed: Notify,
    /// How many wait for a change.
    waiters: AtomicU32,
}

/// What a new hold is made of.
pub(crate) struct Origin {
    pub(crate) kind: Kind,
    pub(crate) id: Arc<str>,
    pub(crate) number: u64,
    pub(crate) lease: LeaseMs,
    pub(crate) owner: Option<u64>,
    pub(crate) entered_by: u64,
    pub(crate) task: TaskId,
}

impl Hold {
    /// An attempt to start a hold. It is overdue at `finish_by`.
    pub(crate) fn trying(origin: Origin, finish_by: Moment) -> Arc<Self> {
        Arc::new(Self::new(origin, None, HoldState::trying(finish_by)))
    }

    /// A read of `shared` with one level. It lasts for `term`, or as long as `shared` if the watchdog keeps it.
    pub(crate) fn read(shared: &Arc<Self>, origin: Origin, level: Level, term: Term) -> Arc<Self> {
        let state = HoldState::read(level, term);
        Arc::new(Self::new(origin, Some(Arc::clone(shared)), state))
    }

    /// A read of `shared` that nobody holds any more. It still lasts for `term`.
    pub(crate) fn abandoned_read(shared: &Arc<Self>, origin: Origin, term: Term) -> Arc<Self> {
        let state = HoldState::read(Level::Fixed, term);
        let left = Self::new(origin, Some(Arc::clone(shared)), state);
        Arc::new(Self {
            is_abandoned: true,
            ..left
        })
    }

    /// A hold that another one was passed on to: it begins in `state`, with the other's field in Redis.
    pub(crate) fn begun(origin: Origin, state: HoldState) -> Arc<Self> {
        Arc::new(Self::new(origin, None, state))
    }

    fn new(origin: Origin, shared_hold: Option<Arc<Self>>, state: HoldState) -> Self {
        let valid_until = match state.phase() {
            Phase::Held => state.valid_until(),
            _ => Moment::default(),
        };
        Self {
            kind: origin.kind,
            id: origin.id,
            number: origin.number,
            lease: origin.lease,
            owner: origin.owner,
            entered_by: origin.entered_by,
            task: AtomicU64::new(origin.task.0),
            read_of: shared_hold,
            is_abandoned: false,
            counted: AtomicBool::new(false),
            state: Mutex::new(state),
            valid_until: AtomicU64::new(valid_until.as_nanos()),
            token: AtomicU64::new(0),
            server_age: AtomicU64::new(0),
            look_at: AtomicU64::new(Moment::NEVER.as_nanos()),
            changed: Notify::new(),
            waiters: AtomicU32::new(0),
        }
    }

    pub(crate) fn task(&self) -> TaskId {
        // Relaxed, here and below: it is only for the log.
        TaskId(self.task.load(Ordering::Relaxed))
    }

    /// A guard of it is used by the current task, which may not be the one that asked for it.
    pub(crate) fn is_used(&self) {
        self.task.store(TaskId::current().0, Ordering::Relaxed);
    }

    pub(crate) fn shared_hold(&self) -> Option<&Arc<Self>> {
        self.read_of.as_ref()
    }

    /// The hold in Redis: the shared hold if this is a read, this one otherwise.
    pub(crate) fn in_redis(self: &Arc<Self>) -> &Arc<Self> {
        self.read_of.as_ref().unwrap_or(self)
    }

    /// Lets `change` act on the state. Readers and waiters see the result.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut HoldState) -> R) -> R {
        let (result, notify, measured) = self.update(change);
        if notify {
            self.changed.notify_waiters();
        }
        if let Some(measured) = measured {
            measured.record(self);
        }
        result
    }

    /// Lets `change` act on the state. Returns, too, whether to notify waiters and what to measure once no lock is held.
    fn update<R>(&self, change: impl FnOnce(&mut HoldState) -> R) -> (R, bool, Option<Measured>) {
        // A read is lost with its shared hold (5). That one's state is unlocked again before the own state is locked,
        // so this never holds both locks.
        let shared = self.read_of.as_ref().map(|shared| shared.phase());
        let mut state = self.state.lock();
        let seen = |state: &HoldState| (state.phase(), state.outcome().is_some());
        let before = seen(&state);
        if let Some(Phase::Lost(reason)) = shared {
            state.lose(reason);
        }
        let result = change(&mut state);
        let valid_until = match state.phase() {
            Phase::Held => state.valid_until(),
            _ => Moment::default(),
        };
        // Release: a thread that reads this validity also sees what its grant wrote. Under the lock, so that an older
        // validity is never stored last.
        self.valid_until
            .store(valid_until.as_nanos(), Ordering::Release);
        let changed = before != seen(&state);
        let measured = (before.0 != state.phase())
            .then(|| self.measure(&state))
            .flatten();
        drop(state);
        (result, changed && self.has_waiters(), measured)
    }

    /// What metrics count because of this state.
    fn measure(&self, state: &HoldState) -> Option<Measured> {
        // Callers have reads, not the shared hold itself, and nobody has a read that was left to its lease.
        let is_shared_hold = self.read_of.is_none() && self.kind.commands.has_reads();
        if !self.kind.metrics.is_on() || is_shared_hold || self.is_abandoned {
            return None;
        }
        let is_held = state.phase() == Phase::Held;
        // Relaxed: the state is locked.
        if self.counted.swap(is_held, Ordering::Relaxed) == is_held {
            return None;
        }
        let how = match state.how_it_ended() {
            None => return Some(Measured::Begun),
            Some(Ended::Released) => "released",
            Some(Ended::Left) => "left",
            Some(Ended::Lost(_)) => "lost",
        };
        Some(Measured::Ended(how, state.held_since()))
    }

    /// Up to when the client vouches for it, or the start of time if it does not.
    pub(crate) fn valid_until(&self) -> Moment {
        // Acquire: pairs with the store in `update`, so that the reader also sees what the grant wrote (I8).
        let own = Moment::from_nanos(self.valid_until.load(Ordering::Acquire));
        match &self.read_of {
            Some(shared) => own.min(shared.valid_until()),
            None => own,
        }
    }

    /// Up to when Redis is asked about its field. After the hold was passed on, a question that is under way still
    /// counts for the new holder of the field.
    pub(crate) fn asked_until(&self, now: impl FnOnce() -> Moment) -> Option<Moment> {
        let valid_until = self.valid_until();
        if valid_until > Moment::default() {
            return Some(valid_until);
        }
        let passed_until = self.state.lock().passed_until();
        passed_until.filter(|until| now() < *until)
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        // Relaxed: it publishes nothing but itself.
        FencingToken::new(self.token.load(Ordering::Relaxed))
    }

    pub(crate) fn has_token(&self) -> bool {
        // Relaxed: as in `token`.
        self.token.load(Ordering::Relaxed) > 0
    }

    /// Keeps the first token that Redis gave this hold. Entries that were repeated, or sent at the same time, may draw
    /// more tokens. Any of them would do: all lie between those of the holders before and after.
    pub(crate) fn keep_token(&self, token: FencingToken) {
        // Relaxed: as in `token`. The exchange alone ensures that the first token stays.
        let _ =
            self.token
                .compare_exchange(0, token.as_u64(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How long the server had been up when it granted this.
    pub(crate) fn server_age(&self) -> Option<Duration> {
        // Relaxed: as in `token`. The holder reads it, and gets the hold after its grant was stored.
        let and_one = self.server_age.load(Ordering::Relaxed);
        and_one.checked_sub(1).map(Duration::from_millis)
    }

    /// Keeps what its grant carried besides the lease.
    pub(crate) fn keep(&self, token: Option<FencingToken>, server_age: Option<Duration>) {
        if let Some(token) = token {
            self.keep_token(token);
        }
        if let Some(age) = server_age {
            let and_one = millis(age).saturating_add(1);
            // Relaxed: as in `server_age`.
            self.server_age.store(and_one, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.state.lock().count()
    }

    /// Whether this and `other` are reads of the same holder, so that both are levels of it.
    pub(crate) fn is_level_with(&self, other: &Self) -> bool {
        let shared = |hold: &Self| hold.kind.commands.is_shared();
        let same = match (self.owner, other.owner) {
            (None, None) => self.entered_by == other.entered_by,
            (own, others) => own == others,
        };
        same && shared(self) && shared(other)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state.lock().phase()
    }

    /// When the newest command was sent that found it in Redis.
    pub(crate) fn found_at(&self) -> Moment {
        self.with(|state| state.found_at)
    }

    /// Its node may have lost it by now. An attempt notes that, and is asked about once it is granted. Returns its phase.
    pub(crate) fn doubt(&self, now: Moment) -> Phase {
        self.with(|state| {
            if state.phase() == Phase::Trying {
                state.doubted_at = now;
            }
            state.phase()
        })
    }

    /// Why it is lost, if it is. The clock counts: a hold whose validity has ended is lost.
    pub(crate) fn lost_reason(&self, now: Moment) -> Option<LostReason> {
        if let Some(shared) = &self.read_of {
            shared.with(|state| state.expire(now));
        }
        self.with(|state| {
            state.expire(now);
            match state.phase() {
                Phase::Lost(reason) => Some(reason),
                _ => None,
            }
        })
    }

    /// Fails if it is lost by now.
    pub(crate) fn check(&self, now: Moment) -> Result<(), Error> {
        self.lost_reason(now)
            .map_or(Ok(()), |reason| Err(Error::lost(reason)))
    }

    pub(crate) fn is_tainted(&self) -> bool {
        self.state.lock().is_tainted()
    }

    /// Resolves when the hold is over: lost, or its last level is gone. A read is lost with its shared hold (5), whose loss
    /// the keeper finds before it comes to the reads.
    pub(crate) async fn over(&self) -> Ended {
        let own = self.wait_for(HoldState::how_it_ended);
        let Some(shared) = &self.read_of else {
            return own.await;
        };
        let is_lost = |ended: &Ended| matches!(ended, Ended::Lost(_));
        let lost = shared.wait_for(|state| state.how_it_ended().filter(is_lost));
        select(pin!(own), pin!(lost)).await.factor_first().0
    }

    /// Whether its last release was answered, or given up.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().outcome().is_some()
    }

    /// How its last release ended. `Ok` if that is not known.
    pub(crate) fn outcome(&self) -> Result<(), Error> {
        self.state.lock().outcome().cloned().unwrap_or(Ok(()))
    }

    /// Resolves when its last release was answered, or given up.
    pub(crate) async fn ended(&self) -> Result<(), Error> {
        self.wait_for(|state| state.outcome().cloned()).await
    }

    /// Records that the last release was answered, or given up.
    pub(crate) fn end(&self, outcome: Result<(), Error>) {
        self.with(|state| state.end(outcome));
    }

    /// Whether tasks wait for a change. Checking this is cheaper than a notification that nobody waits for.
    fn has_waiters(&self) -> bool {
        // Acquire, after the state's lock was released: a waiter counts itself before it locks the state. If it locked
        // the state before the change, its count is seen here; if it locks it after the change, it sees the change.
        self.waiters.load(Ordering::Acquire) > 0
    }

    async fn wait_for<R>(&self, mut seen: impl FnMut(&HoldState) -> Option<R>) -> R {
        // Often the condition is met already, and registering a waiter costs more than this check.
        if let Some(result) = seen(&self.state.lock()) {
            return result;
        }
        // Counted before the task locks the state and reads it: see `has_waiters`. One that is counted for too long costs
        // one notification.
        self.waiters.fetch_add(1, Ordering::AcqRel);
        defer! { self.waiters.fetch_sub(1, Ordering::AcqRel); }
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(result) = seen(&self.state.lock()) {
                return result;
            }
            changed.await;
        }
    }
}

/// What metrics count.
enum Measured {
    Begun,
    /// How the hold ended, and when it had begun.
    Ended(&'static str, Moment),
}

impl Measured {
    /// Runs the application's recorder, so only without a lock, and after the keeper got its work.
    fn record(self, hold: &Hold) {
        match self {
            Self::Begun => hold.kind.metrics.hold_begins(),
            Self::Ended(how, since) => hold.kind.metrics.hold_ends(how, since),
        }
    }
}

/// The settings of a gate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) command_timeout: Duration,
    /// How long a wait without a limit goes on while every try fails.
    pub(crate) unavailable_after: Duration,
    /// Since when the process has been running without a pause.
    pub(crate) runs_since: Moment,
    pub(crate) watchdog_lease: LeaseMs,
    /// Whether holds are passed on.
    pub(crate) passes_on: bool,
}

/// A change at a gate: its time and rules, and what follows from it. That is collected under the gate's lock, and carried
/// out afterwards.
#[must_use]
pub(crate) struct Effects {
    pub(crate) now: Moment,
    pub(crate) rules: Rules,
    wakers: Vec<Waker>,
    changed: Vec<Arc<Hold>>,
    /// Holds whose last release the keeper sends.
    pub(crate) releases: Vec<Arc<Hold>>,
    /// Holds that the keeper looks at in time, which may be sooner than it planned.
    pub(crate) looks: Vec<Arc<Hold>>,
    /// Exclusive holds that the keeper downgrades to shared holds, and when.
    pub(crate) downgrades: Vec<(Arc<Hold>, Moment)>,
    /// For metrics. There is hardly ever more than one, which allocates nothing.
    measured: SmallVec<[(Arc<Hold>, Measured); 1]>,
}

impl Effects {
    pub(crate) fn at(now: Moment, rules: Rules) -> Self {
        Self {
            now,
            rules,
            wakers: Vec::new(),
            changed: Vec::new(),
            releases: Vec::new(),
            looks: Vec::new(),
            downgrades: Vec::new(),
            measured: SmallVec::new(),
        }
    }

    /// When a last release that begins now is overdue.
    pub(crate) fn finish_by(&self) -> Moment {
        self.now + self.rules.command_timeout
    }

    /// Wakes a task later.
    pub(crate) fn wake(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    /// Lets `change` act on the state of `hold`, and notifies the tasks that wait for a change of it later.
    pub(crate) fn change<R>(
        &mut self,
        hold: &Arc<Hold>,
        change: impl FnOnce(&mut HoldState) -> R,
    ) -> R {
        let (result, notify, measured) = hold.update(change);
        if notify {
            self.changed.push(Arc::clone(hold));
        }
        self.measures(hold, measured);
        result
    }

    /// Measures the beginning of a hold that was made as held, and so had no change of its state.
    pub(crate) fn begins(&mut self, hold: &Arc<Hold>) {
        let measured = hold.measure(&hold.state.lock());
        self.measures(hold, measured);
    }

    fn measures(&mut self, hold: &Arc<Hold>, measured: Option<Measured>) {
        let measured = measured.map(|measured| (Arc::clone(hold), measured));
        self.measured.extend(measured);
    }

    /// Leaves the last release of `hold` to the keeper. Returns false if the keeper has it already.
    pub(crate) fn release(&mut self, hold: &Arc<Hold>) -> bool {
        let first = self.change(hold, HoldState::claim_release);
        if first {
            self.releases.push(Arc::clone(hold));
        }
        first
    }

    /// Asks the keeper to look at `hold` in time: the hold is new, or the watchdog keeps it from now on.
    pub(crate) fn look(&mut self, hold: &Arc<Hold>) {
        self.looks.push(Arc::clone(hold));
    }

    /// Leaves it to the keeper to downgrade `hold` to a shared hold at `moment`.
    pub(crate) fn downgrade_at(&mut self, hold: &Arc<Hold>, moment: Moment) {
        self.downgrades.push((Arc::clone(hold), moment));
    }

    /// Wakes and notifies everybody. What is left is for the keeper, and for metrics.
    pub(crate) fn carry_out(mut self) -> Self {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
        for hold in self.changed.drain(..) {
            hold.changed.notify_waiters();
        }
        self
    }

    /// Reports to metrics, once the keeper has the rest.
    pub(crate) fn record(self) {
        for (hold, measured) in self.measured {
            measured.record(&hold);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::engine::made_tests::{LEASE, origin};

    /// The keeper marks thousands of holds lost before it comes to the reads of the first.
    #[test]
    fn a_read_is_over_as_soon_as_its_shared_hold_is_lost() {
        let now = Moment::from_nanos(1_000);
        let term = LEASE.term(now);
        let shared = Hold::trying(origin(1), Moment::NEVER);
        assert!(shared.with(|state| state.grant(Level::Watchdog, term, now)));
        let read = Hold::read(&shared, origin(2), Level::Watchdog, term);
        let mut over = Box::pin(read.over());
        assert_eq!((&mut over).now_or_never(), None);
        shared.with(|state| state.lose(LostReason::Expired));
        let lost = Ended::Lost(LostReason::Expired);
        assert_eq!(over.now_or_never(), Some(lost));
    }

    #[test]
    fn a_loss_in_the_past_resolves_at_once() {
        let now = Moment::from_nanos(1_000);
        let hold = Hold::trying(origin(1), Moment::NEVER);
        let term = LEASE.term(now);
        assert!(hold.with(|state| state.grant(Level::Fixed, term, now)));
        assert_eq!(hold.over().now_or_never(), None);
        hold.with(|state| state.lose(LostReason::Missing));
        let lost = Ended::Lost(LostReason::Missing);
        assert_eq!(hold.over().now_or_never(), Some(lost));
    }
}
