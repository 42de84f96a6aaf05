//! The scenarios, and how all their orders are gone through.

mod passed;
mod permits;
mod plain;
mod queued;
mod random;
mod shared;

use super::*;

/// Goes through all orders of a scenario, the shortest first. Each state is reached by repeating the steps that lead to
/// it. Returns the number of states.
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

/// The state after the steps of `path`, of which only the last was not checked before, and what may happen next.
fn come_to(scenario: Scenario, path: &[Choice]) -> (u128, Vec<Choice>) {
    let mut world = World::new(scenario);
    if let Some((last, known)) = path.split_last() {
        for choice in known {
            world.take(*choice);
        }
        world.step(*last);
    }
    let choices = world.choices();
    world.check_left_behind(&choices);
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
    calls: 0,
    laters: 0,
    asks: 0,
    strangers: 0,
    deaths: 0,
    forgets: 0,
    shortfalls: 0,
    permits: 0,
    notes: None,
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
