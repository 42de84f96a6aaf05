//! Java and Rust under fire: workers of both on the same locks. `INTEROP_SECONDS` (8 unless set, 60 for a campaign that
//! counts), `INTEROP_SEED`, `INTEROP_REDISSON` (4).

use std::env;
use std::time::Duration;

use watchlock_support::campaign::{Campaign, Kind, kinds};
use watchlock_support::worker::Worker;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_and_rust_are_never_certain_at_once_under_faults() {
    if Worker::java().is_none() {
        return;
    }
    let seed = number("INTEROP_SEED", u64::from(fastrand::u32(..)));
    let mut campaign = Campaign::new(seed);
    campaign.time = Duration::from_secs(number("INTEROP_SECONDS", 8));
    campaign.workers = vec![Kind::Java, Kind::Rust, Kind::Java, Kind::Rust];
    (campaign.owners, campaign.names) = (4, 12);
    campaign.kinds = kinds::shared();
    println!("INTEROP_SEED={seed}, {:?}", campaign.time);
    let tally = campaign.run().await;
    println!("{tally}");
    assert!(tally.report.holds > 100, "hardly anybody held anything");
    assert!(tally.report.violations.is_empty(), "ours, see above");
    assert!(tally.unexpected().is_empty(), "{:?}", tally.unexpected());
}

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text:?} is no number"))
    })
}
