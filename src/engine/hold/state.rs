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
//! 3. `Ending` is never lost and never renewed: from the moment the last release is decided (I8).
//! 4. What a failed command may have done is decided here and nowhere else: a hold whose acquire went
//!    unanswered is *tainted*, and only a release that may have run makes "not there" a success (I2).
//! 5. One writer of the hold count is enough: who fails leaves it to the keeper, once.
//! 6. A *share* of a hold in Redis ends by itself at the end of its own leases; while the watchdog keeps one of its
//!    levels it lasts as long as the hold that it is of.
//! 7. A hold that strangers may cut short, as readers of other clients do, is *assured* for a while by each write that
//!    was acknowledged, however much longer its lease is; so it is written again in time.

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
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct HoldState {
    phase: Phase,
    valid_until: Moment,
    /// Up to when it would be valid by its leases alone: more than `valid_until` by 7 only.
    promised: Moment,
    lease_ends: Moment,
    /// When what was promised to the last who had it ends, if that is before its lease.
    owed_until: Option<Moment>,
    /// By 7.
    assured: Option<LeaseMs>,
    /// Whether it is a read.
    is_read: bool,
    finish_by: Moment,
    watchdogs: u32,
    fixed: u32,
    announced: Option<LostReason>,
    unanswered: Unanswered,
    /// Whether it ever had a level with a fixed lease.
    was_fixed: bool,
    /// The next one of this client has what Redis has of it.
    passed_on: bool,
    /// The attempt was released by force while its answer was on the way: what that grants is void.
    undone: bool,
    /// The keeper sees the last release through.
    claimed: bool,
    written: CountInRedis,
    outcome: Option<Result<(), Error>>,
}

/// What was sent, may have run, and was never answered.
#[derive(Debug, Default)]
struct Unanswered {
    acquire: bool,
    place: PlaceRequest,
    /// While the hold was valid.
    release: bool,
}

/// What is to give it a place in a queue that Redis keeps.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum PlaceRequest {
    #[default]
    Settled,
    Asked,
    /// It was still asked for when the last release was decided: that may run before it.
    AskedBehindRelease,
    /// That was answered: a release that is sent from now on takes it back.
    GivenBehindRelease,
}

impl HoldState {
    /// An attempt that is overdue at `finish_by`.
    pub(crate) fn trying(finish_by: Moment) -> Self {
        Self {
            phase: Phase::Trying,
            valid_until: Moment::default(),
            promised: Moment::default(),
            lease_ends: Moment::default(),
            owed_until: None,
            assured: None,
            is_read: false,
            finish_by,
            watchdogs: 0,
            fixed: 0,
            was_fixed: false,
            passed_on: false,
            undone: false,
            announced: None,
            unanswered: Unanswered::default(),
            claimed: false,
            written: CountInRedis::default(),
            outcome: None,
        }
    }

