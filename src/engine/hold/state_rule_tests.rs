//! The rules of a hold's state, one by one: unanswered commands, reads, and holds whose lease others may shorten.

use std::time::Duration;

use super::*;

fn lease(ms: u64) -> LeaseMs {
    LeaseMs::from_millis(ms)
}

fn at(ms: u64) -> Moment {
    Moment::default() + Duration::from_millis(100_000 + ms)
}

fn held(level: Level, lease: LeaseMs) -> HoldState {
    let mut state = HoldState::trying(at(0));
    assert!(state.grant(level, lease.term(at(0)), at(0)));
    state
}

#[test]
fn only_a_release_that_may_have_run_in_time_makes_it_a_success_that_nothing_was_found() {
    let mut state = held(Level::Watchdog, lease(1_000));
    assert_eq!(state.leave(Level::Watchdog, at(1), at(2)), Left::Last);
    assert_eq!(state.found_nothing(), Err(LostReason::Missing));
    let over = state.vouched_until();
    state.release_may_have_run(over);
    assert_eq!(state.found_nothing(), Err(LostReason::Missing));
    state.release_may_have_run(at(1));
    state.release_may_have_run(over);
    assert_eq!(state.found_nothing(), Ok(()));
}

#[test]
fn a_place_that_comes_behind_its_release_is_taken_back_once() {
    let mut state = HoldState::trying(at(0));
    state.asks_for_place(true);
    assert!(state.is_tainted() && !state.takes_place_back());
    state.give_up();
    assert_eq!(state.phase(), Phase::Ending);
    assert!(state.is_tainted() && !state.takes_place_back());
    state.asks_for_place(false);
    assert!(!state.is_tainted());
    assert!(state.takes_place_back() && !state.takes_place_back());

    let mut before = HoldState::trying(at(0));
    before.asks_for_place(true);
    before.asks_for_place(false);
    before.give_up();
    assert!(!before.is_tainted() && !before.takes_place_back());
}

#[test]
fn what_is_held_is_not_given_up_and_what_is_undone_is_not_held() {
    let mut state = held(Level::Fixed, lease(1_000));
    state.give_up();
    assert!(!state.undo());
    assert_eq!(state.phase(), Phase::Held);
    let mut undone = HoldState::trying(at(0));
    assert!(undone.undo());
    assert!(!undone.grant(Level::Fixed, lease(1_000).term(at(0)), at(0)));
}

#[test]
fn an_attempt_is_overdue_when_it_was_said_and_a_later_one_later() {
    let watchdog = lease(1_000);
    let mut state = HoldState::trying(at(10));
    let due = |state: &HoldState, now| state.due(watchdog, now, now, Duration::ZERO);
    assert_eq!(due(&state, at(9)), Due::Later(at(10)));
    assert_eq!(due(&state, at(10)), Due::Finish);
    state.finish_later(at(20));
    assert_eq!(
        (due(&state, at(10)), state.finish_by()),
        (Due::Later(at(20)), at(20))
    );
}

#[test]
fn how_it_ended_is_known_from_the_moment_it_is_over() {
    let held = || held(Level::Fixed, lease(1_000));
    assert_eq!(HoldState::trying(at(0)).how_it_ended(), None);
    assert_eq!(held().how_it_ended(), None);
    let mut given_back = held();
    given_back.leave(Level::Fixed, at(1), at(9));
    assert_eq!(given_back.how_it_ended(), Some(Ended::Released));
    given_back.end(Ok(()));
    assert_eq!(given_back.how_it_ended(), Some(Ended::Released));
    let mut left = held();
    assert!(left.let_expire(Level::Fixed));
    left.end(Ok(()));
    assert_eq!(left.how_it_ended(), Some(Ended::Left));
    let mut lost = held();
    lost.lose(LostReason::Forced);
    lost.end(Ok(()));
    assert_eq!(lost.how_it_ended(), Some(Ended::Lost(LostReason::Forced)));
}

