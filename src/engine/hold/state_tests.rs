//! The hold's life and its renewals under random events, with time as a value.

use std::hash::{Hash, Hasher};
use std::mem::discriminant;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const CASES: u32 = 10_000;

/// All of it: the model compares states.
impl Hash for HoldState {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            phase,
            // Nothing is decided by it.
            held_since: _,
            valid_until,
            promised,
            lease_ends,
            found_at,
            doubted_at,
            owed_until,
            assured,
            is_read,
            finish_by,
            watchdogs,
            fixed,
            limited,
            limit,
            acquire_unanswered,
            release_unanswered,
            place,
            longest_asked: _,
            was_fixed,
            passed_on,
            undone,
            claimed,
            count_in_redis,
            outcome,
        } = self;
        discriminant(phase).hash(hasher);
        if let Phase::Lost(reason) = phase {
            reason.hash(hasher);
        }
        (valid_until, promised, lease_ends).hash(hasher);
        (found_at, doubted_at).hash(hasher);
        (owed_until, finish_by, assured.map(LeaseMs::as_millis)).hash(hasher);
        (watchdogs, fixed, limited, limit).hash(hasher);
        let flags = [*is_read, *was_fixed, *passed_on, *undone, *claimed];
        flags.hash(hasher);
        (acquire_unanswered, release_unanswered, discriminant(place)).hash(hasher);
        let CountInRedis {
            in_flight,
            overlapped,
            stale,
            claimed: count_is_claimed,
            doubtful,
        } = count_in_redis;
        (in_flight, overlapped, stale, count_is_claimed, doubtful).hash(hasher);
        if let Some(outcome) = outcome {
            format!("{outcome:?}").hash(hasher);
        }
    }
}

fn lease(ms: u64) -> LeaseMs {
    LeaseMs::from_millis(ms)
}

/// A lease without drift.
fn term(valid_until: Moment) -> Term {
    Term {
        sent_at: Moment::default(),
        valid_until,
        ends_at: valid_until,
    }
}

fn start() -> Moment {
    Moment::default() + Duration::from_secs(100)
}

fn levels() -> impl Strategy<Value = Level> {
    prop_oneof![
        Just(Level::Watchdog),
        Just(Level::Fixed),
        Just(Level::Limited)
    ]
}

const PLAN: LeaseMs = LeaseMs::from_millis(900);

#[derive(Debug, Clone)]
enum Event {
    Pass(u64),
    Grant(Level, u64),
    Enter(Level, u64),
    Leave(usize),
    Prolong(u64),
    /// A renewal that is sent so much later than its lease was counted from.
    Renew(u64),
    Lose,
    Undo,
    LetExpire,
    Look,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (0u64..400).prop_map(Event::Pass),
        2 => (levels(), 1u64..2_000).prop_map(|(level, ms)| Event::Grant(level, ms)),
        3 => (levels(), 1u64..4_000).prop_map(|(level, ms)| Event::Enter(level, ms)),
        4 => any::<usize>().prop_map(Event::Leave),
        3 => (1u64..2_000).prop_map(Event::Prolong),
        3 => (0u64..100).prop_map(Event::Renew),
        1 => Just(Event::Lose),
        1 => Just(Event::Undo),
        1 => Just(Event::LetExpire),
        2 => Just(Event::Look),
    ];
    proptest::collection::vec(event, 1..60)
}

/// The machine, and what must be true of it.
struct Driven {
    state: HoldState,
    now: Moment,
    levels: Vec<Level>,
    /// The longest validity that was acknowledged.
    promised: Moment,
    /// The latest end of a limited level.
    limit: Moment,
    /// Left to its lease: the level is not counted off.
    left_alone: bool,
    /// Released by force before it was granted.
    undone: bool,
    releases: u32,
}

