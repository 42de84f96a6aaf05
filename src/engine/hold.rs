//! A hold: one owner's possession of one name, as a state machine with time as a value.
//!
//! ```text
//! Trying ──granted──▶ Held ──last level given back──▶ Ending ──▶ Ended
//!    │                 │
//!    └──not granted──▶ └──validity over, or not ours──▶ Lost
//!          Ended
//! ```
//!
//! 1. Validity is the largest of `sent + lease - drift` over acknowledged writes, because no write ever
//!    shortens a lease. It is read without a lock, from [`Hold::is_valid`].
//! 2. `Lost` is final: nothing leads out of it, later good news is ignored.
//! 3. `Ending` is never lost and never renewed: from the moment the last release is decided.
//! 4. The number of a hold is used by one attempt, and never again once that ended without a hold.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::kind::Kind;
use super::owner::OwnerState;
use super::ticket::Ticket;
use crate::clock::Moment;
use crate::error::LostReason;
use crate::lease::LeaseMs;

/// How early before its validity ends a hold is declared lost, so that nobody learns it late.
pub(crate) const EARLY: Duration = Duration::from_millis(2);

/// What keeps a level alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Watchdog,
    Fixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Trying,
    Held,
    Ending,
    Ended,
    Lost(LostReason),
}

/// What giving a level back leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Others are left: their number is to be written.
    Levels(u32),
    /// It was the last: the release is to be sent.
    Last,
    /// The hold was lost before.
    Lost(LostReason),
}

/// Why a hold cannot be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoEntry {
    Lost(LostReason),
    /// Its last release is on the way: it is to be waited for at the gate.
    Over,
}

/// What the keeper has to do for a hold it looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Look again then.
    Later(Moment),
    Renew,
    Lose,
    /// An attempt or a release is overdue: somebody else must see it through.
    Finish,
    /// It needs nothing any more.
    Nothing,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) valid_until: Moment,
    watchdogs: u32,
    fixed: u32,
    /// Announced while still valid, by a shutdown.
    announced: Option<LostReason>,
    /// How the last release ended, once it did.
    pub(crate) outcome: Option<Result<(), crate::error::Error>>,
}

impl State {
    pub(crate) fn trying() -> Self {
        Self {
            phase: Phase::Trying,
            valid_until: Moment::default(),
            watchdogs: 0,
            fixed: 0,
            announced: None,
            outcome: None,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.watchdogs + self.fixed
    }

    /// Redis granted it. False when the news came too late to be of use.
    pub(crate) fn grant(&mut self, level: Level, valid_until: Moment, now: Moment) -> bool {
        if self.phase != Phase::Trying || now >= valid_until {
            return false;
        }
        self.phase = Phase::Held;
        self.valid_until = valid_until;
        self.add(level);
        true
    }

    /// A level more, counted from the moment it is sent. Its number.
    pub(crate) fn enter(&mut self, level: Level, now: Moment) -> Result<u32, NoEntry> {
        self.expire(now);
        match self.phase {
            Phase::Held => {
                self.add(level);
                Ok(self.count())
            }
            Phase::Lost(reason) => Err(NoEntry::Lost(reason)),
            Phase::Trying | Phase::Ending | Phase::Ended => Err(NoEntry::Over),
        }
    }

    /// Redis acknowledged a lease.
    pub(crate) fn prolong(&mut self, valid_until: Moment, now: Moment) {
        self.expire(now);
        if self.phase == Phase::Held {
            self.valid_until = self.valid_until.max(valid_until);
        }
    }

    /// A level less.
    pub(crate) fn leave(&mut self, level: Level, now: Moment) -> Left {
        self.expire(now);
        let levels = match level {
            Level::Watchdog => &mut self.watchdogs,
            Level::Fixed => &mut self.fixed,
        };
        *levels = levels.saturating_sub(1);
        match self.phase {
            Phase::Lost(reason) => Left::Lost(reason),
            Phase::Held if self.count() == 0 => {
                self.phase = Phase::Ending;
                Left::Last
            }
            _ => Left::Levels(self.count()),
        }
    }

    /// Whether this made it lost.
    pub(crate) fn lose(&mut self, reason: LostReason) -> bool {
        let held = self.phase == Phase::Held;
        if held {
            self.phase = Phase::Lost(reason);
        }
        held
    }

    /// Ends it without a release; false when other levels need it.
    pub(crate) fn let_expire(&mut self, level: Level) -> bool {
        let alone = self.phase == Phase::Held && self.count() == 1 && level == Level::Fixed;
        if alone {
            self.phase = Phase::Ended;
        }
        alone
    }

    /// What the keeper must do now, or when it must look again. Renewals due up to `horizon` are done
    /// now, so that they share a call; one that is due later is looked at `jitter` early.
    pub(crate) fn due(
        &self,
        plan: &RenewalPlan,
        now: Moment,
        horizon: Moment,
        jitter: Duration,
    ) -> Due {
        match self.phase {
            Phase::Trying | Phase::Ending => Due::Finish,
            Phase::Ended | Phase::Lost(_) => Due::Nothing,
            Phase::Held => {
                let last_moment = self.valid_until.minus(EARLY);
                if now >= last_moment {
                    return Due::Lose;
                }
                if self.watchdogs == 0 {
                    return Due::Later(last_moment);
                }
                let renewal = plan.renewal(self.valid_until);
                if horizon >= renewal {
                    Due::Renew
                } else {
                    Due::Later(renewal.minus(jitter).min(last_moment))
                }
            }
        }
    }

    /// Whether the watchdog is to keep it alive.
    pub(crate) fn is_watched(&self) -> bool {
        self.watchdogs > 0
    }

    /// A look at the clock before anything else: a hold whose validity ended is lost, whoever sees it
    /// first.
    fn expire(&mut self, now: Moment) {
        if self.phase == Phase::Held && now >= self.valid_until {
            self.phase = Phase::Lost(LostReason::Expired);
        }
    }

    fn add(&mut self, level: Level) {
        match level {
            Level::Watchdog => self.watchdogs += 1,
            Level::Fixed => self.fixed += 1,
        }
    }
}

/// When renewals are due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RenewalPlan {
    /// The watchdog's lease.
    pub(crate) lease: LeaseMs,
}

