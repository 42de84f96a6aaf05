//! Overlapping sets, from several clients and tasks: everybody finishes, and no two are in together.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use watchlock::{Client, Lease, MultiLock};
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms, soon, subscribed};
use crate::{end, multi};

/// Who is in, by name.
#[derive(Default)]
struct Inside(HashMap<&'static str, AtomicU32>);

impl Inside {
    fn of(names: &[&'static str]) -> Arc<Self> {
        Arc::new(Self(
            names
                .iter()
                .map(|name| (*name, AtomicU32::new(0)))
                .collect(),
        ))
    }

    async fn visit(&self, names: &[&'static str], stay: Duration) {
        for name in names {
            assert_eq!(
                self.0[name].fetch_add(1, Ordering::SeqCst),
                0,
                "alone at {name}"
            );
        }
        tokio::time::sleep(stay).await;
        for name in names {
            self.0[name].fetch_sub(1, Ordering::SeqCst);
        }
    }
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Sets of neighbours and of opposites, in both orders.
const SETS: [&[&str]; 8] = [
    &["a", "b"],
    &["b", "a"],
    &["b", "c", "d"],
    &["d", "c", "b"],
    &["e", "a", "c"],
    &["c", "e"],
    &["d", "e", "a", "b"],
    &["a", "c", "e", "b", "d"],
];

async fn sections(all: MultiLock, names: &'static [&'static str], inside: Arc<Inside>, times: u32) {
    for round in 0..times {
        let guard = match round % 3 {
            0 => all.lock().await.unwrap(),
            1 => all.lock_with_lease(LONG).await.unwrap(),
            _ => all
                .try_lock(LONG * 2, Lease::Watchdog)
                .await
                .unwrap()
                .expect("nobody starves"),
        };
        inside.visit(names, ms(1)).await;
        guard.check().unwrap();
        end(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_sets_of_many_tasks_in_four_clients_finish() {
    let server = RedisServer::start();
    let inside = Inside::of(&NAMES);
    let mut tasks = JoinSet::new();
    for client in 0..4 {
        let owned = connect(&server).await;
        for task in 0..4 {
            let names = SETS[(client + 2 * task) % SETS.len()];
            tasks.spawn(sections(
                multi(&owned, names),
                names,
                Arc::clone(&inside),
                12,
            ));
        }
    }
    soon(tasks.join_all()).await;
    clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_and_single_locks_on_the_same_names_finish() {
    let server = RedisServer::start();
    let inside = Inside::of(&NAMES);
    let mut tasks = JoinSet::new();
    for number in 0..3 {
        let client = connect(&server).await;
        let names = SETS[number];
        tasks.spawn(sections(
            multi(&client, names),
            names,
            Arc::clone(&inside),
            10,
        ));
        let inside = Arc::clone(&inside);
        tasks.spawn(async move {
            let lock = client.get_lock(NAMES[number]);
            for _ in 0..30 {
                let guard = lock.lock().await.unwrap();
                inside.visit(&NAMES[number..=number], ms(1)).await;
                end(guard).await;
                tokio::time::sleep(ms(2)).await;
            }
        });
    }
    soon(tasks.join_all()).await;
    clean(&server).await;
}

/// So far from Redis that a round takes longer than any pause, which cannot separate them.
#[tokio::test]
async fn callers_at_different_locks_of_one_set_do_not_block_each_other_for_ever() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    proxy.latency(ms(300));
    let near = connect(&server).await;
    let far = Client::connect(&proxy.url()).await.unwrap();
    let inside = Inside::of(&NAMES);
    let mut callers = JoinSet::new();
    let mut call = || {
        let both = multi(&far, &["a", "b", "c"]);
        callers.spawn(sections(both, &["a", "b", "c"], Arc::clone(&inside), 1));
    };
    let b = near.get_lock("b").lock().await.unwrap();
    call();
    // It is refused, and gives `a` back.
    subscribed(&server, "b").await;
    let a = near.get_lock("a").lock().await.unwrap();
    call();
    subscribed(&server, "a").await;
    end(a).await;
    end(b).await;
    soon(callers.join_all()).await;
    clean(&server).await;
}

/// Takes the same locks one after the other, and waits for each while it holds those before, as a program without
/// multi-locks does.
async fn one_after_the_other(client: Client, names: [&'static str; 2], inside: Arc<Inside>) {
    for _ in 0..10 {
        let first = client.get_lock(names[0]).lock().await.unwrap();
        let second = client.get_lock(names[1]).lock().await.unwrap();
        inside.visit(&names, ms(1)).await;
        end(second).await;
        end(first).await;
    }
}

#[tokio::test]
async fn a_program_that_waits_while_it_holds_makes_no_deadlock_in_either_order() {
    let server = RedisServer::start();
    let inside = Inside::of(&NAMES);
    for names in [["a", "b"], ["b", "a"]] {
        let mut tasks = JoinSet::new();
        tasks.spawn(one_after_the_other(
            connect(&server).await,
            names,
            Arc::clone(&inside),
        ));
        let client = connect(&server).await;
        tasks.spawn(sections(
            multi(&client, &["a", "b"]),
            &["a", "b"],
            Arc::clone(&inside),
            10,
        ));
        soon(tasks.join_all()).await;
    }
    clean(&server).await;
}

#[tokio::test]
async fn those_who_want_the_same_locks_queue_at_one_and_come_in_turn() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let (forward, backward) = (
        multi(&client, &["a", "b", "c"]),
        multi(&client, &["c", "b", "a"]),
    );
    let first = forward.lock().await.unwrap();
    let came = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..8 {
        let all = if number % 2 == 0 {
            forward.clone()
        } else {
            backward.clone()
        };
        let came = Arc::clone(&came);
        let mut waiting = Box::pin(async move {
            let guard = all.lock().await.unwrap();
            came.lock().push(number);
            end(guard).await;
        });
        // In the queue, in this order.
        assert!(crate::common::poll_once(&mut waiting).await.is_none());
        tasks.push(tokio::spawn(waiting));
    }
    subscribed(&server, "a").await;
    end(first).await;
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(*came.lock(), (0..8).collect::<Vec<_>>());
}