impl Driven {
    fn new() -> Self {
        Self {
            state: HoldState::trying(start()),
            now: start(),
            levels: Vec::new(),
            promised: Moment::default(),
            limit: Moment::default(),
            left_alone: false,
            undone: false,
            releases: 0,
        }
    }

    fn apply(&mut self, event: &Event) {
        let now = self.now;
        let held = self.state.phase == Phase::Held;
        let valid = held && now < self.state.valid_until;
        match *event {
            Event::Pass(ms) => self.now = now + Duration::from_millis(ms),
            Event::Grant(level, ms) => self.grant(level, ms),
            Event::Enter(level, ms) => {
                let entered = self.state.enter(level, now);
                let is_in = matches!(entered, Ok(Some(_)));
                assert_eq!(is_in, valid, "only a valid hold is entered");
                if is_in {
                    self.levels.push(level);
                    self.limited(level, ms);
                }
            }
            Event::Leave(which) => self.leave(which, valid),
            Event::Prolong(ms) => {
                let until = now + Duration::from_millis(ms);
                self.state.prolong(term(until), now);
                if valid {
                    self.promised = self.promised.max(until);
                }
            }
            Event::Renew(late) => self.renew(late),
            Event::Lose => assert_eq!(self.state.lose(LostReason::Missing), held),
            Event::Undo => self.undone |= self.state.undo(),
            Event::LetExpire => self.let_expire(held),
            Event::Look => self.state.expire(now),
        }
    }

    fn grant(&mut self, level: Level, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        let fresh = self.state.phase == Phase::Trying && !self.undone;
        let granted = self.state.grant(level, term(until), self.now);
        assert_eq!(
            granted, fresh,
            "a hold starts once, and not when it was undone before"
        );
        if granted {
            self.levels.push(level);
            self.promised = until;
            self.limited(level, ms * 3);
        }
    }

    fn limited(&mut self, level: Level, ms: u64) {
        if level == Level::Limited {
            let end = self.now + Duration::from_millis(ms);
            self.state.limit(end);
            self.limit = self.limit.max(end);
        }
    }

    /// A limit may only cut what a renewal promises, and only if nothing else keeps the hold.
    fn renew(&mut self, late: u64) {
        let watched = self.levels.contains(&Level::Watchdog);
        let limited = self.levels.contains(&Level::Limited);
        let Some(lease) = self.state.renewal_lease(PLAN, self.now) else {
            let over = self.now.until(self.limit) < ROUNDED;
            return assert!(self.left_alone || !watched && (!limited || over));
        };
        assert!(lease <= PLAN && (watched || limited));
        assert!(watched || self.now + lease.duration() <= self.limit);
        self.now = self.now + Duration::from_millis(late);
        let valid = self.state.phase == Phase::Held && self.now < self.state.valid_until;
        let mut until = lease.term(self.now).valid_until;
        self.state.renewed(lease.term(self.now), self.now);
        if !watched {
            until = until.min(self.limit);
        }
        if valid {
            self.promised = self.promised.max(until);
        }
    }

    fn leave(&mut self, which: usize, valid: bool) {
        if self.levels.is_empty() {
            return;
        }
        let gone = self.levels.swap_remove(which % self.levels.len());
        match self.state.leave(gone, self.now, self.now) {
            Left::Last => {
                assert!(valid && self.levels.is_empty());
                self.releases += 1;
            }
            Left::Levels(count) => assert!(valid && count as usize == self.levels.len()),
            Left::Lost(_) => assert!(!valid),
        }
    }

    fn let_expire(&mut self, held: bool) {
        let Some(own) = self.levels.last().copied() else {
            return;
        };
        let alone = held && self.levels == [Level::Fixed];
        assert_eq!(self.state.let_expire(own), alone);
        if alone {
            self.levels.clear();
            self.left_alone = true;
        }
    }

