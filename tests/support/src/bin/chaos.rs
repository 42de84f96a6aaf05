//! The fault campaign: `CHAOS_SECONDS` (60), `CHAOS_SEED` (by chance, printed), `CHAOS_WORKERS` (4),
//! `CHAOS_OWNERS` (6), `CHAOS_NAMES` (12), `CHAOS_KINDS` (all, else words with commas between); ends with 1 when an
//! invariant was violated.
//!
//! Behind the campaign on one server come two on the five servers of a quorum, each for a quarter of the time: on servers
//! that forget everything when they are killed, and on servers that forget nothing and vote at once.
//!
//! Then come masters with replicas, each for `CHAOS_FAILOVER_SECONDS` (7): a cluster without acknowledgements, where
//! two holders after a fail-over that lost something are counted; a master whose only replica acknowledges; and a
//! cluster whose replicas do.
//!
//! `CHAOS_ON` leaves out what it does not name: `one`, `quorum`, `cluster`, `sentinels` (only there by its name, without
//! acknowledgements), `acknowledged`, with commas between.
//!
//! With `SOAK_MINUTES` only the first part runs, for that long; workers are not killed, and the memory, files and
//! threads that they take must not grow.
//! With `CHAOS_HISTORY` nothing runs: the history in that file is checked again.

use std::env;
use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use watchlock_support::campaign::{Campaign, Kind, Layout, Tally, growth, kinds};
use watchlock_support::checker::check;
use watchlock_support::history::{LockKind, read_history};

#[tokio::main]
async fn main() -> ExitCode {
    if let Ok(path) = env::var("CHAOS_HISTORY") {
        return check_again(&path);
    }
    let seed = number("CHAOS_SEED", u64::from(fastrand::u32(..)));
    let mut wrong = Vec::new();
    for campaign in campaigns(seed) {
        wrong.extend(run(&campaign).await);
    }
    if wrong.is_empty() {
        return ExitCode::SUCCESS;
    }
    // Repeated at the end, where people begin to read a long output.
    println!("{}", wrong.join("\n"));
    println!("VIOLATIONS; again with CHAOS_SEED={seed}");
    ExitCode::FAILURE
}

/// Those that `CHAOS_ON` asks for.
fn campaigns(seed: u64) -> Vec<Campaign> {
    let time = Duration::from_secs(number("CHAOS_SECONDS", 60));
    let mut all = vec![Campaign::new(seed)];
    all[0].time = time;
    all[0].names = number("CHAOS_NAMES", all[0].names);
    let soak: u64 = number("SOAK_MINUTES", 0);
    if soak > 0 {
        all[0].time = Duration::from_secs(60 * soak);
        all[0].kills = false;
    } else {
        for layout in [Layout::Forgetting, Layout::Remembering] {
            let mut campaign = Campaign::of_quorum(seed, layout);
            campaign.time = time / 4;
            all.push(campaign);
        }
        for layout in [
            Layout::Cluster,
            Layout::Sentinels,
            Layout::Acknowledged,
            Layout::AcknowledgedCluster,
        ] {
            let mut campaign = Campaign::of_replicas(seed, layout);
            campaign.time = Duration::from_secs(number("CHAOS_FAILOVER_SECONDS", 7));
            all.push(campaign);
        }
        let on = env::var("CHAOS_ON");
        let on = on.as_deref().unwrap_or("one,quorum,cluster,acknowledged");
        all.retain(|campaign| on.split(',').any(|word| word == campaign.layout.word()));
    }
    let wanted = wanted_kinds();
    for campaign in &mut all {
        campaign.workers = vec![Kind::Rust; number("CHAOS_WORKERS", 4)];
        campaign.owners = number("CHAOS_OWNERS", campaign.owners);
        campaign.kinds.retain(|kind| wanted.contains(kind));
    }
    all.retain(|campaign| !campaign.kinds.is_empty());
    all
}

fn wanted_kinds() -> Vec<LockKind> {
    let Ok(words) = env::var("CHAOS_KINDS") else {
        return [kinds::RUST, kinds::QUORUM].concat();
    };
    let kinds = words.split(',').map(LockKind::of).collect::<Option<_>>();
    kinds.unwrap_or_else(|| panic!("CHAOS_KINDS={words:?}"))
}

/// The first few things that went wrong; the output above has all of them.
async fn run(campaign: &Campaign) -> Vec<String> {
    let words: Vec<_> = campaign.kinds.iter().map(|kind| kind.word()).collect();
    println!(
        "CHAOS_SEED={}: {:?}, {} workers of {} owners on {} locks of kinds {}, {}",
        campaign.seed,
        campaign.time,
        campaign.workers.len(),
        campaign.owners,
        campaign.names,
        words.join(", "),
        campaign.layout,
    );
    let tally = campaign.run().await;
    println!("\n{tally}");
    let grown = if campaign.kills {
        Vec::new()
    } else {
        flat(&tally)
    };
    let unexpected = tally.unexpected();
    println!("unexpected answers: {unexpected:?}");
    let violations = tally.report.violations.iter().map(ToString::to_string);
    let unexpected = unexpected
        .iter()
        .map(|answer| format!("unexpected: {answer}"));
    let wrong: Vec<_> = violations.chain(grown).chain(unexpected).collect();
    if wrong.is_empty() {
        println!("no violations\n");
    }
    let part = |line| format!("{}: {line}", campaign.layout);
    wrong.into_iter().take(3).map(part).collect()
}

/// Checks the history of a round that was written to a file.
fn check_again(path: &str) -> ExitCode {
    let file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let records = read_history(BufReader::new(file));
    let records = records.unwrap_or_else(|error| panic!("{path}: {error}"));
    let report = check(&records, &Campaign::new(0).settings());
    println!("{report}");
    ExitCode::from(u8::from(!report.violations.is_empty()))
}

/// Prints what the workers took, and what grew.
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
