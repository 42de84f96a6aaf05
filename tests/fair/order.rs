//! First come, first served: inside a client, between clients, and for those who do not wait.

use std::sync::{Arc, Mutex};

use watchlock::{Client, Lease};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms, soon, without_polls};
use crate::{LINE, gets_in, queue, queued, waiter};

/// The number of waiters of a client that have a place in Redis.
const PLACES: usize = 64;

/// The numbers of the waiters, in the order of their grants.
type Order = Arc<Mutex<Vec<usize>>>;

async fn stand_in_line(client: Client, number: usize, order: Order) {
    let guard = client.get_fair_lock(LINE).lock().await.unwrap();
    order.lock().unwrap().push(number);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn waiters_of_many_clients_come_in_the_order_of_arrival() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(&server).await);
    }
    let first = clients[0].get_fair_lock(LINE).lock().await.unwrap();
    let (order, mut waiters) = (Order::default(), Vec::new());
    for number in 0..32 {
        // Not in rotation, so that two waiters of one client are sometimes neighbours.
        let client = clients[number * number % 7 % 4].clone();
        waiters.push(tokio::spawn(stand_in_line(
            client,
            number,
            Arc::clone(&order),
        )));
        queued(&server, number + 1).await;
    }
    first.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..32).collect::<Vec<_>>());
    drop(clients);
    clean(&server).await;
}

#[tokio::test]
async fn a_crowd_of_one_client_comes_in_order_and_has_64_places() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let first = client.get_fair_lock(LINE).lock().await.unwrap();
    let (order, mut waiters) = (Order::default(), Vec::new());
    for number in 0..200 {
        let waiter = stand_in_line(client.clone(), number, Arc::clone(&order));
        let mut waiter = Box::pin(waiter);
        assert!(crate::common::poll_once(&mut waiter).await.is_none());
        waiters.push(tokio::spawn(waiter));
    }
    queued(&server, PLACES).await;
    first.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..200).collect::<Vec<_>>());
    drop(client);
    clean(&server).await;
}

/// Neither a poll nor a heartbeat comes in time to help.
#[tokio::test]
async fn a_place_that_becomes_free_goes_to_the_first_waiter_without_one_at_once() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let held = holder.get_fair_lock(LINE).lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..PLACES * 2 {
        let lock = client.get_fair_lock(LINE);
        let mut waiter = Box::pin(async move { lock.lock().await });
        assert!(crate::common::poll_once(&mut waiter).await.is_none());
        waiters.push(waiter);
    }
    eventually("all places are taken", LONG, async || {
        queue(&server).await.len() >= PLACES
    })
    .await;
    for _ in 0..4 {
        let last = queue(&server).await.pop();
        // The one that is being tried may have had a place more.
        drop(waiters.drain(PLACES / 2..PLACES / 2 + 3));
        eventually("they are taken again", ms(4_000), async || {
            let mut places = queue(&server).await;
            places.len() >= PLACES && places.pop() != last
        })
        .await;
    }
    drop((waiters, held));
}

#[tokio::test]
async fn one_try_overtakes_nobody_and_does_not_queue() {
    let server = RedisServer::start();
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let third = connect(&server).await;
    let held = holder.get_fair_lock(LINE).lock().await.unwrap();
    let (waiting, place) = waiter(&server, &other).await;
    // The lock is free, and the waiter got no wake-up.
    server.cmd(&["DEL", LINE]).await;
    for client in [&third, &holder] {
        // The holder's client may not know yet that it lost the lock.
        assert!(!gets_in(client).await, "it came later");
    }
    let guard = soon(waiting).await.unwrap().unwrap();
    assert_eq!(server.hash(LINE).await.into_keys().next(), Some(place));
    assert!(!gets_in(&third).await);
    assert!(queue(&server).await.is_empty());
    guard.unlock().await.unwrap();
    drop(held);
    drop((holder, other, third));
    clean(&server).await;
}

#[tokio::test]
async fn a_free_lock_is_taken_in_one_round_trip_and_leaves_no_queue() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_fair_lock(LINE).lock().await.unwrap();
    assert_eq!(server.keys().await, [LINE]);
    guard.unlock().await.unwrap();
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn an_owner_enters_again_past_those_who_wait() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_fair_lock(LINE);
    let outer = lock.lock().await.unwrap();
    let (waiting, _) = waiter(&server, &client).await;
    let inner = soon(lock.lock_with_lease(LONG)).await.unwrap();
    assert_eq!(lock.hold_count(), 2);
    inner.unlock().await.unwrap();
    assert!(!waiting.is_finished());
    outer.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    drop((owner, lock, client));
    clean(&server).await;
}

#[tokio::test]
async fn a_plain_lock_of_that_name_excludes_it() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let plain = client.get_lock(LINE).lock().await.unwrap();
    let fair = client.get_fair_lock(LINE);
    let tried = fair.try_lock(ms(50), Lease::Watchdog).await.unwrap();
    assert!(tried.is_none());
    plain.unlock().await.unwrap();
    let held = fair.lock().await.unwrap();
    let plain = client.get_lock(LINE);
    assert!(
        plain
            .try_lock(ms(50), Lease::Watchdog)
            .await
            .unwrap()
            .is_none()
    );
    held.unlock().await.unwrap();
    drop((client, fair, plain));
    clean(&server).await;
}
