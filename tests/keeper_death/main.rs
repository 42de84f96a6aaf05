//! What happens when the client's background thread dies because of a bug: nothing hangs, and no answer is wrong.
//!
//! A log subscriber simulates the bug: it panics in the keeper's thread, once in each.

#[path = "../common/saboteur.rs"]
mod saboteur;

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Mutex, Once};
use std::thread::{self, ThreadId};
use std::time::Duration;

use futures_util::FutureExt;
use tracing::Level;
use watchlock::{Client, Clock, Error, LockGuard, LostReason};
use watchlock_support::server::RedisServer;

use crate::saboteur::sabotage;

/// The keepers that panicked, and those that logged an error, once for each error.
static PANICKED: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());
static ERRORS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

const LIMIT: Duration = Duration::from_secs(10);

/// Installs the saboteur.
fn sabotaged() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| sabotage(strikes));
}

/// At the first "hold lost" of each keeper; and counts errors.
fn strikes(level: Level, message: &str) -> bool {
    let thread = thread::current();
    if level == Level::ERROR {
        ERRORS.lock().unwrap().push(thread.id());
    }
    if thread.name() != Some("watchlock-keeper") || message != "hold lost" {
        return false;
    }
    let mut panicked = PANICKED.lock().unwrap();
    let first = !panicked.contains(&thread.id());
    panicked.push(thread.id());
    first
}

/// A lock whose loss the keeper logs, which kills it.
async fn fuse(client: &Client) -> LockGuard {
    let short = client.get_lock("short");
    short.lock_for(Duration::from_millis(50)).await.unwrap()
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
    sabotaged();
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let kept = client.get_lock("kept").lock().await.unwrap();
    let waiter = {
        let lock = client.get_lock("kept");
        tokio::spawn(async move { lock.lock().await.map(drop) })
    };
    // The short hold is lost, the keeper logs that, and the log event kills it.
    let fuse = fuse(&client).await;
    assert_eq!(in_time(kept.lost()).await, LostReason::KeeperEnded);
    assert!(!kept.is_valid());
    let waited = in_time(waiter).await.unwrap();
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    let later = client.get_lock("later").lock().await;
    assert!(matches!(later, Err(Error::Closed)), "{later:?}");
    is_dead(kept.unlock().await);
    drop(fuse);
    let errors = ERRORS.lock().unwrap();
    let keepers: HashSet<_> = errors.iter().collect();
    assert!(
        !errors.is_empty() && keepers.len() == errors.len(),
        "once each"
    );
}

/// One holds it, one was passed it and is not polled, one waits: the lock is not passed on any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_dies_in_the_middle_of_a_row_ends_it() {
    sabotaged();
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

    let fuse = fuse(&client).await;
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
    sabotaged();
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).watchdog_lease(Duration::from_millis(1_200));
    let client = builder.connect().await.unwrap();
    let kept = client.get_lock("kept").lock_for(LIMIT * 6).await.unwrap();
    let waiter = {
        let lock = client.get_lock("kept");
        tokio::spawn(async move { lock.lock().await.map(drop) })
    };
    let fuse = client.get_lock("fuse").lock().await.unwrap();
    server.cmd(&["DEL", "fuse"]).await;
    assert_eq!(in_time(kept.lost()).await, LostReason::KeeperEnded);
    let waited = in_time(waiter).await.unwrap();
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    is_dead(kept.unlock().await);
    drop(fuse);
}
