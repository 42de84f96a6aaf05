//! Fail-overs at random, and what the checker finds after them.

use std::time::Duration;

use watchlock_support::campaign::{Campaign, Layout, Tally};

async fn run(layout: Layout) -> Tally {
    let mut campaign = Campaign::of_replicas(fastrand::u64(..), layout);
    campaign.time = Duration::from_secs(5);
    campaign.workers.truncate(3);
    println!("seed {}", campaign.seed);
    let tally = campaign.run().await;
    println!("{tally}");
    assert!(tally.report.violations.is_empty(), "seed {}", campaign.seed);
    assert_eq!(tally.unexpected(), Vec::<&str>::new());
    tally
}

/// The first fault loses what was granted for a second and a half. Its holder learns that from its client's first
/// question at the new master; that somebody else was quicker is printed, not asserted.
#[tokio::test]
async fn without_acknowledgements_what_a_stale_replica_lacks_is_reported_to_its_holders() {
    let tally = run(Layout::Cluster).await;
    assert!(tally.lost > 0);
}

#[tokio::test]
async fn in_a_cluster_whose_replicas_acknowledge_there_are_none() {
    let tally = run(Layout::AcknowledgedCluster).await;
    assert!(tally.lost_writes.is_empty());
    assert!(tally.report.holds > 0);
}

#[tokio::test]
async fn with_the_acknowledgement_of_the_only_replica_there_are_none() {
    let tally = run(Layout::Acknowledged).await;
    assert!(tally.lost_writes.is_empty());
    assert!(tally.report.holds > 0);
}
