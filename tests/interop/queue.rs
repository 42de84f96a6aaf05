//! Java and Rust wait for one name together: all are served, one at a time.

use std::sync::Arc;
use std::time::Duration;

use watchlock::{Client, LockGuard};

use super::{LONG, Two, now_ns, two};

const ROUNDS: usize = 10;
const HOLD: Duration = Duration::from_millis(2);

/// From the return of an acquire to the call of its release: nobody else may be inside then.
type Window = (u64, u64);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_java_and_four_rust_waiters_are_all_served_and_never_overlap() {
    let Some(two) = two().await else { return };
    // Two Rust processes as far as Redis can see, two waiters in each.
    let other = Client::connect(&two.server.url()).await.unwrap();
    let first = two.rust.get_lock("queue").lock().await.unwrap();
    let two = Arc::new(two);

    let java = ["a", "b", "c", "d"].map(|owner| tokio::spawn(java_waiter(Arc::clone(&two), owner)));
    let rust = [&two.rust, &two.rust, &other, &other]
        .map(|client| tokio::spawn(rust_waiter(client.clone())));
    two.listening("queue", 3).await;
    let begin = now_ns();
    first.unlock().await.unwrap();

    let mut windows: Vec<Window> = Vec::new();
    let all = async {
        for waiter in java.into_iter().chain(rust) {
            windows.extend(waiter.await.unwrap());
        }
    };
    tokio::time::timeout(LONG, all)
        .await
        .expect("all are served");

    assert_eq!(windows.len(), 8 * ROUNDS);
    windows.sort_unstable();
    assert!(windows[0].0 >= begin, "somebody was in before the release");
    for pair in windows.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two were in at once: {pair:?}");
    }
}

async fn java_waiter(two: Arc<Two>, owner: &str) -> Vec<Window> {
    let mut windows = Vec::new();
    for _ in 0..ROUNDS {
        let entered = two.java.lock(owner, "queue").await;
        tokio::time::sleep(HOLD).await;
        let left = two.java.unlock(owner, "queue").await;
        windows.push((entered.t_ret, left.t_inv));
    }
    windows
}

async fn rust_waiter(client: Client) -> Vec<Window> {
    let lock = client.get_lock("queue");
    let mut windows = Vec::new();
    for _ in 0..ROUNDS {
        let guard: LockGuard = lock.lock().await.unwrap();
        let entered = now_ns();
        tokio::time::sleep(HOLD).await;
        let left = now_ns();
        guard.unlock().await.unwrap();
        windows.push((entered, left));
    }
    windows
}
