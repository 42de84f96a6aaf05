//! A future of ours that is alive and not polled delays nobody else.

use std::time::Duration;

use watchlock::Client;
use watchlock_support::server::RedisServer;

use crate::common::{clean, connect, ms, poll_once, soon, subscribed};

async fn brief(server: &RedisServer) -> Client {
    let builder = Client::builder(&server.url()).command_timeout(ms(300));
    builder.connect().await.unwrap()
}

#[tokio::test]
async fn i9_an_unpolled_first_try_delays_nobody() {
    let server = RedisServer::start();
    let client = brief(&server).await;
    let lock = client.get_lock("first");
    let mut idle = Box::pin(lock.lock());
    assert!(poll_once(&mut idle).await.is_none());
    let guard = soon(lock.lock()).await.unwrap();
    guard.unlock().await.unwrap();
    let guard = soon(connect(&server).await.get_lock("first").lock()).await;
    guard.unwrap().unlock().await.unwrap();
    // Polled again, it is served as any other.
    soon(idle).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn i9_a_grant_that_nobody_collects_goes_to_the_next() {
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = brief(&server).await;
    let lock = client.get_lock("grant");
    let guard = holder.get_lock("grant").lock().await.unwrap();
    let mut idle = Box::pin(lock.lock());
    assert!(poll_once(&mut idle).await.is_none());
    subscribed(&server, "grant").await;
    guard.unlock().await.unwrap();
    // First another client: nobody of this one asks.
    let guard = soon(holder.get_lock("grant").lock()).await.unwrap();
    guard.unlock().await.unwrap();
    // Then one behind it in the same client.
    let guard = soon(lock.lock()).await.unwrap();
    guard.unlock().await.unwrap();
    soon(idle).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn i9_the_other_branch_of_a_select_loop_holds_up_nobody() {
    let server = RedisServer::start();
    let client = brief(&server).await;
    let (one, two) = (client.get_lock("one"), client.get_lock("two"));
    let mut other = Box::pin(two.lock());
    let mut turns = 0;
    let guard = loop {
        // The branch of `two` is polled once a turn, and its locks may come in meanwhile.
        tokio::select! {
            guard = &mut other => break guard.unwrap(),
            guard = one.lock() => {
                let guard = guard.unwrap();
                let busy = soon(client.get_lock("two").lock()).await.unwrap();
                busy.unlock().await.unwrap();
                guard.unlock().await.unwrap();
            }
        }
        turns += 1;
        assert!(turns < 1_000);
    };
    guard.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn i9_an_unpolled_unlock_is_seen_through() {
    let server = RedisServer::start();
    let client = brief(&server).await;
    let lock = client.get_lock("unlock");
    let guard = lock.lock().await.unwrap();
    let mut idle = Box::pin(guard.unlock());
    assert!(poll_once(&mut idle).await.is_none());
    let guard = soon(lock.lock()).await.unwrap();
    guard.unlock().await.unwrap();
    soon(idle).await.unwrap();
    clean(&server).await;
}

#[test]
fn i9_a_runtime_that_is_blocked_in_the_middle_delays_nobody() {
    let server = RedisServer::start();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let (blocked, other) = (runtime(), runtime());
    let client = other.block_on(brief(&server));
    let lock = client.get_lock("blocked");
    // The first try is sent, and then this runtime is driven by nobody.
    let mut idle = Box::pin(lock.lock());
    assert!(blocked.block_on(poll_once(&mut idle)).is_none());
    other.block_on(async {
        let started = std::time::Instant::now();
        soon(lock.lock()).await.unwrap().unlock().await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(10));
    });
    blocked.block_on(async {
        soon(idle).await.unwrap().unlock().await.unwrap();
    });
    drop(blocked);
    other.block_on(clean(&server));
}