    /// What is true after every event.
    fn check(&self, before: Phase) {
        let after = self.state.phase;
        let legal = match (before, after) {
            (Phase::Trying, Phase::Held)
            | (Phase::Held, Phase::Ending | Phase::Ended | Phase::Lost(_)) => true,
            _ => before == after,
        };
        assert!(legal, "{before:?} to {after:?}: lost and ending are final");
        if !self.left_alone {
            assert_eq!(self.state.count() as usize, self.levels.len());
        }
        assert_eq!(self.state.valid_until, self.promised, "T2");
        assert!(self.releases <= 1, "one last release");
        if after == Phase::Lost(LostReason::Expired) {
            assert!(self.now >= self.promised, "no loss before its time");
        }
        self.check_due();
    }

    fn check_due(&self) {
        let jitter = Duration::from_millis(10);
        let due = self.state.due(PLAN, self.now, self.now, jitter);
        let watched = self.levels.iter().any(|level| *level != Level::Fixed);
        let last_moment = self.state.valid_until.minus(EARLY);
        match (self.state.phase, due) {
            (Phase::Trying | Phase::Ending, due) => assert_eq!(due, Due::Finish),
            (Phase::Ended | Phase::Lost(_), due) => assert_eq!(due, Due::Nothing),
            (Phase::Held, Due::Lose) => assert!(self.now >= last_moment),
            (Phase::Held, Due::Renew) => assert!(watched && self.now < last_moment),
            (Phase::Held, Due::Later(moment)) => {
                assert!(self.now < last_moment && moment <= last_moment);
                assert!(watched || moment == last_moment);
            }
            (Phase::Held, due) => panic!("{due:?}"),
        }
    }
}

/// A life under the watchdog: every look is honoured, every renewal answered after a while.
#[derive(Debug, Clone)]
struct Life {
    lease_ms: u64,
    /// What the hold began with, if that was longer.
    first_ms: u64,
    /// In thousandths of a period: how much earlier it is looked, how much later, and until the answer.
    looks: Vec<(u32, u32, u32)>,
}

