//! Holds that are passed on.

use super::*;

/// Holds that are passed on.
const PASSED: &[Side] = &[Side::Passed, Side::Passed, Side::Passed];

#[test]
fn a_hold_that_is_passed_on() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS, PLAIN],
        sides: PASSED,
        polls: 0,
        ticks: 0,
        ..QUIET
    };
    all_orders("passed on", scenario, 500);
}

#[test]
fn a_hold_that_is_passed_on_and_a_fault() {
    let scenario = Scenario {
        callers: &[PLAIN, PLAIN],
        sides: PASSED,
        faults: 1,
        polls: 1,
        ticks: 0,
        ..QUIET
    };
    all_orders("passed on, a fault", scenario, 1_000);
}

#[test]
fn a_question_that_is_answered_behind_a_hold_that_was_passed_on() {
    let scenario = Scenario {
        callers: &[PLAIN, PLAIN],
        sides: PASSED,
        faults: 1,
        asks: 1,
        polls: 0,
        ticks: 0,
        ..QUIET
    };
    all_orders("asked", scenario, 1_000);
}

#[test]
fn a_row_that_ends() {
    for alone in [false, true] {
        let scenario = Scenario {
            callers: &[PLAIN, CARELESS],
            sides: PASSED,
            laters: 1,
            strangers: 1,
            polls: 0,
            ticks: 0,
            alone,
            ..QUIET
        };
        all_orders("a pass-on window", scenario, 1_000);
    }
}

#[test]
fn a_grant_that_is_passed_on_to_one_that_is_not_polled() {
    let scenario = Scenario {
        callers: &[PLAIN, (None, FOREVER, Manner::Sleeps, 1), PLAIN],
        sides: PASSED,
        laters: 1,
        ..QUIET
    };
    all_orders("passed on, not polled", scenario, 500);
}

#[test]
fn waiters_that_are_called_and_some_that_are_not_polled() {
    for sides in [PASSED, &[]] {
        let scenario = Scenario {
            callers: &[
                (None, FOREVER, Manner::Sleeps, 1),
                (None, FOREVER, Manner::Sleeps, 1),
                PLAIN,
            ],
            sides,
            calls: 1,
            polls: 0,
            ticks: 0,
            ..QUIET
        };
        all_orders("called", scenario, 500);
    }
}

#[test]
fn kinds_that_are_passed_on_and_kinds_that_are_not() {
    for sides in [
        &[Side::Passed, Side::Plain, Side::Passed],
        &[Side::Plain, Side::Passed, Side::Plain],
    ] {
        let scenario = Scenario {
            callers: &[PLAIN, CARELESS, PLAIN],
            sides,
            polls: 0,
            ticks: 0,
            ..QUIET
        };
        all_orders("kinds", scenario, 500);
    }
}

#[test]
fn a_hold_that_is_passed_on_to_an_owner_that_acquires_twice() {
    let scenario = Scenario {
        callers: &[
            PLAIN,
            (Some(1), FOREVER, Manner::Unlocks, 1),
            (Some(1), FOREVER, Manner::Drops, 1),
        ],
        sides: PASSED,
        polls: 0,
        ticks: 0,
        ..QUIET
    };
    all_orders("passed on to an owner", scenario, 500);
}

#[test]
fn a_client_that_ends_behind_a_hold_that_was_passed_on() {
    let scenario = Scenario {
        callers: &[CARELESS, PLAIN],
        sides: PASSED,
        closes: true,
        polls: 0,
        ticks: 0,
        ..QUIET
    };
    all_orders("passed on, closed", scenario, 200);
}

#[test]
fn a_hold_that_was_entered_is_passed_on_with_a_count_of_one() {
    for manner in [Manner::Stays, Manner::Drops] {
        let callers = vec![
            (Some(1), FOREVER, Manner::Stays, 1),
            (Some(1), FOREVER, manner, 1),
            (None, FOREVER, Manner::Stays, 1),
        ];
        let scenario = Scenario {
            callers: Vec::leak(callers),
            sides: PASSED,
            polls: 0,
            ticks: 0,
            ..QUIET
        };
        all_orders("entered and passed on", scenario, 10_000);
    }
}
