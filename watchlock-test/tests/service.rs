//! The tests of a small service, as its authors would write them: a nightly import that only one process does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use watchlock::{Client, Error, Lease};
use watchlock_test::{Fault, Redis};

/// What a night came to.
#[derive(Debug, PartialEq)]
enum Night {
    Imported,
    /// Another process does it.
    Skipped,
}

/// The service: it reads batches until there are none, while it holds the lock.
struct Import {
    client: Client,
    batches: AtomicU32,
    /// A batch begins.
    begins: Notify,
    /// A batch may end.
    may_end: Notify,
}

impl Import {
    fn new(client: &Client) -> Arc<Self> {
        Arc::new(Self {
            client: client.clone(),
            batches: AtomicU32::new(0),
            begins: Notify::new(),
            may_end: Notify::new(),
        })
    }

    async fn nightly(&self) -> Result<Night, Error> {
        let lock = self.client.get_lock("import");
        let ran = lock.try_run(Duration::ZERO, Lease::Watchdog, async |_| {
            self.begins.notify_one();
            self.may_end.notified().await;
            self.batches.fetch_add(1, Ordering::Relaxed);
        });
        Ok(match ran.await? {
            Some(()) => Night::Imported,
            None => Night::Skipped,
        })
    }
}

#[tokio::test]
async fn a_free_night_is_imported() -> Result<(), Error> {
    let redis = Redis::start();
    let client = redis.client().await?;
    let import = Import::new(&client);
    import.may_end.notify_one();

    assert_eq!(import.nightly().await?, Night::Imported);

    client.shutdown(Duration::from_secs(5)).await;
    assert!(redis.is_clean(), "left behind: {:?}", redis.keys());
    Ok(())
}

#[tokio::test]
async fn a_night_that_another_process_has_is_skipped() -> Result<(), Error> {
    let redis = Redis::start();
    let import = Import::new(&redis.client().await?);
    let _other = redis.held_by_stranger("import");

    assert_eq!(import.nightly().await?, Night::Skipped);
    Ok(())
}

#[tokio::test]
async fn the_night_of_a_process_that_died_is_taken_over() -> Result<(), Error> {
    let redis = Redis::start();
    let import = Import::new(&redis.client().await?);
    import.may_end.notify_one();
    redis.held_by_stranger("import").dies();

    assert_eq!(import.nightly().await?, Night::Skipped);
    redis.advance(Duration::from_secs(31)); // Redisson's lease is 30 s
    assert_eq!(import.nightly().await?, Night::Imported);
    Ok(())
}

#[tokio::test]
async fn an_import_stops_when_its_lock_is_lost() -> Result<(), Error> {
    let redis = Redis::start();
    let import = Import::new(&redis.client().await?);
    let night = tokio::spawn({
        let import = Arc::clone(&import);
        async move { import.nightly().await }
    });
    import.begins.notified().await;

    redis.advance(Duration::from_secs(31)); // the process was suspended for longer than its lease

    let error = night.await.unwrap().unwrap_err();
    assert!(error.is_lost());
    assert_eq!(import.batches.load(Ordering::Relaxed), 0);
    Ok(())
}

#[tokio::test]
async fn an_import_stops_when_redis_lost_its_lock() -> Result<(), Error> {
    let redis = Redis::start();
    let import = Import::new(&redis.client().await?);
    let night = tokio::spawn({
        let import = Arc::clone(&import);
        async move { import.nightly().await }
    });
    import.begins.notified().await;

    redis.lose_data();
    redis.advance(Duration::from_secs(10)); // the next renewal finds out

    assert!(night.await.unwrap().is_err_and(|error| error.is_lost()));
    Ok(())
}

#[tokio::test]
async fn a_night_without_redis_can_be_tried_again() -> Result<(), Error> {
    let redis = Redis::start();
    let import = Import::new(&redis.client().await?);
    import.may_end.notify_one();

    redis.stop();
    let error = import.nightly().await.unwrap_err();
    assert!(error.is_transient());

    redis.restart();
    assert_eq!(import.nightly().await?, Night::Imported);
    Ok(())
}

#[tokio::test]
async fn a_lock_whose_reply_is_lost_is_not_left_behind() -> Result<(), Error> {
    let redis = Redis::start();
    let client = redis
        .client_builder()
        .command_timeout(Duration::from_millis(100))
        .connect()
        .await?;
    let import = Import::new(&client);
    import.may_end.notify_one();

    redis.next_command(Fault::Silent);
    // Whether it was tried again in time depends on the time-out.
    let _ = import.nightly().await;

    client.shutdown(Duration::from_secs(5)).await;
    assert!(redis.is_clean(), "left behind: {:?}", redis.keys());
    Ok(())
}
