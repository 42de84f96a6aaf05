//! What happens when the client's background thread dies because of a bug: nothing hangs, and no answer is wrong.
//!
//! A waker simulates the bug: it panics in the keeper's thread.

#[path = "../common/saboteur.rs"]
mod saboteur;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use watchlock::{Client, Clock, Error, LockGuard, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::saboteur::{Fuse, PANICKED, sabotage};

/// How many errors were logged.
static ERRORS: AtomicUsize = AtomicUsize::new(0);

const LIMIT: Duration = Duration::from_secs(10);

struct ErrorCounter;

impl<S: Subscriber> Layer<S> for ErrorCounter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let is_error = *event.metadata().level() == Level::ERROR;
        let is_ours = event.metadata().target().starts_with("watchlock");
        ERRORS.fetch_add(usize::from(is_error && is_ours), Ordering::SeqCst);
    }
}

/// Counts the errors that are logged.
fn counted() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing_subscriber::registry().with(ErrorCounter).init());
}

/// The keeper that reports the loss of `guard` dies of that.
fn fuse(guard: LockGuard) -> Fuse<LockGuard> {
    sabotage("watchlock-keeper", async move {
        guard.lost().await;
        guard
    })
}

/// A lock that the keeper loses soon.
async fn short_fuse(client: &Client) -> Fuse<LockGuard> {
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
    assert_eq!(reason, LostReason::BackgroundEnded);
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
    assert_eq!(in_time(kept.lost()).await, LostReason::BackgroundEnded);
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
    assert_eq!(in_time(second.lost()).await, LostReason::BackgroundEnded);
    assert!(!second.is_valid());
    is_dead(second.unlock().await);
    let waited = in_time(third).await;
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    match in_time(sleeps).await {
        Err(Error::Closed) => {}
        // The locks are lost one after the other.
        Ok(guard) => assert_eq!(in_time(guard.lost()).await, LostReason::BackgroundEnded),
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
    assert_eq!(in_time(kept.lost()).await, LostReason::BackgroundEnded);
    let waited = in_time(waiter).await.unwrap();
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    is_dead(kept.unlock().await);
    drop(fuse);
}
