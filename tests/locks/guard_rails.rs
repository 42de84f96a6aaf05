//! What a client costs in counts that cannot flake: bytes of its futures, and commands when it holds nothing.
//! `tests/kinds` counts what the operations of each kind cost. The limits are today's numbers; if you raise one, say
//! why.

use watchlock::{Client, Clock};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms};

#[tokio::test]
async fn the_futures_of_a_section_are_small() {
    let server = RedisServer::start();
    let lock = connect(&server).await.get_lock("small");
    let waiting = size_of_val(&lock.lock());
    // With metrics one word more, for the instruments of its wait.
    let most = if cfg!(feature = "metrics") { 136 } else { 128 };
    assert!(waiting <= most, "{waiting} bytes to wait");
    let guard = lock.lock().await.unwrap();
    let unlocking = size_of_val(&guard.unlock());
    // One word for whether it is a guard of one lock or of several.
    assert!(unlocking <= 192, "{unlocking} bytes to unlock");
}

#[tokio::test]
async fn a_client_that_holds_nothing_says_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let held = client.get_lock("warm").lock().await.unwrap();
    // While something is held, the client pings a quiet connection.
    eventually("it asks", LONG, async || {
        proxy.commands().contains_key("PING")
    })
    .await;
    held.unlock().await.unwrap();
    // A release in the background is sent once.
    drop(client.get_lock("dropped").lock().await.unwrap());
    clean(&server).await;
    let seen = proxy.commands();
    tokio::time::sleep(ms(1500)).await; // nothing to wait for: silence is what is looked at
    let now = proxy.commands();
    assert_eq!(now, seen, "not even a PING");
}

/// Only the keeper pings, when it heard nothing for a second; by a clock that stands still it heard something just now.
#[tokio::test]
async fn a_connection_in_use_is_not_asked_whether_it_is_there() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (clock, ahead) = Clock::driven();
    ahead.stop();
    // No question is repeated because a machine was slow to answer it.
    let builder = Client::builder(&proxy.url())
        .clock(clock)
        .command_timeout(LONG);
    let client = builder.watchdog_lease(LONG * 10).connect().await.unwrap();
    let pings = || proxy.commands().get("PING").copied().unwrap_or(0);
    let sections = async || {
        for _ in 0..20 {
            client
                .get_lock("x")
                .lock()
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap();
        }
    };
    let held = client.get_lock("held").lock().await.unwrap();
    // The keeper's first question, for which it connects.
    eventually("it asks", LONG, async || pings() > 0).await;
    sections().await;
    assert_eq!(pings(), 1);
    ahead.advance(ms(1_500));
    sections().await;
    eventually("the keeper asks again", LONG, async || pings() >= 2).await;
    sections().await;
    assert_eq!(pings(), 2, "callers ask nothing");
    held.unlock().await.unwrap();
}
