//! Waiters of several processes: in the order of their arrival, and past those that were killed.

use std::time::{Duration, Instant};

use serde_json::json;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::{Call, Worker};

use crate::common::{clean, connect, soon};
use crate::{LINE, queue, queued};

/// A client that is silent for 15 s loses its places; the rest is for the one behind them to get in.
const SKIPPED: Duration = Duration::from_secs(16);

async fn workers(server: &RedisServer, number: usize) -> Vec<Worker> {
    let workers: Vec<_> = (0..number).map(|_| Worker::rust()).collect();
    for worker in &workers {
        worker.open(&server.url(), None).await.expect("a client");
    }
    workers
}

/// One more waiter of that process, which is in the queue when this returns.
async fn waits(server: &RedisServer, worker: &Worker, owner: usize) -> Call {
    let before = queue(server).await.len();
    let fields = json!({"owner": owner.to_string(), "kind": "fair", "name": LINE});
    let call = worker.request("lock", fields);
    queued(server, before + 1).await;
    call
}

#[tokio::test]
async fn the_order_of_grants_is_that_of_arrival_over_four_processes_of_eight_waiters() {
    let server = RedisServer::start();
    let workers = workers(&server, 4).await;
    let held = connect(&server).await.get_fair_lock(LINE).lock().await;
    let mut line = Vec::new();
    for owner in 0..32 {
        // Neighbours are of different processes, and now and then of the same.
        let worker = &workers[(owner + owner / 5) % workers.len()];
        line.push((owner, worker, waits(&server, worker, owner).await));
    }
    held.unwrap().unlock().await.unwrap();
    let mut left_at = 0;
    for (owner, worker, call) in line {
        let reply = soon(call).await;
        reply.outcome.expect("the lock");
        assert!(reply.t_ret > left_at, "waiter {owner} comes in its turn");
        let fields = json!({"owner": owner.to_string(), "kind": "fair", "name": LINE});
        let unlocked = worker.request("unlock", fields).await;
        unlocked.outcome.expect("its own lock");
        left_at = unlocked.t_inv;
    }
    clean(&server).await;
}

#[tokio::test]
async fn ten_dead_heads_of_five_processes_are_skipped_within_sixteen_seconds() {
    let server = RedisServer::start();
    let (dead, alive) = (workers(&server, 5).await, workers(&server, 1).await);
    let held = connect(&server).await.get_fair_lock(LINE).lock().await;
    let mut calls = Vec::new();
    for owner in 0..2 {
        for worker in &dead {
            calls.push(waits(&server, worker, owner).await);
        }
    }
    let call = waits(&server, &alive[0], 0).await;
    let killed = Instant::now();
    for worker in &dead {
        worker.kill();
    }
    held.unwrap().unlock().await.unwrap();
    soon(call).await.outcome.expect("the lock");
    assert!(killed.elapsed() < SKIPPED, "{:?}", killed.elapsed());
    let fields = json!({"owner": "0", "kind": "fair", "name": LINE});
    let unlocked = alive[0].call("unlock", fields).await;
    unlocked.expect("its own lock");
    clean(&server).await;
}

/// The lock is its own when it is killed, and its other waiter is the head.
#[tokio::test]
async fn a_process_that_is_killed_with_the_lock_keeps_it_for_its_lease_and_its_place_for_no_longer()
{
    let server = RedisServer::start();
    let dead = workers(&server, 1).await.remove(0);
    let fields = json!({"owner": "a", "kind": "fair", "name": LINE, "lease_ms": 3_000});
    dead.call("lock", fields).await.expect("the free lock");
    let _waits = waits(&server, &dead, 1).await;
    let alive = workers(&server, 1).await.remove(0);
    let call = waits(&server, &alive, 0).await;
    let killed = Instant::now();
    dead.kill();
    soon(call).await.outcome.expect("the lock");
    let waited = killed.elapsed();
    assert!(waited > Duration::from_secs(2), "its lease: {waited:?}");
    assert!(waited < SKIPPED, "{waited:?}");
    let fields = json!({"owner": "0", "kind": "fair", "name": LINE});
    alive.call("unlock", fields).await.expect("its own lock");
    clean(&server).await;
}
