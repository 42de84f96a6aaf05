//! What a lock survives when the master of an asynchronous replication is killed: six cases, including those that go
//! wrong. `make failover` prints them as a table, for two servers.
//!
//! The first client takes the lock, the master is killed with -9 and the sentinels promote a replica; then a second
//! client tries for the same lock. If both get it, two hold it until the first one learns of its loss, when its client
//! asks at the new master.

#[path = "../common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use watchlock::{Client, ClientBuilder, Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};

use common::{LONG, ms, soon};

const LEASE: Duration = Duration::from_secs(20);
const NAME: &str = "order";

/// A case, and its expected outcome.
struct Case {
    letter: char,
    about: &'static str,
    replicas: usize,
    acks: u32,
    /// The replica whose replication stalls; with several replicas, the one that is promoted.
    stalled: Option<usize>,
    first: bool,
    second: bool,
}

async fn run(case: Case) {
    let preferred = case.stalled.unwrap_or(0);
    let deployment = SentinelDeployment::options()
        .replicas(case.replicas)
        .preferred(preferred)
        .password("secret")
        .start()
        .await;
    let old = &deployment.servers()[0];
    old.acknowledged(case.replicas).await;
    let (client, other) = (
        connect(&deployment, case.acks).await,
        connect(&deployment, 0).await,
    );
    if let Some(stalled) = case.stalled {
        deployment.servers()[1 + stalled].cut_off_from(old).await;
        old.acknowledged(case.replicas - 1).await;
    }
    let lock = client.get_lock(NAME);
    let first = match lock.try_lock(Duration::ZERO, Lease::Fixed(LEASE)).await {
        Ok(granted) => Some(granted.expect("nobody has it")),
        Err(error) => {
            assert!(error.not_replicated().is_some(), "{error:?}");
            None
        }
    };
    if case.stalled.is_none() {
        // By luck without acknowledgements: nothing delayed the replication.
        for replica in &deployment.servers()[1..] {
            eventually("it is replicated", LONG, async || {
                replica.exists(NAME).await
            })
            .await;
        }
    }
    let begun = Instant::now();
    old.kill();
    let new = deployment.master_after(old, deployment.sentinels()).await;
    let named = begun.elapsed();
    let second = tried(&other).await;
    let granted = begun.elapsed();
    let notified = match (&first, second) {
        (None, _) => "",
        (Some(guard), true) => {
            let reason = soon(guard.lost()).await;
            let after = format!(
                "{named:?}, {granted:?} and {:?} after the kill",
                begun.elapsed()
            );
            assert_eq!(reason, LostReason::Missing, "named, granted, lost: {after}");
            ", the first is notified"
        }
        (Some(guard), false) => {
            guard.check().expect("it has the lock");
            ""
        }
    };
    let word = |granted, not| if granted { "granted" } else { not };
    println!(
        "| {} {} | {} | {} | {}{notified} |",
        case.letter,
        case.about,
        word(first.is_some(), "refused"),
        word(second, "busy"),
        if first.is_some() && second {
            "**two holders**"
        } else {
            "one"
        },
    );
    assert_eq!(
        (first.is_some(), second),
        (case.first, case.second),
        "{}",
        case.letter
    );
    assert_ne!(new.port(), old.port());
}

async fn connect(deployment: &SentinelDeployment, acks: u32) -> Client {
    let builder = ClientBuilder::sentinel(deployment.urls(), SERVICE);
    let builder = builder
        .server_url(&deployment.server_url())
        .unavailable_after(LONG);
    let builder = match acks {
        0 => builder,
        acks => builder.acknowledged_by(acks, ms(200)),
    };
    builder.connect().await.expect("a client")
}

/// Whether the lock is granted, once the client has found the new master.
async fn tried(client: &Client) -> bool {
    let lock = client.get_lock(NAME);
    loop {
        match lock.try_lock(Duration::ZERO, Lease::Fixed(LEASE)).await {
            Ok(granted) => return granted.is_some(),
            Err(Error::Unavailable { .. } | Error::Refused { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        tokio::time::sleep(ms(20)).await;
    }
}

#[tokio::test]
async fn a_without_acknowledgements_a_stale_replica_makes_two_holders() {
    run(Case {
        letter: 'A',
        about: "no acknowledgement, replication stalled",
        replicas: 1,
        acks: 0,
        stalled: Some(0),
        first: true,
        second: true,
    })
    .await;
}

#[tokio::test]
async fn b_a_grant_that_no_replica_acknowledges_is_refused() {
    run(Case {
        letter: 'B',
        about: "1 acknowledgement, replication stalled",
        replicas: 1,
        acks: 1,
        stalled: Some(0),
        first: false,
        second: true,
    })
    .await;
}

#[tokio::test]
async fn c_a_grant_that_the_replica_acknowledged_survives() {
    run(Case {
        letter: 'C',
        about: "1 acknowledgement, healthy",
        replicas: 1,
        acks: 1,
        stalled: None,
        first: true,
        second: false,
    })
    .await;
}

#[tokio::test]
async fn d_one_of_two_is_not_enough_when_the_other_is_promoted() {
    run(Case {
        letter: 'D',
        about: "1 acknowledgement of 2 replicas, the stalled one is promoted",
        replicas: 2,
        acks: 1,
        stalled: Some(0),
        first: true,
        second: true,
    })
    .await;
}

#[tokio::test]
async fn e_all_of_two_is_enough() {
    run(Case {
        letter: 'E',
        about: "2 acknowledgements of 2 replicas, one stalled",
        replicas: 2,
        acks: 2,
        stalled: Some(0),
        first: false,
        second: true,
    })
    .await;
}

#[tokio::test]
async fn f_without_acknowledgements_it_may_go_well() {
    run(Case {
        letter: 'F',
        about: "no acknowledgement, healthy",
        replicas: 1,
        acks: 0,
        stalled: None,
        first: true,
        second: false,
    })
    .await;
}
