//! What happens when a task of a quorum's background thread fails because of a bug: nobody hangs, and holds go on.
//!
//! A log subscriber simulates the bug: it panics in that thread, once.

#[path = "../common/saboteur.rs"]
mod saboteur;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::Level;
use watchlock::{Error, Quorum};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::saboteur::sabotage;

const LONG: Duration = Duration::from_secs(30);

static PANICKED: AtomicBool = AtomicBool::new(false);

/// The first time that a server is back in a hold.
fn strikes(_: Level, message: &str) -> bool {
    let there = std::thread::current().name() == Some("watchlock-quorum");
    let is_due = there && message == "a server is back in the hold";
    is_due && !PANICKED.swap(true, Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bug_in_its_thread_closes_the_quorum_and_holds_go_on() {
    sabotage(strikes);
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let quorum = Quorum::builder(servers.iter().map(RedisServer::url))
        .restart_delay(Duration::ZERO)
        .node_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap();
    let kept = quorum.get_lock("kept").lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = quorum.get_lock("kept");
        async move { lock.lock().await.map(drop) }
    });
    for server in &servers {
        eventually("it is there, and waited for", LONG, async || {
            server.exists("kept").await && !server.channels().await.is_empty()
        })
        .await;
    }
    // The repair logs that a server is back, and the log event kills it.
    servers[0].cmd(&["DEL", "kept"]).await;
    eventually("it fails", LONG, async || {
        kept.verify().await.expect("two have it");
        PANICKED.load(Ordering::SeqCst)
    })
    .await;
    let waited = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    for name in ["kept", "later"] {
        let later = quorum.get_lock(name).lock().await;
        assert!(matches!(later, Err(Error::Closed)), "{later:?}");
    }
    kept.verify().await.unwrap();
    kept.unlock().await.unwrap();
    for server in &servers {
        eventually("nothing is left", LONG, async || {
            server.keys().await.is_empty()
        })
        .await;
    }
}
