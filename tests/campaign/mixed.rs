//! Java and Rust under faults: workers of both on the same locks. `INTEROP_SECONDS` (8 or 16 by default, 60 for a
//! serious campaign), `INTEROP_SEED`, `INTEROP_REDISSON` (4).

use std::env;
use std::time::Duration;

use watchlock_support::campaign::{Campaign, Kind, kinds};
use watchlock_support::history::LockKind;
use watchlock_support::worker::Worker;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_and_rust_are_never_certain_at_once_under_faults() {
    let campaign = Campaign {
        names: 12,
        kinds: kinds::shared(),
        ..Campaign::new(seed())
    };
    run(campaign, 100, 8).await;
}

/// A few fair locks alone, so that waiters of both stand in one queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_and_rust_take_turns_at_fair_locks_under_faults() {
    let campaign = Campaign {
        names: 3,
        kinds: vec![LockKind::Fair],
        ..Campaign::new(seed())
    };
    run(campaign, 30, 16).await;
}

/// With fewer than `least` holds a run would say nothing; it takes so many seconds at least. Without Java there is none.
async fn run(mut campaign: Campaign, least: usize, seconds: u64) {
    if !Worker::has_java() {
        return;
    }
    campaign.time = Duration::from_secs(number("INTEROP_SECONDS", 8).max(seconds));
    campaign.workers = vec![Kind::Java, Kind::Rust, Kind::Java, Kind::Rust];
    campaign.owners = 4;
    println!("INTEROP_SEED={}, {:?}", campaign.seed, campaign.time);
    let tally = campaign.run().await;
    println!("{tally}");
    assert!(tally.report.holds > least, "hardly anybody held anything");
    assert!(tally.report.violations.is_empty(), "ours, see above");
    assert!(tally.unexpected().is_empty(), "{:?}", tally.unexpected());
}

fn seed() -> u64 {
    number("INTEROP_SEED", u64::from(fastrand::u32(..)))
}

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text:?} is no number"))
    })
}
