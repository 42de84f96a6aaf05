//! The scenarios, and how all their orders are gone through.

use super::*;

/// Goes through all orders of a scenario, the shortest first: each state is come to by the steps that lead to it, from
/// the beginning. How many states there were.
fn explore(scenario: Scenario) -> usize {
    let mut seen = HashSet::new();
    let mut open = VecDeque::from([Vec::new()]);
    while let Some(path) = open.pop_front() {
        let outcome = std::panic::catch_unwind(|| come_to(scenario, &path));
        let (fingerprint, choices) = outcome.unwrap_or_else(|_| panic!("after {path:?}"));
        assert!(seen.len() < 300_000, "too many states, as after {path:?}");
        if seen.insert(fingerprint) {
            open.extend(choices.into_iter().map(|choice| {
                let mut next = Vec::with_capacity(path.len() + 1);
                next.extend_from_slice(&path);
                next.push(choice);
                next
            }));
        }
    }
    seen.len()
}

/// The state behind the steps of `path`, which were looked at before but for the last, and what may happen next.
fn come_to(scenario: Scenario, path: &[Choice]) -> (u128, Vec<Choice>) {
    let mut world = World::new(scenario);
    if let Some((last, known)) = path.split_last() {
        for choice in known {
            world.take(*choice);
        }
        world.step(*last);
    }
    let choices = world.choices();
    if choices.is_empty() {
        world.check_end();
    }
    (world.fingerprint(), choices)
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
    marks: None,
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
            marks: random.bool().then(|| random.u32(..3)),
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
fn writers_come_and_give_up_among_readers() {
    for open in [false, true] {
        let scenario = Scenario {
            callers: &[PLAIN, CARELESS, CARELESS],
            sides: &[Side::Reads, Side::Writes, Side::Writes],
            open,
            marks: Some(0),
            polls: 0,
            ticks: 0,
            ..QUIET
        };
        all_orders("marks", scenario, 1_000);
    }
}

#[test]
fn a_stranger_waits_to_write_while_readers_come_and_go() {
    for open in [false, true] {
        let scenario = Scenario {
            callers: &[PLAIN, CARELESS],
            sides: &[Side::Reads; 2],
            open,
            marks: Some(1),
            ticks: 0,
            ..QUIET
        };
        all_orders("a stranger's mark", scenario, 1_000);
    }
}

#[test]
fn a_client_that_ends_takes_its_mark_with_it() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        sides: &[Side::Reads, Side::Writes],
        marks: Some(0),
        closes: true,
        ticks: 0,
        ..QUIET
    };
    all_orders("marked, closed", scenario, 200);
}

#[test]
fn a_mark_is_heeded_for_a_lease_and_again_after_a_third_of_it() {
    let mut world = World::new(QUIET);
    let (kind, lease) = (world.kind(Side::Writes), DAY.duration());
    let begun = world.now;
    let mut heeded = |after: Duration| world.gate.heeded_for(&kind, begun + after, RULES.plan);
    for round in 0..3 {
        let since = lease * round + lease / 3 * round;
        assert_eq!(heeded(since), lease);
        assert_eq!(heeded(since + lease / 4), lease / 4 * 3);
        assert_eq!(heeded(since + lease), Duration::ZERO);
        assert_eq!(heeded(since + lease / 4 * 5), Duration::ZERO);
    }
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
