//! The life of a hold, as a state machine with time as a value.
//!
//! ```text
//! Trying ──granted──▶ Held ──last level given back──▶ Ending ──▶ Ended
//!    │                 │
//!    └──not granted──▶ └──validity over, or not ours──▶ Lost
//!          Ended
//! ```
//!
//! 1. Validity is the largest of `sent + lease - drift` over acknowledged writes, because no write ever
//!    shortens a lease.
//! 2. `Lost` is final: nothing leads out of it, later good news is ignored.
//! 3. `Ending` is never lost and never renewed: from the moment the last release is decided.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, LostReason};
use crate::lease::{LeaseMs, Term};

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
    /// When the longest acknowledged lease ends.
    pub(crate) lease_ends: Moment,
    /// When an attempt or a last release is overdue.
    pub(crate) finish_by: Moment,
    watchdogs: u32,
    fixed: u32,
    /// The attempt was released by force while its answer was on the way: what that grants is void.
    undone: bool,
    /// Announced while still valid, by a shutdown.
    pub(crate) announced: Option<LostReason>,
    /// How the last release ended, once it did.
    pub(crate) outcome: Option<Result<(), Error>>,
}

impl State {
    pub(crate) fn trying() -> Self {
        Self {
            phase: Phase::Trying,
            valid_until: Moment::default(),
            lease_ends: Moment::default(),
            finish_by: Moment::default(),
            watchdogs: 0,
            fixed: 0,
            undone: false,
            announced: None,
            outcome: None,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.watchdogs + self.fixed
    }

    /// Redis granted it. False when the news came too late to be of use.
    pub(crate) fn grant(&mut self, level: Level, term: Term, now: Moment) -> bool {
        if self.phase != Phase::Trying || self.undone || now >= term.valid_until {
            return false;
        }
        self.phase = Phase::Held;
        self.valid_until = term.valid_until;
        self.lease_ends = term.ends_at;
        self.add(level);
        true
    }

    /// Redis had it, and does not any more, though its answer says that it was granted. False when it is no
    /// attempt any more.
    pub(crate) fn undo(&mut self) -> bool {
        let trying = self.phase == Phase::Trying;
        self.undone |= trying;
        trying
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
    pub(crate) fn prolong(&mut self, term: Term, now: Moment) {
        self.expire(now);
        if self.phase == Phase::Held {
            self.valid_until = self.valid_until.max(term.valid_until);
            self.lease_ends = self.lease_ends.max(term.ends_at);
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
        plan: RenewalPlan,
        now: Moment,
        horizon: Moment,
        jitter: Duration,
    ) -> Due {
        match self.phase {
            Phase::Trying | Phase::Ending if now < self.finish_by => Due::Later(self.finish_by),
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
    pub(crate) fn expire(&mut self, now: Moment) {
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
    pub(crate) fn period(self) -> Duration {
        self.lease.duration() / 3
    }

    /// When less than two thirds of the watchdog's lease will be left.
    fn renewal(self, valid_until: Moment) -> Moment {
        (valid_until + self.lease.drift()).minus(self.period() * 2)
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
