//! How long the last count takes to wake many: printed, and not asserted.
//! `cargo test --test latch -- --ignored --nocapture`, after `cargo build --package watchlock-worker`.

use futures_util::future::join_all;
use serde_json::json;
use watchlock_support::now_ns;
use watchlock_support::worker::Worker;

use crate::common::soon;
use crate::{NAME, Scene};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures"]
async fn a_thousand_counts_wake_a_thousand_waiters_of_four_processes() {
    let scene = Scene::new().await;
    let processes: Vec<_> = (0..4).map(|_| Worker::rust()).collect();
    for process in &processes {
        let opened = process.open(&scene.server.url(), None).await;
        opened.expect("a client");
    }
    let mut slowest = Vec::new();
    for _ in 0..20 {
        scene.latch.try_set_count(1_000).await.unwrap();
        let fields = || json!({"name": NAME, "wait_ms": 30_000});
        let waiters: Vec<_> = (0..1_000)
            .map(|waiter| processes[waiter % 4].request("latch_await", fields()))
            .collect();
        scene.quiet(4).await;
        let counts = (0..1_000).map(async |_| {
            let counted = scene.latch.count_down().await.unwrap();
            (counted, now_ns())
        });
        let counted = soon(join_all(counts)).await;
        let last = counted.into_iter().find(|(left, _)| *left == 0);
        let (_, last) = last.expect("one was the last");
        let mut latest = 0;
        for waited in soon(join_all(waiters)).await {
            assert_eq!(waited.outcome.expect("an answer"), json!({"reached": true}));
            latest = latest.max(waited.t_ret.saturating_sub(last));
        }
        slowest.push(latest / 1_000);
        // The waiters of the round before are gone before the next one.
        scene.listeners(0).await;
    }
    slowest.sort_unstable();
    println!(
        "the last of 1 000 waiters returned {} µs after the last of 1 000 counts, in the middle of 20 rounds; {} µs at most",
        slowest[10], slowest[19]
    );
}
