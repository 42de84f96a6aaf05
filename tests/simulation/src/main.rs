//! Runs seeds, and prints what they found: `simulate [--seeds FROM..UNTIL] [--seconds N] [--trace] [--watch COMMAND]
//! [--quorum] [--permits] [--replica] [--until-failed] [--shrink] [--processes N] [--owners N] [--names N] [--sections N] [--skip FAULT,…]`. A trace
//! shows what a watched command, such as `LRANGE queue 0 -1`, answers each time that its answer has changed. With `--shrink`
//! a plan that fails is made smaller; the last five options are what it prints, and run the smaller plan.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use watchlock_simulation::{Outcome, Plan, Traced, run, shrink};

/// A tenth of the time would go to the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often a plan that fails is run to make it smaller.
const RUNS: usize = 80;

/// What to run.
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
struct Wanted {
    from: u64,
    until: u64,
    limit: Duration,
    trace: bool,
    watched: Option<String>,
    quorum: bool,
    permits: bool,
    replica: bool,
    /// Ends with the first seed that fails.
    until_failed: bool,
    shrink: bool,
    /// What differs from the plan of the seed.
    changes: Vec<Change>,
}

type Change = Box<dyn Fn(&mut Plan)>;

impl Wanted {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut wanted = Self {
            from: 0,
            until: u64::MAX,
            limit: Duration::MAX,
            trace: false,
            watched: None,
            quorum: false,
            permits: false,
            replica: false,
            until_failed: false,
            shrink: false,
            changes: Vec::new(),
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
                "--permits" => wanted.permits = true,
                "--replica" => wanted.replica = true,
                "--until-failed" => wanted.until_failed = true,
                "--shrink" => wanted.shrink = true,
                option => wanted.changes.push(change(option, &args.next()?)?),
            }
        }
        Some(wanted)
    }

    fn plan(&self, seed: u64) -> Plan {
        let mut plan = if self.quorum {
            Plan::of_quorum(seed)
        } else if self.permits {
            Plan::of_permits(seed)
        } else if self.replica {
            Plan::of_replica(seed)
        } else {
            Plan::of(seed)
        };
        self.changes.iter().for_each(|change| change(&mut plan));
        plan
    }
}

/// An option that makes a plan smaller.
fn change(option: &str, value: &str) -> Option<Change> {
    if option == "--skip" {
        let numbers: Result<Vec<_>, _> = value.split(',').map(str::parse).collect();
        let numbers = numbers.ok()?;
        return Some(Box::new(move |plan| plan.skipped.clone_from(&numbers)));
    }
    let count: usize = value.parse().ok().filter(|count| *count > 0)?;
    let least = move |now: usize| count.min(now);
    Some(match option {
        "--processes" => Box::new(move |plan| plan.processes = least(plan.processes)),
        "--owners" => Box::new(move |plan| plan.owners = least(plan.owners)),
        "--names" => Box::new(move |plan| plan.names = least(plan.names)),
        "--sections" => Box::new(move |plan| plan.sections = count),
        _ => return None,
    })
}

fn main() -> ExitCode {
    let Some(wanted) = Wanted::read(std::env::args().skip(1)) else {
        eprintln!(
            "simulate [--seeds FROM..UNTIL] [--seconds N] [--trace] [--watch COMMAND] [--quorum] [--permits] [--replica] [--until-failed] \
             [--shrink] [--processes N] [--owners N] [--names N] [--sections N] [--skip FAULT,...]"
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
        let mut plan = wanted.plan(seed);
        let watched = wanted.watched.as_deref();
        let traced = if wanted.trace {
            Traced::Lines { watched }
        } else {
            Traced::Sum
        };
        let mut outcome = run(&plan, traced);
        if wanted.trace {
            println!("{plan:#?}");
            print_all(&outcome);
        }
        if !outcome.violations.is_empty() {
            if wanted.shrink {
                (plan, outcome) = shrink(plan, outcome, RUNS);
            }
            println!("seed {seed}: again with `{}`", plan.again());
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
