//! Java and Rust under fire: workers of both on the same locks. `INTEROP_SECONDS` (8 or 16 unless more, 60 for a campaign
//! that counts), `INTEROP_SEED`, `INTEROP_REDISSON` (4).

use std::env;
use std::time::Duration;

use watchlock_support::campaign::{Campaign, Kind, Tally, kinds};
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

/// Fair locks alone, which our releases hand over to the next one, be it ahead of Java's waiters or behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_and_rust_take_turns_at_locks_that_are_handed_over_under_faults() {
    if let Some(tally) = run(Campaign::of_hand_overs(seed()), 30, 16).await {
        assert!(tally.handed_over > Some(0), "no release handed a lock over");
    }
}

/// With fewer than `least` holds a run would say nothing; it takes so many seconds at least. Without Java there is none.
async fn run(mut campaign: Campaign, least: usize, seconds: u64) -> Option<Tally> {
    Worker::java()?;
    campaign.time = Duration::from_secs(number("INTEROP_SECONDS", 8).max(seconds));
    campaign.workers = vec![Kind::Java, Kind::Rust, Kind::Java, Kind::Rust];
    campaign.owners = 4;
    println!("INTEROP_SEED={}, {:?}", campaign.seed, campaign.time);
    let tally = campaign.run().await;
    println!("{tally}");
    assert!(tally.report.holds > least, "hardly anybody held anything");
    assert!(tally.report.violations.is_empty(), "ours, see above");
    assert!(tally.unexpected().is_empty(), "{:?}", tally.unexpected());
    Some(tally)
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
