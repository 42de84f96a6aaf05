//! What ends a wait: a message. What else does is in `tests/faults`: the end of the holder's lease (F1), a poll (F5, F12).

use watchlock::{Backoff, Client};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms, soon, subscribed, without_polls};

const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");

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
    let guard = holder.get_lock("drop").lock_for(LONG * 4).await.unwrap();
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
    let guard = holder.get_lock("gap").lock_for(LONG * 4).await.unwrap();
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
    let guard = holder.get_lock("during").lock_for(LONG * 4).await.unwrap();
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
