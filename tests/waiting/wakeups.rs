//! What ends a wait: a message, the end of the holder's lease, a poll.

use std::time::{Duration, Instant};

use watchlock::{Backoff, Client};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms, soon, subscribed, without_polls};

const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");

/// A client with polls at most so far apart.
async fn polling(url: &str, cap: Duration) -> Client {
    let backoff = Backoff::new().base(ms(10)).cap(cap);
    let builder = Client::builder(url).backoff(backoff);
    builder.connect().await.unwrap()
}

/// A key of somebody else's.
async fn foreign(server: &RedisServer, name: &str) {
    server.cmd(&["HSET", name, "stranger:1", "1"]).await;
}

#[tokio::test]
async fn i5_a_release_wakes_a_waiter_of_another_client() {
    let server = RedisServer::start();
    let one = without_polls(&server).connect().await.unwrap();
    let two = without_polls(&server).connect().await.unwrap();
    let mut guard = one.get_lock("ball").lock().await.unwrap();
    for _ in 0..20 {
        for client in [&two, &one] {
            let lock = client.get_lock("ball");
            let waiter = tokio::spawn(async move { lock.lock().await });
            subscribed(&server, "ball").await;
            guard.unlock().await.unwrap();
            guard = soon(waiter).await.unwrap().unwrap();
        }
    }
    guard.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn i5_a_dropped_guard_wakes_a_waiter_of_another_client() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let guard = holder.get_lock("drop").lock().await.unwrap();
    let lock = client.get_lock("drop");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "drop").await;
    drop(guard);
    drop(soon(waiter).await.unwrap().unwrap());
}

#[tokio::test]
async fn i5_a_release_before_the_subscription_is_confirmed_is_not_missed() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    let rare = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = Client::builder(&proxy.url()).backoff(rare);
    let client = builder.connect().await.unwrap();
    let guard = holder.get_lock("gap").lock().await.unwrap();
    let late = proxy
        .inject(Fault::DelayRequest(ms(300)))
        .on(Match::command("SUBSCRIBE"))
        .arm();
    let lock = client.get_lock("gap");
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("it subscribes", LONG, async || late.fired() == 1).await;
    assert!(server.channels().await.is_empty());
    guard.unlock().await.unwrap();
    // Nobody heard it; the try after the confirmation finds the lock free.
    let guard = soon(waiter).await.unwrap().unwrap();
    assert_eq!(proxy.commands()["SUBSCRIBE"], 1);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn i5_a_release_during_a_try_is_not_missed() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    let rare = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = Client::builder(&proxy.url()).backoff(rare);
    let client = builder.connect().await.unwrap();
    let guard = holder.get_lock("during").lock().await.unwrap();
    let slow = proxy
        .inject(Fault::DelayReply(ms(300)))
        .on(Match::script(ACQUIRE).and(Match::key("during")))
        .nth(2)
        .arm();
    let lock = client.get_lock("during");
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("the second try is made", LONG, async || slow.fired() == 1).await;
    // Answered busy by now, and the answer is still on its way.
    eventually("it was executed", LONG, async || {
        server.calls_of("evalsha").await + server.calls_of("eval").await >= 3
    })
    .await;
    guard.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn i5_the_end_of_a_dead_holders_lease_lets_a_waiter_in() {
    let server = RedisServer::start();
    let client = without_polls(&server).connect().await.unwrap();
    foreign(&server, "dead").await;
    let started = Instant::now();
    server.cmd(&["PEXPIRE", "dead", "400"]).await;
    let guard = soon(client.get_lock("dead").lock()).await.unwrap();
    let took = started.elapsed();
    assert!(took >= ms(400) && took < ms(5_000), "{took:?}");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn i5_a_lease_that_was_cut_short_is_found_by_the_poll() {
    let server = RedisServer::start();
    let client = polling(&server.url(), ms(200)).await;
    foreign(&server, "silent").await;
    server.cmd(&["PEXPIRE", "silent", "600000"]).await;
    let lock = client.get_lock("silent");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "silent").await;
    server.cmd(&["DEL", "silent"]).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn i5_a_key_without_a_lease_is_polled_and_not_waited_for_without_end() {
    let server = RedisServer::start();
    let client = polling(&server.url(), ms(200)).await;
    foreign(&server, "endless").await;
    let lock = client.get_lock("endless");
    let bounded = lock.try_lock(ms(300), ms(1_000)).await;
    assert!(bounded.unwrap().is_none());
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "endless").await;
    assert_eq!(server.pttl("endless").await, -1);
    server.cmd(&["DEL", "endless"]).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn i5_a_cut_subscription_is_made_again_and_the_lock_tried() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    let rare = Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = Client::builder(&proxy.url()).backoff(rare);
    let client = builder.connect().await.unwrap();
    let guard = holder.get_lock("cut").lock().await.unwrap();
    let lost = proxy
        .inject(Fault::ResetAfter)
        .on(Match::message(&crate::common::channel("cut")))
        .arm();
    let lock = client.get_lock("cut");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "cut").await;
    guard.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    assert!(lost.fired() <= 1);
}

#[tokio::test]
async fn i5_a_killed_subscriber_is_back_for_the_next_message() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = without_polls(&server).connect().await.unwrap();
    let guard = holder.get_lock("killed").lock().await.unwrap();
    let lock = client.get_lock("killed");
    let waiter = tokio::spawn(async move { lock.lock().await });
    for _ in 0..5 {
        subscribed(&server, "killed").await;
        server.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    }
    subscribed(&server, "killed").await;
    guard.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn without_the_right_to_subscribe_a_waiter_polls() {
    let server = RedisServer::start();
    server
        .cmd(&[
            "ACL",
            "SETUSER",
            "deaf",
            "on",
            ">pw",
            "~*",
            "+@all",
            "resetchannels",
        ])
        .await;
    let url = server.url().replace("//", "//deaf:pw@");
    let client = polling(&url, ms(200)).await;
    let guard = connect(&server)
        .await
        .get_lock("deaf")
        .lock()
        .await
        .unwrap();
    let lock = client.get_lock("deaf");
    let waiter = tokio::spawn(async move { lock.lock().await });
    server.reset_calls().await;
    eventually("it polls", LONG, async || {
        server.calls_of("evalsha").await >= 3
    })
    .await;
    guard.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
}
