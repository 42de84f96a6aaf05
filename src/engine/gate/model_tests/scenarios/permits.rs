//! Permits of a counted lock.

use super::*;

/// Two permits, and callers that take one or two of them, in each order.
const COUNTED: Scenario = Scenario {
    permits: 2,
    polls: 0,
    ticks: 0,
    ..QUIET
};

/// Waits for ever, and unlocks.
const STAYS: Role = (None, FOREVER, Manner::Stays, 1);

const ONE: Side = Side::Permits(1);
const TWO: Side = Side::Permits(2);

#[test]
fn permits_for_one_and_for_two() {
    for sides in [&[ONE, TWO, ONE], &[TWO, ONE, ONE]] {
        let scenario = Scenario {
            callers: &[STAYS, CARELESS, STAYS],
            sides,
            ..COUNTED
        };
        all_orders(&format!("permits {sides:?}"), scenario, 1_000);
    }
}

#[test]
fn one_permit_for_three() {
    let scenario = Scenario {
        callers: &[STAYS, CARELESS, STAYS],
        sides: &[ONE; 3],
        permits: 1,
        ..COUNTED
    };
    all_orders("one permit", scenario, 1_000);
}

#[test]
fn permits_and_a_fault() {
    for sides in [&[ONE, ONE], &[TWO, ONE], &[ONE, TWO]] {
        let scenario = Scenario {
            callers: &[PLAIN, CARELESS],
            sides,
            faults: 1,
            ..COUNTED
        };
        all_orders(&format!("permits, a fault, {sides:?}"), scenario, 1_000);
    }
}

#[test]
fn permits_of_a_stranger_and_one_that_waits() {
    for sides in [&[ONE, ONE], &[TWO, ONE]] {
        let scenario = Scenario {
            callers: &[PLAIN, CARELESS],
            sides,
            strangers: 1,
            notes: Some(1),
            ..COUNTED
        };
        all_orders(&format!("permits, a stranger, {sides:?}"), scenario, 1_000);
    }
}

#[test]
fn a_single_try_for_permits_beside_waiters() {
    let scenario = Scenario {
        callers: &[STAYS, CARELESS, (None, ONCE, Manner::Unlocks, 1)],
        sides: &[TWO, ONE, ONE],
        ..COUNTED
    };
    all_orders("permits, a single try", scenario, 1_000);
}

#[test]
fn permits_that_nobody_collects() {
    let scenario = Scenario {
        callers: &[(None, FOREVER, Manner::Sleeps, 1), PLAIN],
        sides: &[TWO, ONE],
        ticks: 1,
        calls: 1,
        ..COUNTED
    };
    all_orders("permits, not polled", scenario, 1_000);
}

#[test]
fn permits_that_too_few_replicas_acknowledge() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        sides: &[ONE, TWO],
        shortfalls: 2,
        ..COUNTED
    };
    all_orders("permits, too few replicas", scenario, 1_000);
}
