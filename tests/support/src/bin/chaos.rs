//! The fault campaign: `CHAOS_SECONDS` (60), `CHAOS_SEED` (by chance, printed), `CHAOS_WORKERS` (4),
//! `CHAOS_OWNERS` (4), `CHAOS_NAMES` (8); ends with 1 when an invariant was violated.

use std::env;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use watchlock_support::campaign::Campaign;

#[tokio::main]
async fn main() -> ExitCode {
    let seed = number("CHAOS_SEED", u64::from(fastrand::u32(..)));
    let mut campaign = Campaign::new(seed);
    campaign.time = Duration::from_secs(number("CHAOS_SECONDS", 60));
    campaign.workers = number("CHAOS_WORKERS", campaign.workers);
    campaign.owners = number("CHAOS_OWNERS", campaign.owners);
    campaign.names = number("CHAOS_NAMES", campaign.names);
    println!(
        "CHAOS_SEED={seed}: {:?}, {} workers of {} owners on {} locks",
        campaign.time, campaign.workers, campaign.owners, campaign.names
    );
    let tally = campaign.run().await;
    println!("\n{tally}");
    if tally.report.violations.is_empty() {
        println!("no violations");
        return ExitCode::SUCCESS;
    }
    println!("VIOLATIONS; again with CHAOS_SEED={seed}");
    ExitCode::FAILURE
}

fn number<T: FromStr>(variable: &str, default: T) -> T {
    match env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text:?} is no number")),
        Err(_) => default,
    }
}
