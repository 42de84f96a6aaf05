//! A lock whose queue Redis keeps.

use super::*;

/// Wake-ups are not lost, and nobody polls.
const IN_TURN: Scenario = Scenario {
    sides: &[Side::Queued; 2],
    polls: 0,
    ticks: 0,
    ..QUIET
};

#[test]
fn who_leaves_a_queue_holds_nobody_up() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        ..IN_TURN
    };
    all_orders("in turn", scenario, 1_000);
}

#[test]
fn strangers_in_the_queue_and_one_that_dies_there() {
    let scenario = Scenario {
        callers: &[PLAIN],
        strangers: 2,
        deaths: 1,
        ..IN_TURN
    };
    all_orders("strangers", scenario, 500);
}

#[test]
fn a_place_and_a_fault() {
    let scenario = Scenario {
        callers: &[CARELESS],
        strangers: 1,
        faults: 1,
        polls: 1,
        ..IN_TURN
    };
    all_orders("a place, a fault", scenario, 1_000);
}

#[test]
fn one_try_beside_one_who_has_a_place() {
    let scenario = Scenario {
        callers: &[PLAIN, (None, ONCE, Manner::Unlocks, 1)],
        strangers: 1,
        ..IN_TURN
    };
    all_orders("one try, a place", scenario, 1_000);
}

#[test]
fn a_grant_in_turn_to_one_that_is_not_polled() {
    let scenario = Scenario {
        callers: &[PLAIN, (None, FOREVER, Manner::Sleeps, 1)],
        ticks: 1,
        ..IN_TURN
    };
    all_orders("in turn, not polled", scenario, 500);
}

#[test]
fn an_owner_that_queues_twice() {
    let scenario = Scenario {
        callers: &[
            (Some(1), FOREVER, Manner::Unlocks, 1),
            (Some(1), FOREVER, Manner::Unlocks, 1),
        ],
        ..IN_TURN
    };
    all_orders("an owner, in turn", scenario, 500);
}

#[test]
fn a_queue_that_redis_forgets() {
    let scenario = Scenario {
        callers: &[(None, FOREVER, Manner::Stays, 1); 2],
        strangers: 1,
        forgets: 1,
        ..IN_TURN
    };
    all_orders("forgotten", scenario, 10_000);
}

#[test]
fn a_queue_that_redis_forgets_and_one_who_goes_away() {
    let scenario = Scenario {
        callers: &[CARELESS],
        strangers: 1,
        forgets: 1,
        ..IN_TURN
    };
    all_orders("forgotten, one goes", scenario, 500);
}

#[test]
fn a_client_that_ends_gives_its_places_back() {
    let scenario = Scenario {
        callers: &[CARELESS, CARELESS],
        closes: true,
        ..IN_TURN
    };
    all_orders("in turn, closed", scenario, 200);
}
