//! What happens when the client's background thread dies of a bug: nothing hangs and nothing lies.
//!
//! The bug is played by a log subscriber that panics in the keeper's thread, once.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use watchlock::{Client, Error, LostReason};
use watchlock_support::server::RedisServer;

static PANICKED: AtomicBool = AtomicBool::new(false);
static ERRORS: AtomicU32 = AtomicU32::new(0);

/// Panics at the first "hold lost" of a keeper, and counts error events.
struct Saboteur;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Saboteur {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("watchlock")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() == Level::ERROR {
            ERRORS.fetch_add(1, Ordering::SeqCst);
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        let in_keeper = std::thread::current().name() == Some("watchlock-keeper");
        assert!(
            !(in_keeper && message.0 == "hold lost" && !PANICKED.swap(true, Ordering::SeqCst)),
            "sabotage"
        );
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_keeper_loses_all_holds_and_closes_the_client() {
    tracing::subscriber::set_global_default(Saboteur).expect("the only subscriber");
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let kept = client.get_lock("kept").lock().await.unwrap();
    let waiter = {
        let lock = client.get_lock("kept");
        tokio::spawn(async move { lock.lock().await.map(drop) })
    };
    let short = client.get_lock("short");
    let fuse = short.lock_for(Duration::from_millis(50)).await.unwrap();

    // The short hold is lost, the keeper says so, and dies of it.
    let limit = Duration::from_secs(10);
    let reason = tokio::time::timeout(limit, kept.lost()).await.unwrap();
    assert_eq!(reason, LostReason::KeeperEnded);
    assert!(!kept.is_valid());
    let waited = tokio::time::timeout(limit, waiter).await.unwrap().unwrap();
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    let later = client.get_lock("later").lock().await;
    assert!(matches!(later, Err(Error::Closed)), "{later:?}");
    assert!(matches!(
        kept.unlock().await,
        Err(Error::Lost {
            reason: LostReason::KeeperEnded,
            ..
        })
    ));
    drop(fuse);
    assert_eq!(ERRORS.load(Ordering::SeqCst), 1);
}
