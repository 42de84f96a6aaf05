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

/// The second try of a hold may run before it is known that too few replicas acknowledged the first.
#[test]
fn grants_that_too_few_replicas_acknowledge() {
    for side in [Side::Plain, Side::Passed, Side::Queued, Side::Writes] {
        let sides: &[Side] = match side {
            Side::Plain => &[],
            Side::Passed => &[Side::Passed; 2],
            Side::Queued => &[Side::Queued; 2],
            _ => &[Side::Writes, Side::Reads],
        };
        let scenario = Scenario {
            callers: &[PLAIN, CARELESS],
            shortfalls: 2,
            sides,
            polls: 0,
            ticks: 0,
            ..QUIET
        };
        all_orders(&format!("too few replicas, {side:?}"), scenario, 200);
        let scenario = Scenario {
            callers: &[PLAIN],
            shortfalls: 1,
            faults: 1,
            ..scenario
        };
        all_orders(&format!("and a fault, {side:?}"), scenario, 50);
    }
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
