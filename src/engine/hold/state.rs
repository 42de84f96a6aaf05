//! The life of a hold, as a state machine: time is an argument, and nothing here waits or sends.
//!
//! ```text
//! Trying ──granted──▶ Held ──last level given back──▶ Ending ──▶ Ended
//!    │                 │
//!    └──not granted──▶ └──validity over, or not ours──▶ Lost
//!          Ended
//! ```
//!
//! 1. A hold is valid until the latest `sent + lease - drift` of its acknowledged writes, because no write ever
//!    shortens a lease.
//! 2. `Lost` is final: no later acknowledgement revives the hold.
//! 3. From the moment the last release is decided, the hold is `Ending`: it is never lost and never renewed (I8).
//! 4. Only this file decides what a failed command may have done. A hold whose acquire went unanswered is *tainted*. If
//!    a release finds no hold, that is a success only if an earlier release may have run (I2).
//! 5. One writer of the hold count is enough: a caller whose write failed leaves it to the keeper, once.
//! 6. A *read* of a shared hold ends at the end of its own leases. While the watchdog keeps one of its levels, it lasts
//!    as long as the shared hold.
//! 7. Readers of other clients may shorten the lease of a shared hold in Redis. So each acknowledged write *assures*
//!    the hold for a limited time only, even if its lease is longer, and the keeper writes it again before that.
//! 8. A lease does not show that Redis still has the hold: somebody may have deleted its key. So a hold under the watchdog
//!    is asked for a third of the watchdog's lease after the send of the last command that *found* it, however long it is
//!    valid.
//! 9. The watchdog keeps a *limited* level up to a given end. For a hold that only such levels keep, a renewal asks for
//!    what is left until the latest of their ends, given back or not, and vouches for no more.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, LostReason};
use crate::lease::{LeaseMs, Term};

/// How long before the end of its validity a hold is declared lost, so that nobody learns of the loss too late.
pub(crate) const EARLY: Duration = Duration::from_millis(2);

/// Leases have whole milliseconds.
const ROUNDED: Duration = Duration::from_millis(1);
/// What keeps a level alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Watchdog,
    Fixed,
    /// The watchdog keeps it up to the end of the hold's limit (9).
    Limited,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Trying,
    Held,
    Ending,
    Ended,
    Lost(LostReason),
}

/// How a hold ended: [`HoldView::ended`](crate::HoldView::ended).
///
/// ```no_run
/// # async fn example(guard: watchlock::LockGuard) {
/// use watchlock::Ended;
///
/// let hold = guard.hold();
/// tokio::spawn(async move {
///     match hold.ended().await {
///         Ended::Lost(reason) => eprintln!("stop at once: {reason}"),
///         _ => println!("in order"),
///     }
/// });
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// The last level was given back, by [`unlock`](crate::LockGuard::unlock) or by a drop. The release may still be under
    /// way.
    Released,
    /// The lock was left to its lease: [`let_expire`](crate::LockGuard::let_expire).
    Left,
    /// The hold was lost.
    Lost(LostReason),
}

/// What giving a level back leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// So many others are left. The count has to be written.
    Levels(u32),
    /// It was the last one. The release has to be sent.
    Last,
    /// The hold was lost before.
    Lost(LostReason),
}

/// What the keeper has to do for a hold it looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Look again at this time.
    Later(Moment),
    Renew,
    Lose,
    /// An attempt or a release is overdue: the keeper must complete it.
    Finish,
    /// The hold needs nothing any more.
    Nothing,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct HoldState {
    phase: Phase,
    held_since: Moment,
    valid_until: Moment,
    /// Up to when it would be valid by its leases alone. Later than `valid_until` only if 7 limits that (an assured
    /// hold).
    promised: Moment,
    lease_ends: Moment,
    /// When the last command was sent that found it in Redis (8).
    pub(super) found_at: Moment,
    /// When its node may have lost it, during the attempt. What was found before that does not count.
    pub(super) doubted_at: Moment,
    /// When the promise to the last holder ends, if that is before the end of the lease.
    owed_until: Option<Moment>,
    /// For how long an acknowledged write assures the hold, if others may shorten its lease (7).
    assured: Option<LeaseMs>,
    is_read: bool,
    finish_by: Moment,
    watchdogs: u32,
    fixed: u32,
    limited: u32,
    /// The latest end of its limited levels (9).
    limit: Moment,
    /// An acquire was sent that may have run, but was never answered.
    acquire_unanswered: bool,
    /// As `acquire_unanswered`, of a release that was sent while the hold was valid.
    release_unanswered: bool,
    place: PlaceRequest,
    /// The longest lease that was asked for after the acquire, answered or not.
    longest_asked: Duration,
    /// Whether it ever had a level whose lease has an end.
    was_fixed: bool,
    /// The next waiter of this client took over the hold in Redis.
    passed_on: bool,
    /// The attempt was released by force while its answer was under way, so a grant in that answer is void.
    undone: bool,
    /// The keeper completes the last release.
    claimed: bool,
    count_in_redis: CountInRedis,
    outcome: Option<Result<(), Error>>,
}

