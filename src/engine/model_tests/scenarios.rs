//! The scenarios, and how all their orders are gone through.

use super::*;

fn replay(scenario: Scenario, choices: &[Choice]) -> World {
    let mut world = World::new(scenario);
    for choice in choices {
        world.step(*choice);
    }
    world
}

/// Goes through all orders of a scenario; how many states there were.
fn explore(scenario: Scenario) -> usize {
    let mut seen = HashSet::new();
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let outcome = std::panic::catch_unwind(|| {
            let world = replay(scenario, &path);
            let choices = world.choices();
            if choices.is_empty() {
                world.check_end();
            }
            (world.fingerprint(), choices)
        });
        let (fingerprint, choices) = outcome.unwrap_or_else(|_| panic!("after {path:?}"));
        assert!(seen.len() < 300_000, "too many states, as after {path:?}");
        if seen.insert(fingerprint) {
            for choice in choices {
                let mut next = path.clone();
                next.push(choice);
                open.push(next);
            }
        }
    }
    seen.len()
}

const FOREVER: Patience = Patience::Forever;
const ONCE: Patience = Patience::Once;

const QUIET: Scenario = Scenario {
    callers: &[],
    faults: 0,
    polls: 1,
    ticks: 1,
    laters: 0,
    asks: 0,
    strangers: 0,
    closes: false,
    alone: false,
    sides: &[],
    open: false,
};

/// Waits for ever and unlocks; or is dropped somewhere.
const PLAIN: Role = (None, FOREVER, Manner::Unlocks, 1);
const CARELESS: Role = (None, FOREVER, Manner::Drops, 1);

fn all_orders(name: &str, scenario: Scenario, at_least: usize) {
    let states = explore(scenario);
    println!("{name}: {states} states");
    assert!(states >= at_least, "{name}: only {states} states");
}

/// Longer ones than can all be gone through: one order each, at random.
#[test]
fn ten_thousand_random_orders() {
    for seed in 0..10_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let roles = [
            PLAIN,
            CARELESS,
            (Some(1), FOREVER, Manner::Unlocks, 2),
            (Some(1), FOREVER, Manner::Detaches, 2),
            (None, ONCE, Manner::Drops, 2),
        ];
        let callers: Vec<Role> = (0..4).map(|_| roles[random.usize(..roles.len())]).collect();
        let all: &[Side] = match seed % 4 {
            0 => &[Side::Plain],
            1 => &[Side::Passed],
            2 => &[Side::Passed, Side::Plain],
            _ => &[Side::Reads, Side::Writes, Side::ReadsFixed],
        };
        let sides: Vec<Side> = (0..4).map(|_| all[random.usize(..all.len())]).collect();
        let scenario = Scenario {
            callers: Vec::leak(callers),
            faults: random.u32(..4),
            polls: random.u32(..6),
            ticks: random.u32(..3),
            laters: random.u32(..4),
            asks: random.u32(..3),
            strangers: random.u32(..3),
            closes: random.bool(),
            alone: random.bool(),
            sides: Vec::leak(sides),
            open: random.bool(),
        };
        let mut taken = Vec::new();
        let walked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(scenario);
            for _ in 0..200 {
                let choices = world.choices();
                let Some(choice) = random.choice(choices) else {
                    world.check_end();
                    break;
                };
                taken.push(choice);
                world.step(choice);
            }
        }));
        assert!(walked.is_ok(), "seed {seed}: {scenario:?} after {taken:?}");
    }
}

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

/// Readers, and a writer among them, in each order.
fn sharing(name: &str, callers: &'static [Role], sides: &'static [Side], faults: u32) {
    for open in [false, true] {
        let scenario = Scenario {
            callers,
            sides,
            open,
            faults,
            polls: 1,
            ticks: 0,
            ..QUIET
        };
        all_orders(name, scenario, 200);
    }
}

#[test]
fn readers_come_and_go() {
    let sides = &[Side::Reads, Side::Reads, Side::ReadsFixed];
    sharing("readers", &[PLAIN, CARELESS, PLAIN], sides, 0);
}

#[test]
fn readers_and_a_fault() {
    sharing(
        "a fault",
        &[PLAIN, CARELESS],
        &[Side::Reads, Side::Reads],
        1,
    );
}

#[test]
fn a_writer_between_readers() {
    let sides = &[Side::Reads, Side::Writes, Side::Reads];
    sharing("a writer", &[PLAIN, CARELESS, PLAIN], sides, 0);
}

#[test]
fn a_writer_and_a_reader_and_a_fault() {
    sharing(
        "two sides",
        &[CARELESS, PLAIN],
        &[Side::Reads, Side::Writes],
        1,
    );
}

#[test]
fn an_owner_that_writes_and_reads_beside_a_reader() {
    let callers: &[Role] = &[
        (Some(1), FOREVER, Manner::Unlocks, 1),
        (Some(1), FOREVER, Manner::Drops, 1),
        PLAIN,
    ];
    sharing(
        "downgrade",
        callers,
        &[Side::Writes, Side::Reads, Side::Reads],
        0,
    );
}

#[test]
fn a_downgrade_and_a_fault() {
    let callers: &[Role] = &[
        (Some(1), FOREVER, Manner::Unlocks, 1),
        (Some(1), FOREVER, Manner::Unlocks, 1),
    ];
    sharing(
        "downgrade, a fault",
        callers,
        &[Side::Writes, Side::Reads],
        1,
    );
}

#[test]
fn a_reader_behind_one_that_is_not_polled() {
    let callers: &[Role] = &[PLAIN, (None, FOREVER, Manner::Sleeps, 1), PLAIN];
    sharing(
        "asleep",
        callers,
        &[Side::Writes, Side::Reads, Side::Reads],
        0,
    );
}

#[test]
fn an_owner_whose_watched_level_goes_first_or_last() {
    let callers: &[Role] = &[
        (Some(1), FOREVER, Manner::Unlocks, 1),
        (Some(1), FOREVER, Manner::Unlocks, 1),
    ];
    let sides = &[Side::Reads, Side::ReadsFixed];
    sharing("levels", callers, sides, 0);
}

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
        all_orders("a row", scenario, 1_000);
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
