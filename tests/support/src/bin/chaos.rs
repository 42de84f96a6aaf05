//! The fault campaign: `CHAOS_SECONDS` (60), `CHAOS_SEED` (by chance, printed), `CHAOS_WORKERS` (4),
//! `CHAOS_OWNERS` (6), `CHAOS_NAMES` (12), `CHAOS_KINDS` (all, else words with commas between); ends with 1 when an
//! invariant was violated.
//!
//! With `SOAK_MINUTES` it is that long, workers are not killed, and what they take of the machine must stay flat.
//! With `CHAOS_HISTORY` nothing is run: the history in that file is checked again.

use std::env;
use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use watchlock_support::campaign::{Campaign, Kind, Tally, growth};
use watchlock_support::checker::check;
use watchlock_support::history::{LockKind, read_history};

#[tokio::main]
async fn main() -> ExitCode {
    if let Ok(path) = env::var("CHAOS_HISTORY") {
        return check_again(&path);
    }
    let seed = number("CHAOS_SEED", u64::from(fastrand::u32(..)));
    let mut campaign = Campaign::new(seed);
    campaign.time = Duration::from_secs(number("CHAOS_SECONDS", 60));
    campaign.workers = vec![Kind::Rust; number("CHAOS_WORKERS", 4)];
    campaign.owners = number("CHAOS_OWNERS", campaign.owners);
    campaign.names = number("CHAOS_NAMES", campaign.names);
    if let Ok(words) = env::var("CHAOS_KINDS") {
        let kinds = words.split(',').map(LockKind::of).collect::<Option<_>>();
        campaign.kinds = kinds.unwrap_or_else(|| panic!("CHAOS_KINDS={words:?}"));
    }
    let soak: u64 = number("SOAK_MINUTES", 0);
    if soak > 0 {
        campaign.time = Duration::from_secs(60 * soak);
        campaign.kills = false;
    }
    println!(
        "CHAOS_SEED={seed}: {:?}, {} workers of {} owners on {} locks of kinds {}",
        campaign.time,
        campaign.workers.len(),
        campaign.owners,
        campaign.names,
        campaign
            .kinds
            .iter()
            .map(|kind| kind.word())
            .collect::<Vec<_>>()
            .join(", "),
    );
    let tally = campaign.run().await;
    println!("\n{tally}");
    let grown = if soak > 0 { flat(&tally) } else { Vec::new() };
    let unexpected = tally.unexpected();
    println!("unexpected answers: {unexpected:?}");
    if tally.report.violations.is_empty() && grown.is_empty() && unexpected.is_empty() {
        println!("no violations");
        return ExitCode::SUCCESS;
    }
    println!("VIOLATIONS; again with CHAOS_SEED={seed}");
    ExitCode::FAILURE
}

/// Checks the history of a round that was kept.
fn check_again(path: &str) -> ExitCode {
    let file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let records = read_history(BufReader::new(file));
    let records = records.unwrap_or_else(|error| panic!("{path}: {error}"));
    let report = check(&records, &Campaign::new(0).settings());
    println!("{report}");
    ExitCode::from(u8::from(!report.violations.is_empty()))
}

/// Shows what the workers took, and says what grew.
fn flat(tally: &Tally) -> Vec<String> {
    println!(
        "{:>5} {:>8} {:>10} {:>6} {:>8}",
        "round", "process", "KiB", "files", "threads"
    );
    for look in &tally.looks {
        let (round, pid) = (look.round, look.pid);
        let (memory, files, threads) = (look.memory_kib, look.files, look.threads);
        println!("{round:>5} {pid:>8} {memory:>10} {files:>6} {threads:>8}");
    }
    let grown = growth(&tally.looks);
    for line in &grown {
        println!("{line}");
    }
    grown
}

fn number<T: FromStr>(variable: &str, default: T) -> T {
    match env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text:?} is no number")),
        Err(_) => default,
    }
}
