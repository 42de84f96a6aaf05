//! The cost of waiting, in commands. The limits are today's numbers; whoever raises one says why.

use std::time::Duration;

use watchlock::Client;
use watchlock_support::eventually;
use watchlock_support::proxy::{Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::counted::Counted;
use crate::common::{LONG, connect, ms, script, soon};
use crate::{LINE, waiter};

#[tokio::test]
async fn a_waiting_second_costs_a_command_or_two_however_many_wait() {
    let server = RedisServer::start();
    let other = connect(&server).await;
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).command_timeout(LONG);
    let client = builder.connect().await.unwrap();
    let held = other.get_fair_lock(LINE).lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..20 {
        waiters.push(waiter(&server, &client).await.0);
    }
    let mut counted = Counted::from_now(&proxy);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let commands = counted.commands();
    // A poll every half second at most, and the client vouches every five.
    assert!(commands <= 10 * 2 + 4, "{commands}");
    assert!(commands >= 10, "it polls: {commands}");
    held.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
}

/// Of 40 clients each polls about 1.3 times a second, until it hears that so many wait.
#[tokio::test]
async fn among_many_clients_a_waiting_second_costs_their_heartbeats_and_these_wake_the_first() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let held = connect(&server).await;
    let held = held.get_fair_lock(LINE).lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..40 {
        let client = Client::connect(&proxy.url()).await.unwrap();
        waiters.push((waiter(&server, &client).await.0, client));
    }
    let mut counted = Counted::from_now(&proxy);
    eventually("they hardly poll", LONG, async || {
        counted.commands();
        tokio::time::sleep(Duration::from_secs(1)).await;
        counted.commands() <= 40 / 5 * 2
    })
    .await;
    server.cmd(&["DEL", LINE]).await;
    for (waiter, _client) in waiters {
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    drop(held);
}

#[tokio::test]
async fn a_turn_among_clients_costs_the_same_however_many_wait() {
    for waiting in [8, 32] {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let mut clients = Vec::new();
        for _ in 0..4 {
            let builder = Client::builder(&proxy.url()).command_timeout(LONG);
            clients.push(builder.connect().await.unwrap());
        }
        let held = clients[0].get_fair_lock(LINE).lock().await.unwrap();
        let mut waiters = Vec::new();
        for number in 0..waiting {
            waiters.push(waiter(&server, &clients[number % 4]).await.0);
        }
        let mut counted = Counted::from_now(&proxy);
        held.unlock().await.unwrap();
        for waiter in waiters {
            soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        }
        // A try, a release, a channel for the next of the client and one less.
        let per_turn = counted.commands() / u64::try_from(waiting).unwrap();
        assert!(per_turn <= 6, "{waiting} wait: {per_turn}");
    }
}

/// The client knows that its place was given, so no late command can follow its release, and it does not repeat it.
#[tokio::test]
async fn a_hold_that_waited_is_released_once() {
    let server = RedisServer::start();
    let other = connect(&server).await;
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).command_timeout(LONG);
    let client = client.connect().await.unwrap();
    let held = other.get_fair_lock(LINE).lock().await.unwrap();
    let (waiting, _) = waiter(&server, &client).await;
    held.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    let text = script("fair/release.lua");
    let releases = proxy.count(Match::script(&text).and(Match::key(LINE)));
    guard.unlock().await.unwrap();
    // There is no event to wait for: a repeat would come after 20 ms, 40 ms, and so on.
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(releases.seen(), 1);
}