impl RenewalPlan {
    /// A third of the lease.
    pub(crate) fn period(&self) -> Duration {
        self.lease.duration() / 3
    }

    /// When less than two thirds of the watchdog's lease will be left.
    fn renewal(&self, valid_until: Moment) -> Moment {
        (valid_until + self.lease.drift()).minus(self.lease.duration() - self.period())
    }
}

/// A hold, shared by its guards, its gate and the keeper.
pub(crate) struct Hold {
    pub(crate) kind: Arc<dyn Kind>,
    /// The field in Redis: `<client uuid>:<number>`.
    pub(crate) id: Box<str>,
    pub(crate) number: u64,
    /// The lease it was first asked with.
    pub(crate) lease: LeaseMs,
    pub(crate) owner: Option<Weak<OwnerState>>,
    /// The task that asked for it, to tell a task that it waits for itself.
    pub(crate) task: Option<tokio::task::Id>,
    state: Mutex<State>,
    /// Validity for readers, 0 when there is none.
    valid_until: AtomicU64,
    tainted: AtomicBool,
    /// Whether the keeper already sees its release through.
    reaped: AtomicBool,
    /// Whether a last release was sent that nobody answered.
    pub(crate) release_unanswered: AtomicBool,
    /// When the keeper looks next; the schedule's.
    pub(crate) look_at: AtomicU64,
    changed: Notify,
}

impl Hold {
    pub(crate) fn trying(
        kind: Arc<dyn Kind>,
        id: Box<str>,
        number: u64,
        ticket: &Ticket,
    ) -> Arc<Self> {
        Arc::new(Self {
            kind,
            id,
            number,
            lease: ticket.lease,
            owner: ticket.owner.as_ref().map(Arc::downgrade),
            task: ticket.task,
            state: Mutex::new(State::trying()),
            valid_until: AtomicU64::new(0),
            tainted: AtomicBool::new(false),
            reaped: AtomicBool::new(false),
            release_unanswered: AtomicBool::new(false),
            look_at: AtomicU64::new(Moment::NEVER.as_nanos()),
            changed: Notify::new(),
        })
    }

    /// Lets `change` act on the state; readers and waiters see the result.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let before = (state.phase, state.announced);
        let result = change(&mut state);
        let valid_until = match state.phase {
            Phase::Held => state.valid_until,
            _ => Moment::default(),
        };
        self.valid_until
            .store(valid_until.as_nanos(), Ordering::Release);
        let changed = before != (state.phase, state.announced);
        drop(state);
        if changed {
            self.changed.notify_waiters();
        }
        result
    }

    /// Up to when the client vouches for it; the start of time when it does not.
    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    pub(crate) fn count(&self) -> u32 {
        self.with(|state| state.count())
    }

    /// Why it is lost, if it is (by the clock, too).
    pub(crate) fn lost_reason(&self, now: Moment) -> Option<LostReason> {
        self.with(|state| {
            state.expire(now);
            match state.phase {
                Phase::Lost(reason) => Some(reason),
                _ => None,
            }
        })
    }

    /// Tells `lost()` without taking the hold away.
    pub(crate) fn announce(&self, reason: LostReason) {
        self.with(|state| state.announced = Some(reason));
    }

    /// Resolves when the hold is lost, or its loss announced; never once it ended.
    pub(crate) async fn lost(&self) -> LostReason {
        self.wait_for(|state| match (state.phase, state.announced) {
            (Phase::Lost(reason), _) | (Phase::Held, Some(reason)) => Some(reason),
            _ => None,
        })
        .await
    }

    /// Resolves when the hold is lost.
    pub(crate) async fn lost_for_good(&self) -> LostReason {
        self.wait_for(|state| match state.phase {
            Phase::Lost(reason) => Some(reason),
            _ => None,
        })
        .await
    }

    /// Resolves when its last release was answered, or given up.
    pub(crate) async fn ended(&self) -> Result<(), crate::error::Error> {
        self.wait_for(|state| state.outcome.clone()).await
    }

    async fn wait_for<R>(&self, mut seen: impl FnMut(&State) -> Option<R>) -> R {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(result) = seen(&self.state.lock()) {
                return result;
            }
            changed.await;
        }
    }

    /// The last release was answered, or given up.
    pub(crate) fn end(&self, outcome: Result<(), crate::error::Error>) {
        self.with(|state| {
            state.phase = match state.phase {
                Phase::Lost(reason) => Phase::Lost(reason),
                _ => Phase::Ended,
            };
            state.outcome.get_or_insert(outcome);
        });
        self.changed.notify_waiters();
    }

    /// An acquire of this hold went unanswered: it may still run, whenever the server gets to it.
    pub(crate) fn taint(&self) {
        self.tainted.store(true, Ordering::Release);
    }

    /// Whether the caller is the first to see its release through.
    pub(crate) fn reap(&self) -> bool {
        !self.reaped.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Acquire)
    }
}