fn lives() -> impl Strategy<Value = Life> {
    let looks = proptest::collection::vec((0u32..100, 0u32..300, 0u32..300), 5..60);
    (500u64..60_000, 10u64..200_000, looks).prop_map(|(lease_ms, first_ms, looks)| Life {
        lease_ms,
        first_ms,
        looks,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn i8_a_hold_lives_and_ends_by_its_rules(events in events()) {
        let mut driven = Driven::new();
        for event in events {
            let before = driven.state.phase;
            driven.apply(&event);
            driven.check(before);
        }
    }

    #[test]
    fn t3_a_hold_that_is_renewed_when_due_is_never_lost(life in lives()) {
        let watchdog = lease(life.lease_ms);
        let part = |thousandths: u32| watchdog.period() * thousandths / 1_000;
        let mut now = start();
        let mut state = HoldState::trying(start());
        let first = lease(life.first_ms.max(life.lease_ms));
        prop_assert!(state.grant(Level::Watchdog, first.term(now), now));
        let mut renewals = 0u32;
        for (jitter, late, answer) in life.looks {
            let horizon = now + watchdog.period() / 5;
            match state.due(watchdog, now, horizon, part(jitter)) {
                Due::Renew => {
                    let sent = now;
                    now = now + part(answer);
                    state.prolong(watchdog.term(sent), now);
                    renewals += 1;
                }
                Due::Later(moment) => {
                    prop_assert!(moment > now, "a look that leads nowhere");
                    now = moment + part(late);
                }
                other => prop_assert!(false, "{:?}", other),
            }
            prop_assert_eq!(state.phase, Phase::Held);
            prop_assert!(now < state.valid_until);
        }
        // No more than one in eight tenths of a period: it is two tenths early at most.
        let most = start().until(now).as_nanos() * 10 / (watchdog.period().as_nanos() * 8);
        prop_assert!(u128::from(renewals) <= most + 1, "{} renewals", renewals);
    }

    #[test]
    fn a_limited_hold_that_is_renewed_when_due_lasts_until_its_limit(
        life in lives(),
        tenths in 1u32..100,
    ) {
        let watchdog = lease(life.lease_ms);
        let part = |thousandths: u32| watchdog.period() * thousandths / 1_000;
        let span = LeaseMs::of(watchdog.duration() * tenths / 10);
        let (mut now, limit) = (start(), start() + span.duration());
        let mut state = HoldState::trying(start());
        prop_assert!(state.grant(Level::Limited, watchdog.min(span).term(now), now));
        state.limit(limit);
        let mut renewals = 0u32;
        for (jitter, late, answer) in life.looks.iter().copied().cycle() {
            let horizon = now + watchdog.period() / 5;
            match state.due(watchdog, now, horizon, part(jitter)) {
                Due::Renew => {
                    let lease = state.renewal_lease(watchdog, now).expect("it is kept");
                    // It waits for its turn first.
                    let sent = now + part(answer) / 2;
                    now = now + part(answer);
                    state.renewed(lease.term(sent), now);
                    renewals += 1;
                }
                Due::Later(moment) => {
                    prop_assert!(moment > now, "a look that leads nowhere");
                    now = moment + part(late);
                }
                Due::Lose => break,
                // It was looked at too late.
                other => { prop_assert_eq!(other, Due::Nothing); break; }
            }
        }
        let missing = state.valid_until.until(limit);
        prop_assert!(state.valid_until <= limit && missing <= watchdog.drift() + ROUNDED);
        let most = span.duration().as_nanos() * 10 / (watchdog.period().as_nanos() * 8);
        prop_assert!(u128::from(renewals) <= most + 2, "{} renewals", renewals);
    }
}

#[test]
fn a_renewal_is_due_when_less_than_two_thirds_are_left() {
    let lease = lease(30_000);
    let watchdog = lease;
    let now = start();
    let mut state = HoldState::trying(start());
    assert!(state.grant(Level::Watchdog, lease.term(now), now));
    let due_at = |now| state.due(watchdog, now, now, Duration::ZERO);
    let third = now + Duration::from_secs(10);
    let before = third.minus(Duration::from_nanos(1));
    assert_eq!(due_at(now), Due::Later(third));
    assert_eq!(due_at(before), Due::Later(third));
    assert_eq!(due_at(third), Due::Renew);
}

/// Its node may have lost it between the send and the answer. A fixed lease is asked for once, too.
#[test]
fn what_was_doubted_is_asked_for_until_a_later_command_finds_it() {
    let (watchdog, sent) = (lease(30_000), start());
    let [doubted, granted, asked] = [1, 2, 3].map(|s| sent + Duration::from_secs(s));
    for level in [Level::Watchdog, Level::Fixed] {
        let mut state = HoldState::trying(granted);
        state.doubted_at = doubted;
        assert!(state.grant(level, watchdog.term(sent), granted));
        let due = |state: &HoldState| state.due(watchdog, granted, granted, Duration::ZERO);
        assert_eq!(due(&state), Due::Renew);
        let renewed = (level == Level::Watchdog).then_some(watchdog);
        state.found(renewed, sent, granted);
        assert_eq!(due(&state), Due::Renew, "it was asked for before");
        state.found(renewed, asked, asked);
        assert!(matches!(due(&state), Due::Later(_)));
    }
}

#[test]
fn news_that_comes_too_late_grants_nothing() {
    let mut state = HoldState::trying(start());
    assert!(!state.grant(Level::Fixed, term(start()), start()));
    assert!(!state.grant(Level::Fixed, term(start().minus(EARLY)), start()));
    assert_eq!(state.phase, Phase::Trying);
}

/// A hold under the watchdog whose last level was just given back.
fn given_back(change: impl FnOnce(&mut HoldState)) -> HoldState {
    let mut state = HoldState::trying(start());
    assert!(state.grant(Level::Watchdog, lease(30_000).term(start()), start()));
    change(&mut state);
    assert_eq!(state.leave(Level::Watchdog, start(), start()), Left::Last);
    state
}

#[test]
fn only_what_is_certain_is_passed_on() {
    let watchdog = lease(30_000);
    let passed_on = |state: &mut HoldState, now| state.pass_on(watchdog, now).is_some();
    let mut held = HoldState::trying(start());
    assert!(held.grant(Level::Watchdog, lease(30_000).term(start()), start()));
    assert!(!passed_on(&mut held, start()), "somebody has it");
    assert!(passed_on(&mut given_back(|_| {}), start()));
    let in_time = start() + Duration::from_secs(9);
    assert!(passed_on(&mut given_back(|_| {}), in_time));
    let late = start() + Duration::from_secs(10);
    assert!(!passed_on(&mut given_back(|_| {}), late));
    assert!(!passed_on(&mut given_back(HoldState::taint), start()));
    let writes = |acknowledged: bool| {
        move |state: &mut HoldState| {
            state.write_begins();
            state.write_ends(Some(1), acknowledged);
        }
    };
    assert!(passed_on(&mut given_back(writes(true)), start()));
    assert!(!passed_on(&mut given_back(writes(false)), start()));
    let fixed = |state: &mut HoldState| {
        state.enter(Level::Fixed, start()).unwrap();
        state.leave(Level::Fixed, start(), start());
    };
    assert!(!passed_on(&mut given_back(fixed), start()));
    let limited = |state: &mut HoldState| {
        state.enter(Level::Limited, start()).unwrap();
        state.leave(Level::Limited, start(), start());
    };
    assert!(!passed_on(&mut given_back(limited), start()));
}

#[test]
fn who_is_passed_a_hold_has_its_validity_and_the_one_before_has_ended() {
    let watchdog = lease(30_000);
    let mut before = given_back(|_| {});
    let until = before.vouched_until();
    let next = before.pass_on(watchdog, start()).unwrap();
    assert_eq!(
        (before.phase(), before.passed_until()),
        (Phase::Ended, Some(until))
    );
    assert!(matches!(before.outcome(), Some(Ok(()))));
    assert_eq!((next.phase(), next.count()), (Phase::Held, 1));
    assert!(next.is_watched() && next.valid_until() == until);
    assert!(!before.lose(LostReason::Missing), "it is over");
}

#[test]
fn what_may_still_be_written_is_not_settled() {
    let mut written = CountInRedis::default();
    assert!(written.is_settled());
    written.begins();
    assert!(!written.is_settled(), "under way");
    written.ends(true, false);
    assert!(!written.is_settled(), "another count is there");
    written.begins();
    written.ends(true, true);
    assert!(written.is_settled());
    for acknowledged in [false, true] {
        written.begins();
        written.ends(acknowledged, acknowledged);
        assert!(!written.is_settled(), "the first may run whenever it likes");
    }
}

#[test]
fn a_write_that_was_alone_and_acknowledged_is_enough() {
    let mut written = CountInRedis::default();
    written.begins();
    written.ends(true, true);
    assert!(!written.claim());
}

#[test]
fn the_keeper_writes_what_failed_and_what_overlapped_once() {
    for good in [true, false] {
        let mut written = CountInRedis::default();
        written.begins();
        if good {
            written.begins();
            written.ends(true, true);
            assert!(!written.claim(), "another one is in flight");
        }
        written.ends(good, good);
        assert!(written.claim());
        assert!(!written.claim(), "one writer is enough");
        assert!(written.goes_on(true));
        written.begins();
        written.ends(true, true);
        assert!(!written.goes_on(true));
    }
}

#[test]
fn nobody_writes_for_a_hold_that_is_over() {
    let mut written = CountInRedis::default();
    written.begins();
    written.ends(false, false);
    assert!(written.claim());
    assert!(!written.goes_on(false));
}
