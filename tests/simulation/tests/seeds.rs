//! Seeds that run in each `make test`: 0 to 199, for at most `SIMULATION_SECONDS` (20), and some twice. `make simulate` runs
//! others.

use std::time::{Duration, Instant};

use watchlock_simulation::{Outcome, Plan, Traced, run};

const SEEDS: u64 = 200;

fn fine(seed: u64) -> Outcome {
    let outcome = run(&Plan::of(seed), Traced::Sum);
    let found = &outcome.violations;
    assert!(
        found.is_empty(),
        "{found:#?}\nagain: make simulate SEEDS={seed}"
    );
    outcome
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    // Under faults, and with several processes.
    let mut rough = (0..).filter(|seed| {
        let plan = Plan::of(*seed);
        plan.is_rough() && plan.processes > 1
    });
    for _ in 0..5 {
        let seed = rough.next().unwrap();
        let (first, second) = (fine(seed), fine(seed));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.records, second.records, "seed {seed}");
    }
}

#[test]
fn nothing_is_violated() {
    let seconds = std::env::var("SIMULATION_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let limit = Duration::from_secs(seconds.unwrap_or(20));
    let begun = Instant::now();
    let mut sections = 0;
    for seed in 0..SEEDS {
        sections += fine(seed).sections;
        if begun.elapsed() >= limit {
            break;
        }
    }
    println!("{sections} sections");
}
