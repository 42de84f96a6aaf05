//! Runs seeds, and prints what they found: `simulate [--seeds FROM..UNTIL] [--seconds N] [--trace] [--watch COMMAND]
//! [--quorum] [--until-failed]`. A trace shows what a watched command, such as `LRANGE queue 0 -1`, answers each time that
//! its answer has changed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use watchlock_simulation::{Outcome, Plan, Traced, run};

/// What to run.
struct Wanted {
    from: u64,
    until: u64,
    limit: Duration,
    trace: bool,
    watched: Option<String>,
    quorum: bool,
    /// Ends with the first seed that fails.
    until_failed: bool,
}

impl Wanted {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut wanted = Self {
            from: 0,
            until: u64::MAX,
            limit: Duration::MAX,
            trace: false,
            watched: None,
            quorum: false,
            until_failed: false,
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seeds" => {
                    let seeds = args.next()?;
                    let (from, until) = seeds.split_once("..").unwrap_or((&seeds, ""));
                    wanted.from = from.parse().ok()?;
                    wanted.until = until.parse().unwrap_or(wanted.from + 1);
                }
                "--seconds" => wanted.limit = Duration::from_secs(args.next()?.parse().ok()?),
                "--trace" => wanted.trace = true,
                "--watch" => wanted.watched = Some(args.next()?),
                "--quorum" => wanted.quorum = true,
                "--until-failed" => wanted.until_failed = true,
                _ => return None,
            }
        }
        Some(wanted)
    }
}

fn main() -> ExitCode {
    let Some(wanted) = Wanted::read(std::env::args().skip(1)) else {
        eprintln!(
            "simulate [--seeds FROM..UNTIL] [--seconds N] [--trace] [--watch COMMAND] [--quorum] [--until-failed]"
        );
        return ExitCode::from(2);
    };
    let begun = Instant::now();
    let (mut sections, mut commands, mut simulated) = (0, 0, Duration::ZERO);
    let (mut seeds, mut failed) = (0, 0);
    for seed in wanted.from..wanted.until {
        if begun.elapsed() >= wanted.limit || (wanted.until_failed && failed > 0) {
            break;
        }
        let plan = if wanted.quorum {
            Plan::of_quorum(seed)
        } else {
            Plan::of(seed)
        };
        let watched = wanted.watched.as_deref();
        let traced = if wanted.trace {
            Traced::Lines { watched }
        } else {
            Traced::Sum
        };
        let outcome = run(&plan, traced);
        if wanted.trace {
            println!("{plan:#?}");
            print_all(&outcome);
        }
        if !outcome.violations.is_empty() {
            println!("seed {seed}: again with `make simulate SEEDS={seed} TRACE=1`");
            for violation in outcome.violations.iter().take(3) {
                println!("    {violation}");
            }
            failed += 1;
        }
        seeds += 1;
        sections += outcome.sections as u64;
        commands += outcome.commands;
        simulated += outcome.simulated;
    }
    let took = begun.elapsed();
    let a_second = u128::from(sections) * 1_000 / took.as_millis().max(1);
    println!(
        "{seeds} seeds, {failed} failed; {sections} sections with {commands} commands, \
         {} s simulated in {} s: {a_second} sections a second",
        simulated.as_secs(),
        took.as_secs(),
    );
    ExitCode::from(u8::from(failed > 0))
}

fn print_all(outcome: &Outcome) {
    for line in &outcome.lines {
        println!("{line}");
    }
    for record in &outcome.records {
        println!("{record:?}");
    }
    println!("trace {:x}", outcome.trace);
}
