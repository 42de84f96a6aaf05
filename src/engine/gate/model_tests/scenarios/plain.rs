//! Exclusive locks.

use super::*;

#[test]
fn two_callers_and_a_fault() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        faults: 1,
        ticks: 0,
        ..QUIET
    };
    all_orders("a fault", scenario, 10_000);
}

#[test]
fn a_caller_behind_one_that_is_not_polled() {
    let scenario = Scenario {
        callers: &[(None, FOREVER, Manner::Sleeps, 1), PLAIN],
        polls: 2,
        ..QUIET
    };
    all_orders("not polled", scenario, 500);
}

#[test]
fn two_callers_whose_grants_lie_there_for_a_time_out() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        ..QUIET
    };
    all_orders("a time-out", scenario, 1_000);
}

#[test]
fn one_caller_and_two_faults() {
    let scenario = Scenario {
        callers: &[PLAIN],
        faults: 2,
        ..QUIET
    };
    all_orders("two faults", scenario, 1_000);
}

#[test]
fn an_owner_that_acquires_twice_at_once() {
    let scenario = Scenario {
        callers: &[
            (Some(1), FOREVER, Manner::Unlocks, 1),
            (Some(1), FOREVER, Manner::Drops, 1),
        ],
        ..QUIET
    };
    all_orders("one owner", scenario, 500);
}

#[test]
fn an_owner_that_ends_while_its_guards_are_detached() {
    let scenario = Scenario {
        callers: &[
            (Some(1), FOREVER, Manner::Detaches, 1),
            (Some(1), FOREVER, Manner::Drops, 1),
        ],
        ticks: 0,
        ..QUIET
    };
    all_orders("detached", scenario, 500);
}

#[test]
fn one_try_beside_those_who_wait_behind_a_stranger() {
    let scenario = Scenario {
        callers: &[CARELESS, PLAIN, (None, ONCE, Manner::Unlocks, 1)],
        strangers: 1,
        polls: 0,
        ticks: 0,
        ..QUIET
    };
    all_orders("one try", scenario, 500);
}

#[test]
fn a_lock_that_is_handed_over() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        faults: 1,
        polls: 0,
        ticks: 0,
        alone: true,
        ..QUIET
    };
    all_orders("handed over", scenario, 500);
}

#[test]
fn a_client_that_ends_behind_its_callers() {
    for alone in [false, true] {
        let scenario = Scenario {
            callers: &[CARELESS, PLAIN],
            closes: true,
            alone,
            polls: 0,
            ticks: 0,
            ..QUIET
        };
        all_orders("closed", scenario, 200);
    }
}
