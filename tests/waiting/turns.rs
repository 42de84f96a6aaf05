//! Whose turn it is between clients: one that had its turn holds back for a moment of its clock, which stands still
//! here.

use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use watchlock::{Client, Clock, Error, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, channel, clean, ms, soon, without_polls};

type Waiting = JoinHandle<Result<LockGuard, Error>>;

/// A waiter; it is in the queue of its client.
fn waits(client: &Client) -> Waiting {
    let lock = client.get_lock("turn");
    let mut waiting = Box::pin(async move { lock.lock_with_lease(LONG * 4).await });
    assert!((&mut waiting).now_or_never().is_none());
    tokio::spawn(waiting)
}

async fn listen(server: &RedisServer, clients: u64) {
    eventually("they listen", LONG, async || {
        server.subscribers(&channel("turn")).await == clients
    })
    .await;
}

/// A client whose tries may be delayed, and that makes none without a reason.
async fn patient(proxy: &Proxy) -> Client {
    let minute = watchlock::Backoff::new().base(ms(60_000)).cap(ms(60_000));
    let builder = Client::builder(&proxy.url()).backoff(minute);
    // Nothing is overdue while the proxy delays it.
    let builder = builder.command_timeout(LONG * 2);
    builder.unavailable_after(LONG * 2).connect().await.unwrap()
}

#[tokio::test]
async fn a_client_that_had_its_turn_leaves_the_next_one_to_clients_that_come_and_to_no_other() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (clock, ahead) = Clock::driven();
    let builder = without_polls(&server).pass_on(false).clock(clock);
    let quick = builder.connect().await.unwrap();
    let slow = patient(&proxy).await;
    ahead.stop();
    let first = slow
        .get_lock("turn")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
    let held = waits(&quick);
    listen(&server, 1).await;
    soon(first.unlock()).await.unwrap();
    // The message came, so this client knows that it listens, and its job lingers as long as its clock stands still.
    let held = soon(held).await.unwrap().unwrap();
    let (theirs, next) = (waits(&slow), waits(&quick));
    listen(&server, 2).await;
    // The quickest would be the one that released.
    proxy.latency(ms(50));
    soon(held.unlock()).await.unwrap();
    let theirs = soon(theirs).await.unwrap().unwrap();
    assert!(!next.is_finished());
    // Each other client has had its turn, so the next one is ours.
    soon(theirs.unlock()).await.unwrap();
    let held = soon(next).await.unwrap().unwrap();
    proxy.latency(ms(0));

    // One listens but does not come: the client waits a moment for it, and no longer.
    let (theirs, next) = (waits(&slow), waits(&quick));
    listen(&server, 2).await;
    proxy.hold(Direction::Requests);
    soon(held.unlock()).await.unwrap();
    tokio::time::sleep(ms(200)).await; // that it does not come is what is looked at
    assert!(!next.is_finished(), "the moment is not over");
    ahead.advance(ms(1));
    let held = soon(next).await.unwrap().unwrap();
    // Nobody came, so the next turns are not left to others.
    let next = waits(&quick);
    soon(held.unlock()).await.unwrap();
    let held = soon(next).await.unwrap().unwrap();
    proxy.heal();
    held.unlock().await.unwrap();
    soon(theirs).await.unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// Its tries arrive 20 ms of the near client's clock behind the release, so the first times it comes too late.
#[tokio::test]
async fn a_far_client_has_its_turn_because_the_lock_is_left_free_for_longer_while_nobody_comes() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (clock, ahead) = Clock::driven();
    let builder = without_polls(&server).pass_on(false).clock(clock);
    let near = builder.connect().await.unwrap();
    let far = patient(&proxy).await;
    ahead.stop();
    let mut held = near
        .get_lock("turn")
        .lock_with_lease(LONG * 4)
        .await
        .unwrap();
    let theirs = waits(&far);
    for _ in 0..8 {
        let mut next = waits(&near);
        listen(&server, 2).await;
        proxy.hold(Direction::Requests);
        soon(held.unlock()).await.unwrap();
        let mut way = 0;
        let got = loop {
            if let Ok(got) = timeout(ms(50), &mut next).await {
                break got.unwrap().unwrap();
            }
            ahead.advance(ms(1));
            way += 1;
            if way == 20 {
                proxy.heal();
                let theirs = soon(theirs).await.unwrap().unwrap();
                assert!(!next.is_finished());
                soon(theirs.unlock()).await.unwrap();
                soon(next).await.unwrap().unwrap().unlock().await.unwrap();
                return clean(&server).await;
            }
        };
        // Longer than the lock stays with this client behind any gap.
        ahead.advance(ms(1_000));
        held = got;
    }
    panic!("the far client had no turn in 8 sections of the near one");
}

#[tokio::test]
async fn a_caller_that_comes_again_at_once_leaves_the_lock_to_others_for_a_moment() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let near = without_polls(&server).clock(clock).connect().await.unwrap();
    let other = without_polls(&server).connect().await.unwrap();
    ahead.stop();
    let held = near.get_lock("turn").lock().await.unwrap();
    let theirs = waits(&other);
    listen(&server, 1).await;
    soon(held.unlock()).await.unwrap();
    let again = waits(&near);
    let theirs = soon(theirs).await.unwrap().unwrap();
    assert!(!again.is_finished());
    soon(theirs.unlock()).await.unwrap();
    ahead.advance(ms(1));
    soon(again).await.unwrap().unwrap().unlock().await.unwrap();
    // The job that listens lingers for a second of this clock.
    ahead.go_on();
    clean(&server).await;
}
