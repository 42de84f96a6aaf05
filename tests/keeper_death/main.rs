//! What happens when the client's background thread dies because of a bug: nothing hangs, and no answer is wrong.
//!
//! A waker simulates the bug: it panics in the keeper's thread.

#[path = "../common/saboteur.rs"]
mod saboteur;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use tracing::Level;
use watchlock::{Client, Clock, Error, LockGuard, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::saboteur::sabotage;

/// How many keepers panicked, and how many errors were logged.
static PANICKED: AtomicUsize = AtomicUsize::new(0);
static ERRORS: AtomicUsize = AtomicUsize::new(0);

const LIMIT: Duration = Duration::from_secs(10);

/// Counts the errors that are logged.
fn counted() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        sabotage(|level, _| {
            ERRORS.fetch_add(usize::from(level == Level::ERROR), Ordering::SeqCst);
            false
        });
    });
}

struct Saboteur;

impl Wake for Saboteur {
    fn wake(self: Arc<Self>) {
        if thread::current().name() == Some("watchlock-keeper") {
            PANICKED.fetch_add(1, Ordering::SeqCst);
            panic!("sabotage");
        }
    }
}

type Fuse = Pin<Box<dyn Future<Output = LockGuard> + Send>>;

/// The keeper that reports the loss of `guard` dies of that.
fn fuse(guard: LockGuard) -> Fuse {
    let mut fuse: Fuse = Box::pin(async move {
        guard.lost().await;
        guard
    });
    let waker = Waker::from(Arc::new(Saboteur));
    let polled = fuse.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    fuse
}

/// A lock that the keeper loses soon.
async fn short_fuse(client: &Client) -> Fuse {
    let short = client.get_lock("short");
    fuse(
        short
            .lock_with_lease(Duration::from_millis(50))
            .await
            .unwrap(),
    )
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

fn is_dead<T: Debug>(answer: Result<T, Error>) {
    let reason = match answer {
        Err(Error::Lost { reason, .. }) => reason,
        answer => panic!("{answer:?}"),
    };
    assert_eq!(reason, LostReason::KeeperEnded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_keeper_loses_all_holds_and_closes_the_client() {
    counted();
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let kept = client.get_lock("kept").lock().await.unwrap();
    let waiter = {
        let lock = client.get_lock("kept");
        tokio::spawn(async move { lock.lock().await.map(drop) })
    };
    let fuse = short_fuse(&client).await;
    assert_eq!(in_time(kept.lost()).await, LostReason::KeeperEnded);
    assert!(!kept.is_valid());
    let waited = in_time(waiter).await.unwrap();
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    let later = client.get_lock("later").lock().await;
    assert!(matches!(later, Err(Error::Closed)), "{later:?}");
    is_dead(kept.unlock().await);
    drop(fuse);
    eventually("it is logged", LIMIT, async || {
        ERRORS.load(Ordering::SeqCst) > 0
    })
    .await;
    let errors = ERRORS.load(Ordering::SeqCst);
    assert!(errors <= PANICKED.load(Ordering::SeqCst), "once each");
}

/// One holds it, one was passed it and is not polled, one waits: the lock is not passed on any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_dies_in_the_middle_of_a_row_ends_it() {
    counted();
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock);
    let client = client.connect().await.unwrap();
    // The clock stands still, so no row ends.
    ahead.stop();
    let (passed, lies) = (client.get_lock("row"), client.get_lock("other row"));
    let first = passed.lock().await.unwrap();
    let mut second = Box::pin(passed.lock());
    assert!((&mut second).now_or_never().is_none());
    let mut third = Box::pin(passed.lock());
    assert!((&mut third).now_or_never().is_none());
    let field = server.hash("row").await;
    first.unlock().await.unwrap();
    let second = in_time(second).await.unwrap();
    assert_eq!(server.hash("row").await, field, "it was passed on");
    let other = lies.lock().await.unwrap();
    let mut sleeps = Box::pin(lies.lock());
    assert!((&mut sleeps).now_or_never().is_none());
    other.unlock().await.unwrap();

    let fuse = short_fuse(&client).await;
    ahead.advance(Duration::from_millis(50));
    assert_eq!(in_time(second.lost()).await, LostReason::KeeperEnded);
    assert!(!second.is_valid());
    is_dead(second.unlock().await);
    let waited = in_time(third).await;
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    match in_time(sleeps).await {
        Err(Error::Closed) => {}
        // The locks are lost one after the other.
        Ok(guard) => assert_eq!(in_time(guard.lost()).await, LostReason::KeeperEnded),
        Err(error) => panic!("{error:?}"),
    }
    drop(fuse);
}

/// One of its tasks dies, and nobody knows what that left behind. Here it is the renewal that finds no hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_dies_with_each_of_its_tasks() {
    counted();
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).watchdog_lease(Duration::from_millis(1_200));
    let client = builder.connect().await.unwrap();
    let kept = client
        .get_lock("kept")
        .lock_with_lease(LIMIT * 6)
        .await
        .unwrap();
    let waiter = {
        let lock = client.get_lock("kept");
        tokio::spawn(async move { lock.lock().await.map(drop) })
    };
    let fuse = fuse(client.get_lock("fuse").lock().await.unwrap());
    server.cmd(&["DEL", "fuse"]).await;
    assert_eq!(in_time(kept.lost()).await, LostReason::KeeperEnded);
    let waited = in_time(waiter).await.unwrap();
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    is_dead(kept.unlock().await);
    drop(fuse);
}
