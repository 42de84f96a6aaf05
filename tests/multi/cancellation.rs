//! Futures that are dropped at any await, or no longer polled: nothing is left, nobody is held up (I9).

use std::time::Duration;

use watchlock::{Client, Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, is_free, ms, poll_once, soon};
use crate::{end, mixed, multi};

/// No future of ours needs more polls.
const MANY: usize = 400;

/// Drops the future that `made` makes from the prepared value if it is pending after so many polls, for every number
/// until it completes.
async fn at_every_poll<P, F: Future>(
    server: &RedisServer,
    client: &Client,
    mut prepared: impl AsyncFnMut() -> P,
    made: impl Fn(P) -> F,
) {
    for polls in 0..MANY {
        let mut future = Box::pin(made(prepared().await));
        let mut completed = None;
        for _ in 0..polls {
            completed = poll_once(&mut future).await;
            if completed.is_some() {
                break;
            }
            // Whatever it waits for may happen meanwhile.
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        drop(future);
        let done = completed.is_some();
        drop(completed);
        for name in ["a", "b", "c"] {
            eventually("it is free again", LONG, async || {
                is_free(client, name).await
            })
            .await;
        }
        if done {
            clean(server).await;
            return;
        }
    }
    panic!("not completed after {MANY} polls");
}

#[tokio::test]
async fn i9_an_acquire_can_be_dropped_at_any_poll() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let all = multi(&client, &["a", "b", "c"]);
    at_every_poll(&server, &other, async || (), |()| all.lock()).await;
    at_every_poll(&server, &other, async || (), |()| all.try_lock(LONG, LONG)).await;
    let run = |()| all.run(async |_| tokio::task::yield_now().await);
    at_every_poll(&server, &other, async || (), run).await;
}

#[tokio::test]
async fn i9_an_acquire_that_goes_round_can_be_dropped_at_any_poll() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let all = multi(&client, &["a", "b", "c"]);
    let busy = async || {
        server.cmd(&["HSET", "b", "stranger:1", "1"]).await;
        server.cmd(&["PEXPIRE", "b", "15"]).await;
    };
    at_every_poll(&server, &other, busy, |()| all.lock()).await;
}

#[tokio::test]
async fn i9_every_future_of_a_guard_can_be_dropped_at_any_poll() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let all = multi(&client, &["a", "b", "c"]);
    let held = async || all.lock_with_lease(LONG).await.unwrap();
    at_every_poll(&server, &other, held, LockGuard::unlock).await;
    at_every_poll(&server, &other, held, async |guard| {
        drop(guard.reenter(Lease::Watchdog).await);
        drop(guard.extend(LONG).await);
        drop(guard.verify().await);
    })
    .await;
}

#[tokio::test]
async fn i9_an_acquire_that_nobody_polls_holds_nobody_up() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let link = Proxy::to(&two);
    let builder = |url: &str| Client::builder(url).command_timeout(ms(800));
    let here = builder(&one.url()).connect().await.unwrap();
    let there = builder(&link.url()).connect().await.unwrap();
    let other = connect(&one).await;
    let both = mixed([here.get_lock("a").into(), there.get_lock("b").into()]);
    end(both.lock().await.unwrap()).await;
    link.hold(Direction::Requests);
    let mut taking = Box::pin(both.lock());
    eventually("the first is in", LONG, async || {
        assert!(poll_once(&mut taking).await.is_none());
        one.exists("a").await && {
            // Its answer is collected, too.
            tokio::time::sleep(ms(20)).await;
            assert!(poll_once(&mut taking).await.is_none());
            true
        }
    })
    .await;
    // Nobody polls it from here on.
    soon(async {
        let guard = other.get_lock("a").lock().await.unwrap();
        end(guard).await;
    })
    .await;
    link.heal();
    let guard = soon(taking).await.unwrap();
    guard.verify().await.unwrap();
    end(guard).await;
    clean(&one).await;
    clean(&two).await;
}

/// Nobody polled it when it was time to return: that is not the silence of a lock.
#[tokio::test]
async fn a_limited_wait_that_nobody_polls_asks_again_once_it_is_polled() {
    let server = RedisServer::start();
    let link = Proxy::to(&server);
    let builder = |url: &str| Client::builder(url).command_timeout(ms(800));
    let here = builder(&server.url()).connect().await.unwrap();
    let there = builder(&link.url()).connect().await.unwrap();
    let both = mixed([here.get_lock("a").into(), there.get_lock("b").into()]);
    end(both.lock().await.unwrap()).await;
    // While the second answer is on its way, nobody polls any more.
    link.latency(ms(200));
    let mut taking = Box::pin(both.try_lock(ms(100), Lease::Watchdog));
    eventually("the second is in", LONG, async || {
        server.exists("b").await || {
            assert!(poll_once(&mut taking).await.is_none());
            false
        }
    })
    .await;
    clean(&server).await;
    let got = soon(taking).await.expect("a clean answer");
    end(got.expect("both are free")).await;
    clean(&server).await;
}

#[test]
fn i9_a_runtime_that_ends_leaves_nothing() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let client = first.block_on(connect(&server));
    let all = multi(&client, &["a", "b", "c"]);
    let guard = first.block_on(all.lock()).unwrap();
    drop(first);
    second.block_on(async {
        guard.verify().await.unwrap();
        end(guard).await;
        let waiting = tokio::spawn({
            let all = all.clone();
            async move { all.lock().await.map(std::mem::forget) }
        });
        soon(waiting).await.unwrap().unwrap();
        assert_eq!(server.keys().await.len(), 3, "a forgotten guard keeps them");
        client.shutdown(Duration::ZERO).await;
        clean(&server).await;
    });
}