    /// A share with one level, held up to the end of `term` unless the watchdog keeps it.
    pub(crate) fn read(level: Level, term: Term) -> Self {
        let mut read = Self::trying(Moment::default());
        read.is_read = true;
        read.phase = Phase::Held;
        read.add(level);
        if level == Level::Fixed {
            read.vouch(term);
        }
        read
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Up to when the client vouches for it, while it is held. By 6, a share may have no end of its own.
    pub(crate) fn valid_until(&self) -> Moment {
        if self.is_read && self.is_watched() {
            Moment::NEVER
        } else {
            self.valid_until
        }
    }

    /// Up to when its own leases go, whatever the watchdog keeps.
    pub(crate) fn vouched_until(&self) -> Moment {
        self.valid_until
    }

    /// When the longest acknowledged lease ends.
    pub(crate) fn lease_ends(&self) -> Moment {
        self.lease_ends
    }

    /// When a hold that ran out may be released: its last holder has the whole lease to stop in. By 7, that of the
    /// last write that was acknowledged.
    pub(crate) fn owed_until(&self) -> Moment {
        let cut = self.assured.filter(|_| self.valid_until < self.promised);
        let ends = cut.map_or(self.lease_ends, |most| self.valid_until + most.drift());
        self.owed_until.unwrap_or(ends)
    }

    /// Nobody was promised more than up to `end`.
    pub(crate) fn owe(&mut self, end: Moment) {
        self.owed_until = Some(end.min(self.lease_ends));
    }

    /// When the attempt, or the last release, is overdue.
    pub(crate) fn finish_by(&self) -> Moment {
        self.finish_by
    }

    /// How the last release ended, once it did.
    pub(crate) fn outcome(&self) -> Option<&Result<(), Error>> {
        self.outcome.as_ref()
    }

    /// Announced as lost while still valid, by a shutdown.
    pub(crate) fn announced(&self) -> Option<LostReason> {
        self.announced
    }

    pub(crate) fn announce(&mut self, reason: LostReason) {
        self.announced = Some(reason);
    }

    pub(crate) fn count(&self) -> u32 {
        self.watchdogs + self.fixed
    }

    /// The attempt is sent once more; it is overdue at `finish_by`.
    pub(crate) fn try_again(&mut self, finish_by: Moment) {
        self.finish_by = finish_by;
    }

    /// An acquire of it went unanswered: it may run whenever the server gets to it.
    pub(crate) fn taint(&mut self) {
        self.unanswered.acquire = true;
    }

    pub(crate) fn is_tainted(&self) -> bool {
        let asked = matches!(
            self.unanswered.place,
            PlaceRequest::Asked | PlaceRequest::AskedBehindRelease
        );
        self.unanswered.acquire || asked
    }

    /// A place is being asked for it, or is not any more. Until that is answered it may come whenever the server gets
    /// to it.
    pub(crate) fn asks_for_place(&mut self, asks: bool) {
        self.unanswered.place = match (self.unanswered.place, asks) {
            (PlaceRequest::Settled | PlaceRequest::Asked, true) => PlaceRequest::Asked,
            (PlaceRequest::Settled | PlaceRequest::Asked, false) => PlaceRequest::Settled,
            (_, true) => PlaceRequest::AskedBehindRelease,
            (_, false) => PlaceRequest::GivenBehindRelease,
        };
    }

    /// Nobody wants what the attempt got, or may still get: a last release follows it.
    pub(crate) fn give_up(&mut self) {
        if self.phase == Phase::Trying {
            self.begin_ending();
        }
    }

    fn begin_ending(&mut self) {
        self.phase = Phase::Ending;
        if self.unanswered.place == PlaceRequest::Asked {
            self.unanswered.place = PlaceRequest::AskedBehindRelease;
        }
    }

    /// Whether the last release has to be sent once more, since a place may have been given behind it. Asked once.
    pub(crate) fn takes_place_back(&mut self) -> bool {
        let given = self.unanswered.place == PlaceRequest::GivenBehindRelease;
        if given {
            self.unanswered.place = PlaceRequest::Settled;
        }
        given
    }

    /// Whether the keeper is to see the last release through: true for the first who asks.
    pub(crate) fn claim_release(&mut self) -> bool {
        !std::mem::replace(&mut self.claimed, true)
    }

    /// A last release that was sent at `sent_at` failed, and may have run all the same.
    pub(crate) fn release_may_have_run(&mut self, sent_at: Moment) {
        self.unanswered.release |= sent_at < self.valid_until;
    }

    /// What it means that a last release found nothing.
    pub(crate) fn found_nothing(&self) -> Result<(), LostReason> {
        // By I2: an earlier one was executed.
        if self.unanswered.release {
            Ok(())
        } else {
            Err(LostReason::Missing)
        }
    }

    /// The last release was answered, or given up; the first word stands.
    pub(crate) fn end(&mut self, outcome: Result<(), Error>) {
        if !matches!(self.phase, Phase::Lost(_)) {
            self.phase = Phase::Ended;
        }
        self.outcome.get_or_insert(outcome);
    }

    /// A write of the hold count begins.
    pub(crate) fn write_begins(&mut self) {
        self.written.begins();
    }

    /// Something is to be written that nobody writes yet. Whether the keeper has to.
    pub(crate) fn write_is_due(&mut self) -> bool {
        self.write_begins();
        self.write_ends(None, false)
    }

    /// A write of `count`, or of what has no number, is over. Whether the keeper has to write it.
    pub(crate) fn write_ends(&mut self, count: Option<u32>, acknowledged: bool) -> bool {
        let present = count.is_none_or(|count| count == self.count());
        self.written.ends(acknowledged, acknowledged && present);
        self.phase == Phase::Held && self.written.claim()
    }

    /// Whether the keeper, who writes the count, has to go on.
    pub(crate) fn still_needs_count(&mut self) -> bool {
        self.written.goes_on(self.phase == Phase::Held)
    }

    /// Redis granted it. False when the news came too late to be of use.
    pub(crate) fn grant(&mut self, level: Level, term: Term, now: Moment) -> bool {
        if self.phase != Phase::Trying || self.undone || now >= term.valid_until {
            return false;
        }
        self.phase = Phase::Held;
        self.vouch(term);
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
            self.vouch(term);
        }
    }

    fn vouch(&mut self, term: Term) {
        self.promised = self.promised.max(term.valid_until);
        self.lease_ends = self.lease_ends.max(term.ends_at);
        let sure = self.sure_until(term.sent_at).min(term.valid_until);
        self.valid_until = self.valid_until.max(sure);
    }

    /// By 7: up to when a write that was sent at `sent_at` counts.
    fn sure_until(&self, sent_at: Moment) -> Moment {
        let most = self.assured.map(|most| most.term(sent_at).valid_until);
        most.unwrap_or(Moment::NEVER)
    }

    /// By 7: strangers may cut it short from now on; the last write that was acknowledged was sent at `sent_at`.
    pub(crate) fn assure(&mut self, most: LeaseMs, sent_at: Moment) {
        self.assured = Some(most);
        self.valid_until = self.valid_until.min(self.sure_until(sent_at));
    }

    /// By 7: Redis acknowledged all that was promised, in a command that was sent at `sent_at`.
    pub(crate) fn asserted(&mut self, sent_at: Moment, now: Moment) {
        self.expire(now);
        if self.phase == Phase::Held && self.assured.is_some() {
            let sure = self.sure_until(sent_at).min(self.promised);
            self.valid_until = self.valid_until.max(sure);
        }
    }