/// The request for a place in a queue that Redis keeps.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum PlaceRequest {
    #[default]
    Settled,
    Asked,
    /// It was unanswered when the last release was decided, so the release may run before it.
    AskedBehindRelease,
    /// It was answered after that: a release that is sent from now on takes the place back.
    GivenBehindRelease,
}

impl HoldState {
    /// An attempt that is overdue at `finish_by`.
    pub(crate) fn trying(finish_by: Moment) -> Self {
        Self {
            finish_by,
            ..Self::default()
        }
    }

    /// A read with one level. It is held up to the end of `term`, unless the watchdog keeps it.
    pub(crate) fn read(level: Level, term: Term) -> Self {
        let mut read = Self::trying(Moment::default());
        read.is_read = true;
        read.phase = Phase::Held;
        read.held_since = term.sent_at;
        read.add(level);
        if level == Level::Fixed {
            read.vouch(term);
        }
        read
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// When the command was sent that granted it, or since when it has it from another.
    pub(crate) fn held_since(&self) -> Moment {
        self.held_since
    }

    /// Whether it was granted and its lease is not over: Redis should have it, unless somebody took it away.
    pub(crate) fn is_due_in_redis(&self, now: Moment) -> bool {
        self.held_since != Moment::default() && now < self.lease_ends
    }

    /// Up to when the client vouches for it, while it is held. A read that the watchdog keeps has no end of its own
    /// (6).
    pub(crate) fn valid_until(&self) -> Moment {
        if self.is_read && self.is_watched() {
            Moment::NEVER
        } else {
            self.valid_until
        }
    }

    /// Up to when it is valid by its own leases, whether or not the watchdog keeps it.
    pub(crate) fn vouched_until(&self) -> Moment {
        self.valid_until
    }

    /// When the longest acknowledged lease ends.
    pub(crate) fn lease_ends(&self) -> Moment {
        self.lease_ends
    }

    /// When an expired hold may be released. Its last holder has the whole lease to stop in; if the hold is assured
    /// (7), only the assured time of the last acknowledged write.
    pub(crate) fn owed_until(&self) -> Moment {
        let cut = self.assured.filter(|_| self.valid_until < self.promised);
        let ends = cut.map_or(self.lease_ends, |most| self.valid_until + most.drift());
        self.owed_until.unwrap_or(ends)
    }

    /// Records that nobody was promised more than up to `end`.
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

    /// How the hold ended, once it did. A level that was left to its lease is never taken off.
    pub(crate) fn how_it_ended(&self) -> Option<Ended> {
        match self.phase {
            Phase::Trying | Phase::Held => None,
            Phase::Lost(reason) => Some(Ended::Lost(reason)),
            Phase::Ended if self.count() > 0 => Some(Ended::Left),
            Phase::Ending | Phase::Ended => Some(Ended::Released),
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.watchdogs + self.fixed + self.limited
    }

    /// The attempt is overdue at `finish_by`, and not before. The last release keeps its own time.
    pub(crate) fn finish_later(&mut self, finish_by: Moment) {
        if self.phase == Phase::Trying {
            self.finish_by = finish_by;
        }
    }

    /// An acquire went unanswered. The server may run it at any later time.
    pub(crate) fn taint(&mut self) {
        self.acquire_unanswered = true;
    }

    /// A re-entry or a renewal asks for `lease`. Redis may grant it at any later time, whether or not that is answered.
    pub(crate) fn asks_for(&mut self, lease: LeaseMs) {
        self.longest_asked = self.longest_asked.max(lease.duration());
    }

    pub(crate) fn longest_asked(&self) -> Duration {
        self.longest_asked
    }

    pub(crate) fn is_tainted(&self) -> bool {
        let asked = matches!(
            self.place,
            PlaceRequest::Asked | PlaceRequest::AskedBehindRelease
        );
        self.acquire_unanswered || asked
    }

    /// A request for a place was sent (`asks`) or answered. Until it is answered, the server may run it at any time.
    pub(crate) fn asks_for_place(&mut self, asks: bool) {
        self.place = match (self.place, asks) {
            (PlaceRequest::Settled | PlaceRequest::Asked, true) => PlaceRequest::Asked,
            (PlaceRequest::Settled | PlaceRequest::Asked, false) => PlaceRequest::Settled,
            (_, true) => PlaceRequest::AskedBehindRelease,
            (_, false) => PlaceRequest::GivenBehindRelease,
        };
    }

    /// Nobody wants the result of the attempt any more: a last release follows it.
    pub(crate) fn give_up(&mut self) {
        if self.phase == Phase::Trying {
            self.begin_ending();
        }
    }

    fn begin_ending(&mut self) {
        self.phase = Phase::Ending;
        if self.place == PlaceRequest::Asked {
            self.place = PlaceRequest::AskedBehindRelease;
        }
    }

    /// Whether the last release has to be sent once more, because Redis may have given a place after it ran. Returns
    /// true once.
    pub(crate) fn takes_place_back(&mut self) -> bool {
        let given = self.place == PlaceRequest::GivenBehindRelease;
        if given {
            self.place = PlaceRequest::Settled;
        }
        given
    }

    /// Claims the last release for the keeper. Returns true for the first caller only.
    pub(crate) fn claim_release(&mut self) -> bool {
        !std::mem::replace(&mut self.claimed, true)
    }

    /// A last release that was sent at `sent_at` failed, but may have run.
    pub(crate) fn release_may_have_run(&mut self, sent_at: Moment) {
        self.release_unanswered |= sent_at < self.valid_until;
    }

    /// The result of a last release that found no hold.
    pub(crate) fn found_nothing(&self) -> Result<(), LostReason> {
        // An earlier release ran (I2: a repeat that finds nothing is a success).
        if self.release_unanswered {
            Ok(())
        } else {
            Err(LostReason::Missing)
        }
    }

    /// The last release was answered, or given up. The first outcome stands.
    pub(crate) fn end(&mut self, outcome: Result<(), Error>) {
        if !matches!(self.phase, Phase::Lost(_)) {
            self.phase = Phase::Ended;
        }
        self.outcome.get_or_insert(outcome);
    }

    pub(crate) fn write_begins(&mut self) {
        self.count_in_redis.begins();
    }

    /// Something has to be written, and no caller writes it. Returns whether the keeper has to.
    pub(crate) fn write_is_due(&mut self) -> bool {
        self.write_begins();
        self.write_ends(None, false)
    }

    /// A write of `count`, or of a downgrade (`None`), is over. Returns whether the keeper has to write.
    pub(crate) fn write_ends(&mut self, count: Option<u32>, acknowledged: bool) -> bool {
        let present = count.is_none_or(|count| count == self.count());
        self.count_in_redis
            .ends(acknowledged, acknowledged && present);
        self.phase == Phase::Held && self.count_in_redis.claim()
    }

    /// The count that the keeper has to go on writing, if it has to. Both are read at once: if the hold ended in between,
    /// the count would be 0, and to write 0 releases the hold.
    pub(crate) fn still_needs_count(&mut self) -> Option<u32> {
        let goes_on = self.count_in_redis.goes_on(self.phase == Phase::Held);
        goes_on.then(|| self.count())
    }

    /// As [`still_needs_count`](Self::still_needs_count), and the write begins: nobody may find the count settled before.
    pub(crate) fn begins_needed_count(&mut self) -> Option<u32> {
        self.still_needs_count().inspect(|_| self.write_begins())
    }

    /// Redis granted it. Returns false if the grant came too late to be of use.
    pub(crate) fn grant(&mut self, level: Level, term: Term, now: Moment) -> bool {
        if self.phase != Phase::Trying || self.undone || now >= term.valid_until {
            return false;
        }
        self.phase = Phase::Held;
        self.held_since = term.sent_at;
        self.vouch(term);
        self.add(level);
        true
    }

    /// A forced release ended the hold in Redis before the grant arrived. Returns false if it is no attempt any more.
    pub(crate) fn undo(&mut self) -> bool {
        let trying = self.phase == Phase::Trying;
        self.undone |= trying;
        trying
    }

    /// Its limited levels last until `end` (9).
    pub(crate) fn limit(&mut self, end: Moment) {
        self.limit = self.limit.max(end);
    }

    /// For how long a renewal that is sent now asks, if the watchdog keeps it.
    pub(crate) fn renewal_lease(&self, watchdog: LeaseMs, now: Moment) -> Option<LeaseMs> {
        if self.is_watched() {
            return Some(watchdog);
        }
        let rest = now.until(self.limit);
        let is_kept = self.limited > 0 && rest >= ROUNDED;
        is_kept.then(|| watchdog.min(LeaseMs::of(rest)))
    }

    /// A command that was sent at `sent_at` found it in Redis, and renewed it for `lease` if the watchdog keeps it.
    pub(crate) fn found(&mut self, lease: Option<LeaseMs>, sent_at: Moment, now: Moment) {
        match lease {
            Some(lease) => self.renewed(lease.term(sent_at), now),
            None => self.asserted(sent_at, now),
        }
    }

    /// Redis acknowledged a renewal, which may have been sent later than its lease was counted from (9).
    fn renewed(&mut self, mut term: Term, now: Moment) {
        if self.limited > 0 && !self.is_watched() {
            term.valid_until = term.valid_until.min(self.limit);
        }
        self.prolong(term, now);
    }

    /// Adds a level. It counts from before its command is sent. Returns the new count; none if the last release is under
    /// way, so that the caller has to wait at the gate.
    pub(crate) fn enter(&mut self, level: Level, now: Moment) -> Result<Option<u32>, LostReason> {
        self.expire(now);
        match self.phase {
            Phase::Held => {
                self.add(level);
                Ok(Some(self.count()))
            }
            Phase::Lost(reason) => Err(reason),
            Phase::Trying | Phase::Ending | Phase::Ended => Ok(None),
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
        self.found_at = self.found_at.max(term.sent_at);
        let sure = self.sure_until(term.sent_at).min(term.valid_until);
        self.valid_until = self.valid_until.max(sure);
    }

    /// Up to when a write that was sent at `sent_at` assures the hold (7).
    fn sure_until(&self, sent_at: Moment) -> Moment {
        let most = self.assured.map(|most| most.term(sent_at).valid_until);
        most.unwrap_or(Moment::NEVER)
    }

    /// Other clients may shorten its lease from now on, so a write assures it for `most` only (7). The last
    /// acknowledged write was sent at `sent_at`.
    pub(crate) fn assure(&mut self, most: LeaseMs, sent_at: Moment) {
        self.assured = Some(most);
        self.valid_until = self.valid_until.min(self.sure_until(sent_at));
    }

    /// A command that was sent at `sent_at` assured the hold again (7): Redis acknowledged the whole promised lease, which
    /// ends when it did before, however late the command was sent.
    fn asserted(&mut self, sent_at: Moment, now: Moment) {
        self.expire(now);
        if self.phase != Phase::Held {
            return;
        }
        self.found_at = self.found_at.max(sent_at);
        if self.assured.is_some() {
            let sure = self.sure_until(sent_at).min(self.promised);
            self.valid_until = self.valid_until.max(sure);
        }
    }

    /// Whether one more level with `term` needs no command, because acknowledged leases cover it already.
    pub(crate) fn covers(&self, level: Level, term: Term, watchdog: LeaseMs, now: Moment) -> bool {
        let enough = match level {
            Level::Watchdog => now < watchdog.renewal(self.valid_until),
            Level::Fixed | Level::Limited => term.valid_until <= self.promised,
        };
        self.phase == Phase::Held && now < self.valid_until && enough
    }

    /// The shared hold of this read is valid up to `valid_until`. The read keeps that validity after its last level
    /// under the watchdog is gone.
    pub(crate) fn carried_to(&mut self, valid_until: Moment, lease_ends: Moment) {
        if self.phase == Phase::Held && self.is_watched() {
            self.valid_until = self.valid_until.max(valid_until);
            self.lease_ends = self.lease_ends.max(lease_ends);
        }
    }

    /// Removes a level. If it is the last one, its release is overdue at `finish_by`.
    pub(crate) fn leave(&mut self, level: Level, now: Moment, finish_by: Moment) -> Left {
        self.expire(now);
        let levels = match level {
            Level::Watchdog => &mut self.watchdogs,
            Level::Fixed => &mut self.fixed,
            Level::Limited => &mut self.limited,
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

    /// Passes the hold in Redis on to another waiter of this client, after the last level was given back. Returns the
    /// state of the new hold, with one level under the watchdog. Returns `None` if anything is uncertain, if the lease
    /// may be longer than the watchdog's, or if a renewal is due.
    pub(crate) fn pass_on(&mut self, watchdog: LeaseMs, now: Moment) -> Option<Self> {
        let certain = !self.is_tainted() && self.count_in_redis.is_settled();
        let is_over = self.phase == Phase::Ending && !self.was_fixed;
        if !certain || !is_over || now >= watchdog.renewal(self.valid_until) {
            return None;
        }
        self.end(Ok(()));
        self.passed_on = true;
        let mut next = Self::trying(self.finish_by);
        next.phase = Phase::Held;
        next.held_since = now;
        (next.valid_until, next.promised) = (self.valid_until, self.promised);
        (next.lease_ends, next.found_at) = (self.lease_ends, self.found_at);
        next.doubted_at = self.doubted_at;
        next.add(Level::Watchdog);
        Some(next)
    }

    /// A command may take the end off its lease, so it is not passed on.
    pub(crate) fn may_never_end(&mut self) {
        self.was_fixed = true;
    }

    /// Up to when another waiter of this client may have the hold in Redis, if it was passed on.
    pub(crate) fn passed_until(&self) -> Option<Moment> {
        self.passed_on.then_some(self.valid_until)
    }

    /// Declares it lost. Returns whether it was held.
    pub(crate) fn lose(&mut self, reason: LostReason) -> bool {
        let held = self.phase == Phase::Held;
        if held {
            self.phase = Phase::Lost(reason);
        }
        held
    }

    /// Ends it without a release. Returns false if other levels need it.
    pub(crate) fn let_expire(&mut self, level: Level) -> bool {
        let alone = self.phase == Phase::Held && self.count() == 1 && level == Level::Fixed;
        if alone {
            self.phase = Phase::Ended;
        }
        alone
    }

    /// What the keeper must do now, or when it must look again. A renewal that is due up to `horizon` is done now, so
    /// that several share a write; for a later one the keeper looks `jitter` early.
    pub(crate) fn due(
        &self,
        watchdog: LeaseMs,
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
                if self.found_at < self.doubted_at {
                    return Due::Renew;
                }
                let is_kept = self.is_watched() || self.limited > 0;
                if !is_kept && self.promised <= self.valid_until {
                    return Due::Later(last_moment);
                }
                let mut renewal = watchdog.renewal(self.valid_until);
                if is_kept {
                    let asked = self.found_at + watchdog.period();
                    // What reaches up to the limit cannot grow.
                    let is_full = !self.is_watched() && self.lease_ends + ROUNDED >= self.limit;
                    renewal = if is_full { asked } else { renewal.min(asked) };
                }
                if horizon >= renewal {
                    Due::Renew
                } else {
                    Due::Later(renewal.minus(jitter).min(last_moment))
                }
            }
        }
    }

    /// Whether the watchdog keeps it alive.
    pub(crate) fn is_watched(&self) -> bool {
        self.watchdogs > 0
    }

    /// Declares it lost if its validity has ended.
    pub(crate) fn expire(&mut self, now: Moment) {
        if self.phase == Phase::Held && now >= self.valid_until() {
            self.phase = Phase::Lost(LostReason::Expired);
        }
    }

    fn add(&mut self, level: Level) {
        self.was_fixed |= level != Level::Watchdog;
        match level {
            Level::Watchdog => self.watchdogs += 1,
            Level::Fixed => self.fixed += 1,
            Level::Limited => self.limited += 1,
        }
    }
}

/// Whether Redis has the present hold count, as far as this client can know.
///
/// Levels come and go concurrently, and their writes travel over several connections. Redis certainly has the present
/// count only after a write that did not overlap another one, was acknowledged, and wrote the present count.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct CountInRedis {
    in_flight: u32,
    /// Writes overlapped, so nobody knows which ran last.
    overlapped: bool,
    /// The count in Redis may differ from the present one.
    stale: bool,
    /// The keeper writes the count.
    claimed: bool,
    /// A write was never acknowledged. The server may run it at any later time.
    doubtful: bool,
}

impl CountInRedis {
    pub(crate) fn begins(&mut self) {
        self.overlapped |= self.in_flight > 0;
        self.in_flight += 1;
        self.stale = true;
    }

    /// A write is over. `good`: it was `acknowledged` and wrote the present count.
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

    /// Claims the write for the keeper if one is needed. Returns true for the first caller only.
    pub(crate) fn claim(&mut self) -> bool {
        let needed = self.in_flight == 0 && self.stale;
        needed && !std::mem::replace(&mut self.claimed, true)
    }

    /// Whether the keeper has to go on writing, for a hold that is `held` or not.
    pub(crate) fn goes_on(&mut self, held: bool) -> bool {
        self.claimed = held && self.stale;
        self.claimed
    }
}

#[cfg(test)]
#[path = "state_rule_tests.rs"]
mod rule_tests;
#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
