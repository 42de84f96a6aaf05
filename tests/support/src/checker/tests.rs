//! Histories made by hand: each breach is found, and its lawful twin is not. Times are in ms.

mod kinds;
mod permits;

use std::time::Duration;

use super::*;
use crate::history::{Call, LockKind, MS, Outcome, Scope};

#[derive(Default)]
struct Story {
    kind: LockKind,
    name: Option<&'static str>,
    records: Vec<Record>,
    next: u64,
    /// How many permits there are beyond one.
    more_permits: u32,
    dead_turn: Duration,
}

impl Story {
    /// The records that follow are of this kind.
    fn of(mut self, kind: LockKind) -> Self {
        self.kind = kind;
        self
    }

    /// The records that follow are of this name.
    fn named(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    /// The last return has a token.
    fn token(mut self, number: u64) -> Self {
        if let Some(Record::Return { token, .. }) = self.records.last_mut() {
            *token = Some(number);
        }
        self
    }

    fn op(mut self, who: (u32, u32), call: Call, times: (u64, u64), how: Outcome) -> Self {
        let op = self.next;
        self = self.open(who, call, times.0);
        self.records.push(Record::Return {
            t: times.1 * MS,
            op,
            since: None,
            outcome: how,
            token: None,
        });
        self
    }

    fn open(mut self, who: (u32, u32), call: Call, t: u64) -> Self {
        self.records.push(Record::Invoke {
            t: t * MS,
            op: self.next,
            client: who.0,
            owner: who.1,
            kind: self.kind,
            name: self.name.unwrap_or("n").to_owned(),
            call,
        });
        self.next += 1;
        self
    }

    fn lock(self, client: u32, times: (u64, u64), count: u32) -> Self {
        self.op((client, 0), lock(None), times, Outcome::Acquired(count))
    }

    fn lock_with_lease(self, client: u32, times: (u64, u64), lease: u64) -> Self {
        self.op((client, 0), lock(Some(lease)), times, Outcome::Acquired(1))
    }

    fn unlock(self, client: u32, times: (u64, u64), left: u32) -> Self {
        self.op((client, 0), Call::Release, times, Outcome::Released(left))
    }

    fn fails(self, client: u32, times: (u64, u64), kind: &str) -> Self {
        let how = Outcome::Failed(kind.to_owned());
        self.op((client, 0), Call::Release, times, how)
    }

    fn lost(mut self, client: u32, t: u64) -> Self {
        self.records.push(Record::Lost {
            t: t * MS,
            client,
            owner: 0,
            kind: self.kind,
            name: "n".to_owned(),
            reason: "expired".to_owned(),
        });
        self
    }

    fn and(mut self, record: Record) -> Self {
        self.records.push(record);
        self
    }

    fn fault(self, from: u64, until: u64, scope: Scope) -> Self {
        self.and(Record::Fault {
            from: from * MS,
            until: until * MS,
            kind: "test".to_owned(),
            scope,
        })
    }

    fn unpolled(self, op: u64, from: u64, until: u64) -> Self {
        self.and(Record::Unpolled {
            from: from * MS,
            until: until * MS,
            op,
        })
    }

    fn ends(self, t: u64) -> Self {
        self.and(Record::Sample {
            t: t * MS,
            name: "n".to_owned(),
            ttl_ms: -2,
        })
    }

    fn check(&self) -> Report {
        let settings = Settings {
            watchdog_lease: Duration::from_secs(1),
            backoff_cap: Duration::from_millis(500),
            recovery: Duration::from_millis(500),
            cleanup: Duration::from_millis(200),
            clean_wake: Duration::from_millis(20),
            scheduling: Duration::from_millis(10),
            permits: 1 + self.more_permits,
            dead_turn: self.dead_turn,
            ..Settings::default()
        };
        check(&self.records, &settings)
    }

    fn breaks(&self, expected: &[Invariant]) {
        let report = self.check();
        let broken = Invariant::ALL.into_iter().filter(|one| report.breaks(*one));
        assert_eq!(broken.collect::<Vec<_>>(), expected, "{report}");
    }
}

const fn lock(lease_ms: Option<u64>) -> Call {
    Call::Acquire {
        wait_ms: None,
        lease_ms,
    }
}

const fn try_lock(wait: u64) -> Call {
    Call::Acquire {
        wait_ms: Some(wait),
        lease_ms: None,
    }
}

fn story() -> Story {
    Story::default()
}

#[test]
fn holds_one_after_the_other_are_lawful() {
    let story = story().lock(1, (0, 5), 1).lock(1, (6, 8), 2);
    let story = story.unlock(1, (10, 11), 1).unlock(1, (12, 13), 0);
    let story = story.lock(2, (3, 14), 1).unlock(2, (20, 21), 0);
    let report = story.check();
    assert!(report.violations.is_empty(), "{report}");
    assert_eq!(report.holds, 2);
    assert!(report.looked_at[&Invariant::I5] > 0);
}

#[test]
fn overlapping_windows_break_i1() {
    let story = story().lock(1, (0, 5), 1).lock(2, (0, 50), 1);
    let story = story.unlock(2, (60, 61), 0).unlock(1, (100, 101), 0);
    story.breaks(&[Invariant::I1]);
}

#[test]
fn an_endless_claim_hides_no_other_overlap() {
    let story = story().lock(1, (0, 5), 1).lock(2, (0, 50), 1);
    let story = story.lock(3, (0, 55), 1).unlock(2, (60, 61), 0);
    let story = story.unlock(3, (70, 71), 0).unlock(1, (100, 101), 0);
    assert_eq!(story.check().count(Invariant::I1), 3);
}

#[test]
fn a_late_signal_breaks_i8_as_well() {
    let held = || story().lock(1, (0, 5), 1).fault(5, 900, Scope::Client(1));
    let next = |story: Story| story.lock(2, (100, 1010), 1).unlock(2, (1200, 1201), 0);
    next(held().lost(1, 990)).breaks(&[]);
    next(held().lost(1, 1100)).breaks(&[Invariant::I1, Invariant::I8]);
}

#[test]
fn a_stopped_client_claims_nothing() {
    let frozen = Record::Frozen {
        from: 100 * MS,
        until: 2_000 * MS,
        client: 1,
    };
    let story = || story().lock(1, (0, 5), 1).and(frozen.clone());
    let next = |story: Story| story.lock(2, (50, 700), 1).unlock(2, (1200, 1201), 0);
    next(story().lost(1, 2_002)).breaks(&[]);
    next(story().unlock(1, (2_010, 2_011), 0)).breaks(&[Invariant::I1]);
    // Stopped before its fixed lease was over: then nothing is known of the rest of the lease.
    let story = Story::default().lock_with_lease(1, (0, 400), 600);
    let story = story.and(Record::Frozen {
        from: 500 * MS,
        until: 1_500 * MS,
        client: 1,
    });
    next(story.lost(1, 1_502)).breaks(&[]);
}

#[test]
fn a_killed_client_claims_nothing() {
    let killed = Record::Killed {
        t: 50 * MS,
        client: 1,
    };
    let story = story().lock(1, (0, 5), 1).and(killed);
    let story = story.lock(2, (60, 1010), 1).unlock(2, (1200, 1201), 0);
    story.breaks(&[]);
}

#[test]
fn a_torn_pair_of_certain_holders_breaks_i1() {
    let pair = |op: u64, from: u64, until: u64, seen: u64| Record::Pair {
        op,
        from: from * MS,
        wrote: (from + 1) * MS,
        until: until * MS,
        seen,
    };
    let both = || story().lock(1, (0, 5), 1).lock(2, (0, 8), 1);
    let both = || both().unlock(1, (50, 51), 0).unlock(2, (50, 51), 0);
    let story = both().and(pair(0, 10, 20, 1)).and(pair(1, 12, 22, 1));
    let torn = story.check().violations;
    assert!(torn.iter().any(|found| found.breach == Breach::TornPair));
    let story = both().and(pair(0, 10, 20, 0)).and(pair(1, 12, 22, 1));
    let whole = story.check().violations;
    assert!(whole.iter().all(|found| found.breach != Breach::TornPair));
}

#[test]
fn a_repeated_increment_breaks_i2() {
    let story = story().lock(1, (0, 5), 1).lock(1, (6, 8), 3);
    let story = story.unlock(1, (10, 11), 2).unlock(1, (12, 13), 1);
    story.unlock(1, (14, 15), 0).breaks(&[Invariant::I2]);
}

#[test]
fn a_key_without_ttl_breaks_i4() {
    let sample = Record::Sample {
        t: 1,
        name: "n".to_owned(),
        ttl_ms: -1,
    };
    story().and(sample).breaks(&[Invariant::I4]);
}

#[test]
fn a_waiter_that_sleeps_beside_a_free_lock_breaks_i5() {
    let held = || story().lock(1, (0, 5), 1).unlock(1, (100, 101), 0);
    let waiter = |story: Story, until| story.lock(2, (50, until), 1).unlock(2, (800, 801), 0);
    waiter(held(), 110).breaks(&[]);
    waiter(held(), 300).breaks(&[Invariant::I5]);
    // A message may be missed under a fault, but the poll's cap holds.
    let fault = |until| waiter(held().fault(40, 60, Scope::Client(2)), until);
    fault(700).breaks(&[]);
    let fault = |until| waiter(held().fault(40, 60, Scope::Client(1)), until);
    fault(600).breaks(&[]);
    // Its own fault excuses a waiter, another's does not.
    let late = |client| {
        let held = held().fault(90, 700, Scope::Client(client));
        held.lock(2, (50, 1150), 1).unlock(2, (1160, 1161), 0)
    };
    late(2).breaks(&[]);
    late(3).breaks(&[Invariant::I5]);
}

#[test]
fn a_waiter_that_is_not_polled_may_sleep_beside_a_free_lock() {
    let waiter = |until| {
        let held = story().lock(1, (0, 5), 1).unlock(1, (100, 101), 0);
        let waiter = held.lock(2, (50, 1_300), 1).unpolled(2, 60, until);
        waiter.unlock(2, (1_310, 1_311), 0)
    };
    waiter(1_290).breaks(&[]);
    waiter(120).breaks(&[Invariant::I5]);
}

#[test]
fn a_caller_that_is_not_polled_may_have_the_lock_already() {
    let granted = |until| {
        let held = story().lock(1, (0, 5), 1).unlock(1, (100, 101), 0);
        let story = held.lock(3, (105, 1_400), 1).unpolled(2, 106, until);
        let story = story.unlock(3, (1_410, 1_411), 0);
        story.lock(2, (50, 1_420), 1).unlock(2, (1_430, 1_431), 0)
    };
    granted(1_390).breaks(&[]);
    granted(110).breaks(&[Invariant::I5]);
}

#[test]
fn a_holder_that_gives_back_as_soon_as_it_runs_again_may_have_lost_the_lock_before() {
    let frozen = Record::Frozen {
        from: 400 * MS,
        until: 2_000 * MS,
        client: 1,
    };
    let held = || {
        let story = story().lock(1, (0, 5), 1).and(frozen.clone());
        story.lock(2, (450, 1_500), 1).unlock(2, (1_510, 1_511), 0)
    };
    let overlaps = |story: Story| story.check().count(Invariant::I1);
    assert_eq!(overlaps(held().open((1, 0), Call::Drop, 2_001)), 0);
    // Redis says that it had the lock.
    assert_eq!(overlaps(held().unlock(1, (2_001, 2_002), 0)), 1);
}

#[test]
fn a_waiter_that_never_returns_breaks_i5() {
    let story = story().lock(1, (0, 5), 1).unlock(1, (100, 101), 0);
    let story = story.open((2, 0), lock(None), 50);
    story.ends(3_000).breaks(&[Invariant::I5]);
}

#[test]
fn another_waiter_may_have_it() {
    let story = story().lock(1, (0, 5), 1).unlock(1, (100, 101), 0);
    let story = story.open((2, 0), lock(None), 50);
    story.lock(3, (60, 110), 1).ends(9_000).breaks(&[]);
}

#[test]
fn a_slow_try_breaks_i6() {
    let tried = |until| {
        let story = story().lock(1, (0, 5), 1);
        let story = story.op((2, 0), try_lock(100), (10, until), Outcome::Busy);
        story.unlock(1, (2_000, 2_001), 0)
    };
    tried(120).breaks(&[]);
    tried(1_060).breaks(&[]);
    tried(1_100).breaks(&[Invariant::I6]);
}

#[test]
fn a_try_is_late_by_as_much_as_its_client_or_the_machine_stood_still() {
    let tried = |until, scope| {
        let story = story().lock(1, (0, 5), 1).fault(500, 800, scope);
        let frozen = Record::Frozen {
            from: 700 * MS,
            until: 900 * MS,
            client: 2,
        };
        let story = story.op((2, 0), try_lock(100), (10, until), Outcome::Busy);
        story.and(frozen).unlock(1, (2_000, 2_001), 0)
    };
    for scope in [Scope::Machine, Scope::Answer] {
        tried(1_450, scope).breaks(&[]);
        tried(1_500, scope).breaks(&[Invariant::I6]);
    }
    tried(1_300, Scope::All).breaks(&[Invariant::I6]);
    tried(1_250, Scope::All).breaks(&[]);
    // A server that was stopped on purpose does not answer either.
    let struck = |until, scope, from| {
        let story = story().lock(1, (0, 5), 1).fault(500, 800, scope);
        let story = story.fault(from, 810, Scope::All);
        let story = story.op((2, 0), try_lock(100), (10, until), Outcome::Busy);
        story.unlock(1, (2_000, 2_001), 0)
    };
    struck(1_300, Scope::Answer, 790).breaks(&[Invariant::I6]);
    struck(1_300, Scope::Answer, 805).breaks(&[]);
    struck(1_300, Scope::Machine, 790).breaks(&[]);
}

#[test]
fn busy_while_free_breaks_i6() {
    let tried = |from| story().op((2, 0), try_lock(0), (from, from + 2), Outcome::Busy);
    tried(10).ends(3_000).breaks(&[Invariant::I6]);
    let held = || tried(10).lock(1, (0, 5), 1);
    held().unlock(1, (50, 51), 0).breaks(&[]);
    let raced = || tried(10).lock(1, (9, 20), 1);
    raced().unlock(1, (50, 51), 0).breaks(&[]);
}

#[test]
fn a_leftover_breaks_i7() {
    let left = Record::Leftover {
        t: 1,
        what: "key n".to_owned(),
    };
    story().and(left).breaks(&[Invariant::I7]);
}

#[test]
fn lost_is_final() {
    let held = || story().lock_with_lease(1, (0, 5), 500).lost(1, 493);
    held().fails(1, (600, 601), "lost").breaks(&[]);
    held().unlock(1, (600, 601), 0).breaks(&[Invariant::I8]);
}

#[test]
fn a_signal_must_come() {
    let held = || story().lock_with_lease(1, (0, 5), 500);
    held().ends(3_000).breaks(&[Invariant::I8]);
}

#[test]
fn a_lost_hold_may_be_followed_by_a_fresh_one() {
    let lost = story().lock_with_lease(1, (0, 5), 500).lost(1, 493);
    let fresh = lost.lock(1, (600, 605), 1).unlock(1, (610, 611), 0);
    fresh.breaks(&[]);
    assert_eq!(
        fresh.check().holds,
        2,
        "the second is no level of the first"
    );
}

#[test]
fn a_count_of_one_begins_a_hold() {
    let held = story().lock(1, (0, 5), 1).lock(1, (6, 8), 2);
    let gone = held.unlock(1, (10, 11), 1).ends(50_000);
    let others = gone.lock(2, (60_000, 60_005), 1);
    let fresh = others.unlock(2, (60_010, 60_011), 0);
    let fresh = fresh.lock(1, (60_020, 60_025), 1);
    assert_eq!(fresh.unlock(1, (60_030, 60_031), 0).check().holds, 3);
}

#[test]
fn an_owner_that_begins_afresh_must_have_been_notified() {
    let fresh = |story: Story, at| {
        story
            .lock(1, (at, at + 5), 1)
            .unlock(1, (at + 10, at + 11), 0)
    };
    let ended = |story: Story| fresh(story, 600).ends(3_000);
    let unsaid = [Invariant::I2, Invariant::I8];
    ended(story().lock(1, (0, 5), 1)).breaks(&unsaid);
    let levels = || story().lock(1, (0, 5), 1).lock(1, (6, 8), 2);
    ended(levels()).breaks(&unsaid);
    ended(levels().unlock(1, (10, 11), 1)).breaks(&unsaid);
    // A client that was killed or stopped then may have had no time to report it.
    let at_once = fresh(story().lock(1, (0, 5), 1), 600);
    let killed = at_once.and(Record::Killed {
        t: 640 * MS,
        client: 1,
    });
    killed.ends(3_000).breaks(&[Invariant::I2]);
    let stopped = |until| Record::Frozen {
        from: 620 * MS,
        until: until * MS,
        client: 1,
    };
    let stopped = |until| ended(story().lock(1, (0, 5), 1).and(stopped(until)));
    stopped(2_990).breaks(&[Invariant::I2]);
    stopped(2_900).breaks(&unsaid);
}

#[test]
fn a_signal_that_lags_is_not_that_of_the_hold_that_follows() {
    let lost = |t| {
        let held = story().lock(1, (0, 5), 1).fault(100, 590, Scope::All);
        held.lock(1, (600, 605), 1).lost(1, t)
    };
    lost(612).unlock(1, (650, 651), 0).breaks(&[]);
    lost(700)
        .unlock(1, (750, 751), 0)
        .ends(3_000)
        .breaks(&[Invariant::I2, Invariant::I8]);
}

/// The hold before ended with a release that reported its loss, and needs no signal.
#[test]
fn a_signal_beside_a_release_that_fails_is_of_that_hold() {
    let before = story().lock(1, (0, 5), 1).fails(1, (10, 11), "lost");
    let held = before.lock(1, (12, 13), 1).lock(1, (14, 15), 2);
    let story = held.fault(1, 20, Scope::All).lost(1, 18);
    let story = story.fails(1, (17, 19), "lost");
    story.fails(1, (20, 21), "lost").ends(3_000).breaks(&[]);
}

/// The owner's next answer shows that it did not run: the lock was not free.
#[test]
fn a_release_without_a_clear_answer_may_have_left_the_hold() {
    let held = story().lock(1, (0, 5), 1).fails(1, (10, 11), "other");
    let held = held.lock(1, (20, 21), 2).unlock(1, (30, 31), 1);
    let waited = held.unlock(1, (2_990, 2_991), 0).lock(2, (25, 2_995), 1);
    waited.unlock(2, (3_000, 3_001), 0).breaks(&[]);
}

#[test]
fn a_signal_beside_a_reentry_that_fails_is_of_that_hold() {
    let before = story().lock(1, (0, 5), 1).fails(1, (10, 11), "lost");
    let held = before.lock(1, (12, 13), 1).fault(1, 20, Scope::All);
    let lost = Outcome::Failed("lost".to_owned());
    let story = held.op((1, 0), lock(None), (14, 19), lost).lost(1, 18);
    story
        .lock(1, (20, 21), 1)
        .unlock(1, (22, 23), 0)
        .ends(3_000)
        .breaks(&[]);
}

#[test]
fn a_caller_that_got_a_wrong_count_may_give_the_level_back() {
    let miscounted = story().lock(1, (0, 5), 0).unlock(1, (10, 11), 0);
    miscounted.breaks(&[Invariant::I2]);
}

#[test]
fn a_hold_may_be_lost_while_an_inner_level_is_given_back() {
    let held = || story().lock_with_lease(1, (0, 5), 500).lock(1, (6, 8), 2);
    let lost = || held().fault(100, 300, Scope::All).lost(1, 493);
    let inner = |story: Story| story.unlock(1, (400, 600), 0);
    inner(lost()).fails(1, (601, 602), "not_owner").breaks(&[]);
    inner(held()).breaks(&[Invariant::I2]);
}

#[test]
fn a_release_that_leaves_levels_is_not_the_signal() {
    let held = || story().lock(1, (0, 5), 1).lock(1, (6, 8), 2);
    let found = held().fails(1, (400, 401), "lost");
    let notified = |story: Story| story.fails(1, (500, 501), "lost").ends(3_000);
    notified(found).breaks(&[Invariant::I8]);
    let signalled = held()
        .fails(1, (400, 401), "lost")
        .fault(100, 300, Scope::All);
    notified(signalled.lost(1, 402)).breaks(&[]);
    let last = held().unlock(1, (10, 11), 1).fails(1, (12, 13), "lost");
    last.ends(3_000).breaks(&[]);
}

#[test]
fn a_stopped_client_is_notified_when_it_goes_on() {
    let frozen = |until| Record::Frozen {
        from: 400 * MS,
        until: until * MS,
        client: 1,
    };
    let held = |until| story().lock_with_lease(1, (0, 5), 500).and(frozen(until));
    held(900).lost(1, 905).ends(3_000).breaks(&[]);
    held(490).lost(1, 905).ends(3_000).breaks(&[Invariant::I8]);
}

#[test]
fn a_hold_is_not_lost_before_its_time() {
    let lost = |t| story().lock_with_lease(1, (0, 5), 500).lost(1, t);
    let early = || lost(300).fails(1, (310, 311), "lost");
    early().breaks(&[Invariant::I8]);
    early().fault(250, 280, Scope::All).breaks(&[]);
}

#[test]
fn a_hold_may_be_deleted_while_its_acquire_is_under_way_and_not_behind_its_loss() {
    let record = Record::Deleted {
        from: 100 * MS,
        until: 101 * MS,
        name: None,
    };
    let deleted = || story().and(record.clone());
    let lost = |story: Story, from, until| {
        let held = story.lock(1, (from, until), 1).lost(1, until + 2);
        held.fails(1, (until + 3, until + 4), "lost")
    };
    lost(deleted(), 90, 110).breaks(&[]);
    lost(deleted(), 10, 15).breaks(&[Invariant::I8]);
}

/// The client does not ask Redis when it passes a hold on.
#[test]
fn a_hold_that_was_passed_on_may_have_been_deleted_before() {
    let deleted = Record::Deleted {
        from: 100 * MS,
        until: 101 * MS,
        name: None,
    };
    let story = story().lock(1, (0, 5), 1).and(deleted);
    // That is a fault, too.
    let story = story.fault(100, 101, Scope::All);
    let story = story.lock(2, (102, 104), 1).unlock(2, (190, 191), 0);
    let story = story.unlock(1, (105, 106), 0);
    let who = (1, 1);
    let story = story.op(who, lock(None), (102, 107), Outcome::Acquired(1));
    let story = story.op(who, Call::Release, (700, 701), Outcome::Released(0));
    story.breaks(&[]);
}

/// Nor does the release that passes it on, so the next one learns that it was deleted.
#[test]
fn the_release_of_a_deleted_hold_is_well_if_another_owner_of_the_client_got_it() {
    let deleted = Record::Deleted {
        from: 100 * MS,
        until: 101 * MS,
        name: None,
    };
    let passed_on = |asked, got| {
        let story = story().lock(1, (0, 5), 1).and(deleted.clone());
        let story = story.unlock(1, (105, 106), 0);
        let next = (1, 1);
        let story = story.op(next, lock(None), (asked, got), Outcome::Acquired(1));
        let lost = Outcome::Failed("lost".to_owned());
        story.op(next, Call::Release, (got + 5, got + 6), lost)
    };
    passed_on(90, 107).breaks(&[]);
    passed_on(107, 108).breaks(&[Invariant::I8]);
}

#[test]
fn deleted_data_ends_a_window_and_is_learnt() {
    let deleted = || {
        let record = Record::Deleted {
            from: 100 * MS,
            until: 101 * MS,
            name: None,
        };
        let story = story().lock(1, (0, 5), 1).and(record);
        story.lock(2, (50, 110), 1).unlock(2, (900, 901), 0)
    };
    deleted()
        .lost(1, 440)
        .fails(1, (950, 951), "lost")
        .breaks(&[]);
    let late = deleted().lost(1, 1_500).fails(1, (1_501, 1_502), "lost");
    late.breaks(&[Invariant::I8]);
    let ok = deleted().unlock(1, (950, 951), 0);
    ok.breaks(&[Invariant::I8]);
}
