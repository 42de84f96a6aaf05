//! Java waits while tasks of a Rust client pass the lock on to each other without a pause, and gets its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::task::JoinSet;

use super::{WOKEN_MS, now_ns, two};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_gets_its_turn_behind_a_client_that_passes_its_holds_on() {
    let Some(two) = two().await else { return };
    let (done, inside) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (lock, done, inside) = (two.rust.get_lock("row"), done.clone(), inside.clone());
        tasks.spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let guard = lock.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two in there");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            }
        });
    }
    for _ in 0..20 {
        let asked = now_ns();
        let entered = two.java.lock("a", "row").await;
        let waited = entered.t_ret.saturating_sub(asked) / 1_000_000;
        assert!(waited < WOKEN_MS, "{waited} ms");
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "Java beside Rust");
        inside.fetch_sub(1, Ordering::SeqCst);
        two.java.unlock("a", "row").await;
    }
    done.store(true, Ordering::SeqCst);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}