    /// Whether one more level needs no word of Redis: all that it asks for, which is `term`, is promised already.
    pub(crate) fn covers(&self, level: Level, term: Term, plan: RenewalPlan, now: Moment) -> bool {
        let enough = match level {
            Level::Watchdog => now < plan.renewal(self.valid_until),
            Level::Fixed => term.valid_until <= self.promised,
        };
        self.phase == Phase::Held && now < self.valid_until && enough
    }

    /// The hold that this is a share of is promised for so long. A share that the watchdog leaves has that.
    pub(crate) fn carried_to(&mut self, valid_until: Moment, lease_ends: Moment) {
        if self.phase == Phase::Held && self.is_watched() {
            self.valid_until = self.valid_until.max(valid_until);
            self.lease_ends = self.lease_ends.max(lease_ends);
        }
    }

    /// A level less. A last release is overdue at `finish_by`.
    pub(crate) fn leave(&mut self, level: Level, now: Moment, finish_by: Moment) -> Left {
        self.expire(now);
        let levels = match level {
            Level::Watchdog => &mut self.watchdogs,
            Level::Fixed => &mut self.fixed,
        };
        *levels = levels.saturating_sub(1);
        match self.phase {
            Phase::Lost(reason) => Left::Lost(reason),
            Phase::Held if self.count() == 0 => {
                self.begin_ending();
                self.finish_by = finish_by;
                Left::Last
            }
            _ => Left::Levels(self.count()),
        }
    }

    /// Its last level was given back, and somebody else of this client goes on with what Redis has of it: the state of
    /// that one, with one level under the watchdog. `None` when anything of it is uncertain, may last for longer than the
    /// watchdog says, or is about to be renewed.
    pub(crate) fn pass_on(&mut self, plan: RenewalPlan, now: Moment) -> Option<Self> {
        let certain = !self.is_tainted() && self.written.is_settled() && self.announced.is_none();
        let is_over = self.phase == Phase::Ending && !self.was_fixed;
        if !certain || !is_over || now >= plan.renewal(self.valid_until) {
            return None;
        }
        self.end(Ok(()));
        self.passed_on = true;
        let mut next = Self::trying(self.finish_by);
        next.phase = Phase::Held;
        (next.valid_until, next.promised) = (self.valid_until, self.promised);
        next.lease_ends = self.lease_ends;
        next.add(Level::Watchdog);
        Some(next)
    }

    /// Up to when somebody else of this client may have what Redis has of it.
    pub(crate) fn passed_until(&self) -> Option<Moment> {
        self.passed_on.then_some(self.valid_until)
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
                if self.is_read && self.is_watched() {
                    return Due::Nothing;
                }
                let last_moment = self.valid_until.minus(EARLY);
                if now >= last_moment {
                    return Due::Lose;
                }
                if !self.is_watched() && self.promised <= self.valid_until {
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
        if self.phase == Phase::Held && now >= self.valid_until() {
            self.phase = Phase::Lost(LostReason::Expired);
        }
    }

    fn add(&mut self, level: Level) {
        match level {
            Level::Watchdog => self.watchdogs += 1,
            Level::Fixed => {
                self.fixed += 1;
                self.was_fixed = true;
            }
        }
    }
}

/// What Redis has of a hold count: whether the last write was acknowledged, as far as anybody can know.
///
/// Levels come and go at the same time, and their writes travel over several connections. Only a write that was
/// alone, was acknowledged, and wrote the present count makes Redis' count the present one.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct CountInRedis {
    in_flight: u32,
    /// Writes overlapped, so nobody knows which was executed last.
    overlapped: bool,
    /// The count in Redis may be another.
    stale: bool,
    /// The keeper writes it.
    claimed: bool,
    /// A write was never acknowledged, and may be executed whenever the server gets to it.
    doubtful: bool,
}

impl CountInRedis {
    pub(crate) fn begins(&mut self) {
        self.overlapped |= self.in_flight > 0;
        self.in_flight += 1;
        self.stale = true;
    }

    /// A write is over; `good` when it was `acknowledged` and wrote the present count.
    pub(crate) fn ends(&mut self, acknowledged: bool, good: bool) {
        self.doubtful |= !acknowledged;
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.in_flight == 0 {
            let overlapped = std::mem::take(&mut self.overlapped);
            self.stale = overlapped || !good;
        }
    }

    /// Whether Redis has the present count, and no write can change it any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.in_flight == 0 && !self.stale && !self.doubtful
    }

    /// Whether the keeper has to write it: true for the first who asks.
    pub(crate) fn claim(&mut self) -> bool {
        let needed = self.in_flight == 0 && self.stale;
        needed && !std::mem::replace(&mut self.claimed, true)
    }

    /// Whether the keeper has to go on, for a hold that is `held`.
    pub(crate) fn goes_on(&mut self, held: bool) -> bool {
        self.claimed = held && self.stale;
        self.claimed
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
#[path = "state_rule_tests.rs"]
mod rule_tests;
#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
