//! A release before anybody listens. `tests/kinds/waiting.rs` has what else ends a wait, for every kind of lock.

use watchlock::{Backoff, Client};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, connect, ms, soon, subscribed, without_polls};

fn rare() -> Backoff {
    let minute = ms(60_000);
    Backoff::new().base(minute).cap(minute).jitter(false)
}

#[tokio::test]
async fn i5_a_release_before_the_subscription_is_confirmed_is_not_missed() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let holder = connect(&server).await;
    let builder = Client::builder(&proxy.url()).backoff(rare());
    let client = builder.connect().await.unwrap();
    let guard = holder
        .get_lock("gap")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
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

/// The client polls once a minute, and its server is there all the time.
#[tokio::test]
async fn i5_a_connection_that_breaks_before_the_confirmation_is_made_again_at_once() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    for (number, fault) in [Fault::ResetBefore, Fault::ResetAfter]
        .into_iter()
        .enumerate()
    {
        let name = format!("cut:{number}");
        let proxy = Proxy::to(&server);
        let client = Client::builder(&proxy.url()).backoff(rare());
        let client = client.connect().await.unwrap();
        let held = holder.get_lock(&name);
        let guard = held.lock_with_lease(LONG * 4).await.unwrap();
        let cut = proxy.inject(fault).on(Match::command("SUBSCRIBE")).arm();
        let lock = client.get_lock(&name);
        let waiter = tokio::spawn(async move { lock.lock().await });
        eventually("it is cut", LONG, async || cut.fired() == 1).await;
        subscribed(&server, &name).await;
        guard.unlock().await.unwrap();
        let guard = soon(waiter).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
}

/// The job of the name listens for another second after its last waiter. A machine may be late: one of several rounds
/// is not.
#[tokio::test]
async fn i5_a_waiter_that_comes_while_its_client_still_listens_is_woken_by_that_subscription() {
    let server = RedisServer::start();
    let stranger = connect(&server).await.get_lock("on");
    let client = without_polls(&server).connect().await.unwrap();
    let lock = client.get_lock("on");
    for _ in 0..10 {
        let held = stranger.lock().await.unwrap();
        let (again, waiting) = (lock.clone(), lock.clone());
        let waiter = tokio::spawn(async move { waiting.lock().await });
        subscribed(&server, "on").await;
        held.unlock().await.unwrap();
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        let held = stranger.lock().await.unwrap();
        let subscribed_before = server.calls_of("subscribe").await;
        let tries = server.calls_of("evalsha").await;
        let waiter = tokio::spawn(async move { again.lock().await });
        eventually("it tried", LONG, async || {
            server.calls_of("evalsha").await > tries
        })
        .await;
        held.unlock().await.unwrap();
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        if server.calls_of("subscribe").await == subscribed_before {
            return;
        }
    }
    panic!("its subscription was of no use");
}
