//! Readers whose hold is lost: each of them learns of it, and it is reported once for each.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use watchlock::{Client, Error, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, clean, connect, ms, soon};
use crate::try_read;

/// Readers that waited behind a writer get in together, so their leases end in the same moment.
#[tokio::test]
async fn readers_that_are_lost_together_are_reported_once() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let lock = other.get_read_write_lock("x").write_lock();
    let write = lock.lock().await.unwrap();
    let lock = client.get_read_write_lock("x").read_lock();
    let readers = [(); 3].map(|()| {
        let lock = lock.clone();
        tokio::spawn(async move { lock.lock_with_lease(SHORT).await.unwrap() })
    });
    eventually("they wait", LONG, async || client.stats().waiters == 3).await;
    write.unlock().await.unwrap();
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(soon(reader).await.unwrap());
    }
    for guard in &guards {
        assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    }
    // What the keeper does about these losses is behind it when another hold was given back.
    drop(client.get_lock("another").lock().await.unwrap());
    eventually("it is free", LONG, async || server.keys().await.is_empty()).await;
    assert_eq!(client.stats().lost, 3);
}

/// Wakes, and holds up the keeper's thread for a moment, as if it got no CPU.
struct SlowWaker(Waker);

impl Wake for SlowWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
        if thread::current().name() == Some("watchlock-keeper") {
            thread::sleep(ms(40));
        }
    }
}

struct WokenSlowly<F>(Pin<Box<F>>);

impl<F: Future> Future for WokenSlowly<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let waker = Waker::from(Arc::new(SlowWaker(cx.waker().clone())));
        self.0.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// A read ends 10 ms before the hold of both is lost, and the keeper gets no CPU in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i8_a_hold_that_is_lost_with_a_read_that_ends_is_lost_for_the_others() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).watchdog_lease(SHORT);
    let client = builder.connect().await.unwrap();
    let lock = client.get_read_write_lock("x").read_lock();
    let watched = lock.lock().await.unwrap();
    let fixed = lock.lock_with_lease(ms(1_190)).await.unwrap();
    proxy.hold(Direction::Requests);
    let view = fixed.hold();
    let slow = tokio::spawn(WokenSlowly(Box::pin(async move { view.lost().await })));
    assert_eq!(soon(watched.lost()).await, LostReason::Expired);
    assert_eq!(soon(slow).await.unwrap(), LostReason::Expired);
}

#[tokio::test]
async fn a_downgrade_of_a_hold_whose_key_has_another_type_says_lost() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").write_lock();
    let write = lock.lock().await.unwrap();
    server.cmd(&["SET", "x", "no lock"]).await;
    let turned = write.downgrade().await;
    assert!(turned.as_ref().is_err_and(Error::is_lost), "{turned:?}");
    assert_eq!(server.keys().await, ["x"]);
}

/// What is left of holds that were lost before is released later, and Redis lists fields in no order.
#[tokio::test]
async fn a_forced_release_ends_the_newest_hold_of_this_client_at_once() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let reading = try_read(&client, "x").await.unwrap();
    let before = format!("{}:0", client.id());
    server.cmd(&["HSET", "x", &before, "1"]).await;
    let read = client.get_read_write_lock("x").read_lock();
    assert!(read.force_unlock().await.unwrap());
    assert_eq!(reading.lost().await, LostReason::Forced);
    drop(reading);
    clean(&server).await;
}