#[test]
fn a_count_that_is_not_known_to_be_there_is_the_keepers_once() {
    let mut state = held(Level::Watchdog, lease(1_000));
    state.write_begins();
    state.write_begins();
    assert!(!state.write_ends(Some(1), true), "another one is under way");
    assert!(state.write_ends(Some(1), true), "which of them ran last?");
    let mut state = held(Level::Watchdog, lease(1_000));
    state.write_begins();
    assert!(!state.write_ends(Some(1), true), "it is there");
    state.write_begins();
    assert!(state.write_ends(Some(2), true), "another one is");
    assert_eq!(state.still_needs_count(), Some(1));
    state.write_begins();
    assert!(!state.write_ends(Some(1), false), "the keeper is at it");
    assert_eq!(state.still_needs_count(), Some(1));
    state.write_begins();
    assert!(!state.write_ends(Some(1), true));
    assert_eq!(state.still_needs_count(), None);
    assert!(state.write_is_due() && !state.write_is_due());
    let mut state = held(Level::Watchdog, lease(1_000));
    state.write_begins();
    assert!(!state.write_is_due(), "another one is under way");
    assert!(state.write_ends(Some(1), true));
    assert_eq!(state.leave(Level::Watchdog, at(1), at(2)), Left::Last);
    assert_eq!(state.still_needs_count(), None, "nobody needs it any more");
}

#[test]
fn a_read_that_the_watchdog_leaves_keeps_the_validity_of_its_shared_hold() {
    let mut read = HoldState::read(Level::Watchdog, lease(1_000).term(at(0)));
    assert_eq!(read.valid_until(), Moment::NEVER);
    read.carried_to(at(5_000), at(6_000));
    assert_eq!(read.enter(Level::Fixed, at(1)), Ok(Some(2)));
    assert_eq!(read.leave(Level::Watchdog, at(2), at(3)), Left::Levels(1));
    assert_eq!(
        (read.valid_until(), read.lease_ends()),
        (at(5_000), at(6_000))
    );
    read.carried_to(at(7_000), at(8_000));
    assert_eq!(read.valid_until(), at(5_000), "nothing keeps it any more");
}

#[test]
fn one_more_level_needs_no_word_while_its_lease_is_promised() {
    let (promised, now) = (lease(30_000), at(0));
    let watchdog = promised;
    let mut state = held(Level::Watchdog, promised);
    let term = |ms| lease(ms).term(at(0));
    let covers = |state: &HoldState, level, ms, now| state.covers(level, term(ms), watchdog, now);
    assert!(covers(&state, Level::Watchdog, 30_000, now));
    assert!(covers(&state, Level::Watchdog, 30_000, at(9_999)));
    assert!(
        !covers(&state, Level::Watchdog, 30_000, at(10_000)),
        "two thirds"
    );
    assert!(covers(&state, Level::Fixed, 30_000, at(10_000)));
    assert!(!covers(&state, Level::Fixed, 30_001, now));
    let over = state.valid_until();
    assert!(covers(
        &state,
        Level::Fixed,
        1_000,
        over.minus(Duration::from_nanos(1))
    ));
    assert!(!covers(&state, Level::Fixed, 1_000, over));
    assert_eq!(state.leave(Level::Watchdog, now, now), Left::Last);
    assert!(!covers(&state, Level::Fixed, 1_000, now));
}

#[test]
fn what_strangers_may_cut_short_counts_for_a_while_behind_each_write() {
    let most = lease(1_000);
    let sure = |sent: u64| most.term(at(sent)).valid_until;
    let mut state = held(Level::Fixed, lease(30_000));
    assert_eq!(state.owed_until(), state.lease_ends());
    state.asserted(at(100), at(100));
    state.assure(most, at(0));
    assert_eq!(state.valid_until(), sure(0));
    assert_eq!(state.owed_until(), sure(0) + most.drift());
    state.asserted(at(500), at(600));
    assert_eq!(state.valid_until(), sure(500));
    assert_eq!(state.leave(Level::Fixed, at(700), at(800)), Left::Last);
    state.asserted(at(750), at(750));
    assert_eq!(state.vouched_until(), sure(500), "it is over");

    let mut short = held(Level::Fixed, lease(800));
    let promised = short.valid_until();
    short.assure(most, at(0));
    short.asserted(at(500), at(500));
    assert_eq!(short.valid_until(), promised, "never more than that");
    assert_eq!(short.owed_until(), short.lease_ends());
}

