//! The order of tokens is the order of holds, however handles, owners, clients and kinds are mixed.

use std::sync::Arc;

use parking_lot::Mutex;
use watchlock::{Client, FencingToken, LockGuard};
use watchlock_support::server::RedisServer;

use crate::common::{connect, soon};

/// The token of each hold, in the order of the holds.
type Seen = Arc<Mutex<Vec<FencingToken>>>;

async fn section(client: &Client, seen: &Seen, how: usize) {
    let (plain, fenced) = (client.get_lock("a"), client.get_fenced_lock("a"));
    let owner = client.new_owner();
    match how % 3 {
        0 => {
            let guard = fenced.lock().await.unwrap();
            seen.lock().push(guard.token());
            guard.unlock().await.unwrap();
        }
        // A plain hold is entered with a token; the levels end in either order.
        1 => {
            let outer = owner.scope(plain.lock()).await.unwrap();
            let inner = owner.scope(fenced.lock()).await.unwrap();
            seen.lock().push(inner.token());
            let (first, second): (LockGuard, LockGuard) = (outer, inner.into());
            first.unlock().await.unwrap();
            second.unlock().await.unwrap();
        }
        // One without a token in between.
        _ => plain.lock().await.unwrap().unlock().await.unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_hold_has_a_larger_token_than_all_before_it() {
    let server = RedisServer::start();
    let seen = Seen::default();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let client = connect(&server).await;
        for task in 0..6 {
            let (client, seen) = (client.clone(), Arc::clone(&seen));
            tasks.spawn(async move {
                for round in 0..12 {
                    section(&client, &seen, task + round).await;
                }
            });
        }
    }
    while let Some(done) = soon(tasks.join_next()).await {
        done.expect("no panic");
    }
    let seen = seen.lock();
    assert_eq!(seen.len(), 3 * 6 * 8);
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}

/// Two that enter one plain hold with a token at the same time both have the token that the hold keeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn levels_that_are_entered_at_the_same_time_have_one_token() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let mut before = None;
    for _ in 0..20 {
        let owner = Arc::new(client.new_owner());
        let outer = owner.get_lock("a").lock().await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let lock = owner.get_fenced_lock("a");
            tasks.spawn(async move { lock.lock().await.unwrap() });
        }
        let guards = soon(tasks.join_all()).await;
        let token = outer.fencing_token();
        assert!(token > before);
        for guard in guards {
            assert_eq!(Some(guard.token()), token);
            guard.unlock().await.unwrap();
        }
        outer.unlock().await.unwrap();
        before = token;
    }
}
