//! Runs seeds, and prints what they found: `simulate [--seeds FROM..UNTIL] [--seconds N] [--trace]`.

use std::time::{Duration, Instant};

use watchlock_simulation::{Plan, run};

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut from, mut until, mut limit, mut trace) = (0, u64::MAX, Duration::MAX, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seeds" => {
                let range = args.next().unwrap_or_default();
                let (first, last) = range.split_once("..").unwrap_or((&range, ""));
                from = first.parse().expect("a number");
                until = last.parse().unwrap_or(from + 1);
            }
            "--seconds" => {
                limit = Duration::from_secs(
                    args.next()
                        .and_then(|text| text.parse().ok())
                        .expect("a number"),
                )
            }
            "--trace" => trace = true,
            _ => panic!("what is {arg}?"),
        }
    }
    let begun = Instant::now();
    let (mut sections, mut simulated, mut failed, mut commands) = (0, Duration::ZERO, 0, 0);
    let mut seed = from;
    while seed < until && begun.elapsed() < limit {
        let plan = Plan::of(seed);
        let at = Instant::now();
        let outcome = run(&plan, trace);
        sections += outcome.sections;
        simulated += outcome.simulated;
        commands += outcome.commands;
        if trace {
            println!("{plan:#?}");
            for line in &outcome.lines {
                println!("{line}");
            }
            for record in &outcome.records {
                println!("{record:?}");
            }
        }
        if !outcome.violations.is_empty() || trace || until - from < 20 {
            println!(
                "seed {seed}: {} sections, {} commands, {:?} simulated in {:?}, trace {:x}",
                outcome.sections,
                outcome.commands,
                outcome.simulated,
                at.elapsed(),
                outcome.trace
            );
        }
        if !outcome.violations.is_empty() {
            failed += 1;
            for violation in outcome.violations.iter().take(3) {
                println!("    {violation}");
            }
        }
        seed += 1;
    }
    let took = begun.elapsed();
    println!(
        "{} seeds, {failed} failed; {sections} sections, {commands} commands, {simulated:?} simulated in {took:?}: {:.0} sections a second",
        seed - from,
        sections as f64 / took.as_secs_f64()
    );
    std::process::exit(i32::from(failed > 0));
}