#[test]
fn what_nobody_was_promised_is_not_waited_for() {
    let mut state = held(Level::Fixed, lease(1_000));
    state.owe(at(300));
    assert_eq!(state.owed_until(), at(300));
    state.owe(at(2_000));
    assert_eq!(state.owed_until(), state.lease_ends());
}

#[test]
fn a_hold_is_over_at_the_end_of_its_validity_and_looked_at_just_before() {
    let watchdog = lease(30_000);
    let mut state = held(Level::Fixed, lease(1_000));
    let end = state.valid_until();
    let due = |now| state.due(watchdog, now, now, Duration::ZERO);
    let look = end.minus(EARLY);
    assert_eq!(due(look.minus(Duration::from_nanos(1))), Due::Later(look));
    assert_eq!(due(look), Due::Lose);
    state.expire(end.minus(Duration::from_nanos(1)));
    assert_eq!(state.phase(), Phase::Held);
    state.expire(end);
    assert_eq!(state.phase(), Phase::Lost(LostReason::Expired));
}

#[test]
fn what_is_over_is_not_asserted_any_more() {
    let mut state = held(Level::Fixed, lease(30_000));
    state.assure(lease(1_000), at(0));
    let end = state.valid_until();
    state.asserted(at(900), end);
    assert_eq!(state.phase(), Phase::Lost(LostReason::Expired));
    assert_eq!(state.vouched_until(), end);
}

#[test]
fn a_last_release_is_overdue_when_it_was_said() {
    let watchdog = lease(30_000);
    let mut state = held(Level::Watchdog, lease(30_000));
    assert_eq!(state.leave(Level::Watchdog, at(1), at(5_000)), Left::Last);
    let due = |now| state.due(watchdog, now, now, Duration::ZERO);
    assert_eq!(due(at(1)), Due::Later(at(5_000)));
    assert_eq!(due(at(5_000)), Due::Finish);
}

#[test]
fn what_is_passed_on_is_promised_for_as_long_as_before() {
    let watchdog = lease(30_000);
    let mut state = held(Level::Watchdog, lease(30_000));
    assert_eq!(state.leave(Level::Watchdog, at(1), at(5_000)), Left::Last);
    let next = state.pass_on(watchdog, at(2)).unwrap();
    assert_eq!(next.valid_until(), state.valid_until());
    assert_eq!(next.lease_ends(), state.lease_ends());
    assert_eq!(next.owed_until(), state.owed_until());
    let due = next.due(watchdog, at(2), at(2), Duration::ZERO);
    assert_eq!(
        due,
        Due::Later(at(10_000)),
        "the send of the acquire counts"
    );
}

#[test]
fn a_hold_under_the_watchdog_is_asked_for_once_a_period_however_long_it_is_valid() {
    let short = lease(30_000);
    let watchdog = short;
    let due = |state: &HoldState, now| state.due(watchdog, now, now, Duration::ZERO);
    let mut state = held(Level::Watchdog, short);
    assert_eq!(state.enter(Level::Fixed, at(1_000)), Ok(Some(2)));
    state.prolong(lease(3_600_000).term(at(1_000)), at(1_001));
    let left = state.leave(Level::Fixed, at(1_002), at(1_003));
    assert_eq!(left, Left::Levels(1));
    assert_eq!(due(&state, at(1_003)), Due::Later(at(11_000)));
    assert_eq!(due(&state, at(11_000)), Due::Renew);
    state.prolong(short.term(at(11_000)), at(11_500));
    assert_eq!(
        due(&state, at(11_500)),
        Due::Later(at(21_000)),
        "from the send"
    );

    let fixed = held(Level::Fixed, lease(3_600_000));
    let last = fixed.valid_until().minus(EARLY);
    assert_eq!(due(&fixed, at(11_000)), Due::Later(last), "not watched");
}

#[test]
fn a_fixed_hold_that_was_verified_and_is_watched_from_then_on_is_asked_for_later() {
    let watchdog = lease(30_000);
    let mut state = held(Level::Fixed, lease(3_600_000));
    state.asserted(at(20_000), at(20_001));
    assert_eq!(state.enter(Level::Watchdog, at(20_002)), Ok(Some(2)));
    let due = state.due(watchdog, at(20_002), at(20_002), Duration::ZERO);
    assert_eq!(due, Due::Later(at(30_000)));
}
