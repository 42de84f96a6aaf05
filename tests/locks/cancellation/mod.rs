//! Dropping a future after so many polls, for every number until it completes.

mod acquires;
mod clients;
mod holders;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use watchlock::Client;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, soon};

/// No future of ours takes more steps.
const MANY: usize = 200;

/// Drops `future` when it is pending after so many polls; what it returned, if it was faster.
pub(crate) async fn after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polled = 0;
    let cut = poll_fn(|context| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if polled == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    soon(cut).await
}

/// Calls `dropped_after` with every number of polls until it says that its future completed.
pub(crate) async fn at_every_await(mut dropped_after: impl AsyncFnMut(usize) -> bool) {
    for polls in 0..MANY {
        if dropped_after(polls).await {
            assert!(polls > 0, "nothing completes without being polled");
            return;
        }
    }
    panic!("not completed after {MANY} polls");
}

/// A server, a client, and how many connections the client has when nobody waits.
pub(crate) async fn scene() -> (RedisServer, Client, usize) {
    let server = RedisServer::start();
    let client = connect(&server).await;
    // Its lanes are open afterwards, that of the keeper too.
    drop(client.get_lock("warm").lock().await.unwrap());
    clean(&server).await;
    let connections = server.connections().await;
    (server, client, connections)
}

/// I7: no key, no channel, no waiter, and the connections that were there before.
pub(crate) async fn nothing_is_left(server: &RedisServer, connections: usize) {
    clean(server).await;
    eventually("the connections are as before", LONG, async || {
        server.connections().await <= connections
    })
    .await;
}

/// The lock can be taken and given back.
pub(crate) async fn works(client: &Client, name: &str) {
    let guard = soon(client.get_lock(name).lock()).await.unwrap();
    guard.unlock().await.unwrap();
}
