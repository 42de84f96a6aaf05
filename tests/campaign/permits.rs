//! Semaphores under faults: workers that are killed, frozen and cut off take permits and give them back. Those of which
//! somebody is certain are never more than there are, and at the end all are there. Wrong clients are noticed.

use std::time::Duration;

use watchlock_support::campaign::{Campaign, Kind, Tally, kinds};

/// Two semaphores of three permits: a plain one, and an expirable one.
fn campaign(seconds: u64) -> Campaign {
    let seed = std::env::var("PERMITS_SEED").ok();
    let seed = seed.map_or_else(|| fastrand::u32(..).into(), |text| text.parse().unwrap());
    println!("PERMITS_SEED={seed}");
    Campaign {
        time: Duration::from_secs(seconds),
        workers: vec![Kind::Rust; 3],
        owners: 4,
        names: 2,
        kinds: kinds::SEMAPHORES.to_vec(),
        ..Campaign::new(seed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_never_too_many_and_none_is_missing_at_the_end() {
    let tally = campaign(12).run().await;
    println!("{tally}");
    assert!(tally.report.holds > 30, "hardly anybody had any");
    assert!(tally.report.violations.is_empty(), "see above");
    assert!(tally.unexpected().is_empty(), "{:?}", tally.unexpected());
}

/// Whether the checker notices wrong clients that do this; a busy machine needs several rounds for it.
async fn is_noticed(command: &[&str]) -> bool {
    let breaks = |tally: &Tally| !tally.report.violations.is_empty();
    for _ in 0..10 {
        let mut wrong = campaign(3);
        // An operator that deletes the semaphore would set all right again.
        wrong.faults = false;
        wrong.meddling = vec![command.iter().map(|word| (*word).to_owned()).collect()];
        if breaks(&wrong.run().await) {
            return true;
        }
    }
    false
}

/// A release without a record, or one whose repeat counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_nobody_gave_back_are_noticed() {
    assert!(is_noticed(&["INCR", "chaos:0"]).await);
}

/// A release whose record goes and whose permit stays taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_do_not_come_back_are_noticed() {
    assert!(is_noticed(&["DECR", "chaos:0"]).await);
}

/// As by a clock that is ahead: live permits are taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_are_taken_back_too_early_are_noticed() {
    let early = "if #redis.call('ZPOPMIN', KEYS[2]) > 0 then
            redis.call('PUBLISH', 'redisson_sc:{chaos:1}', redis.call('INCR', KEYS[1]))
        end";
    assert!(is_noticed(&["EVAL", early, "2", "chaos:1", "{chaos:1}:timeout"]).await);
}
