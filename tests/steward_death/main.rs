//! What happens when a task of a quorum's background thread fails because of a bug: nobody hangs, and holds go on.
//!
//! A waker simulates the bug: it panics in that thread.

#[path = "../common/saboteur.rs"]
mod saboteur;

use std::sync::atomic::Ordering;
use std::time::Duration;

use watchlock::{Error, Lease, Quorum};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::saboteur::{PANICKED, sabotage};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bug_in_its_thread_closes_the_quorum_and_holds_go_on() {
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
    // The thread wakes the caller when the wait is over, and the waker kills it.
    let busy = quorum.get_lock("kept");
    let fuse = sabotage("watchlock-quorum", async move {
        busy.try_lock(Duration::from_millis(100), Lease::Watchdog)
            .await
    });
    eventually("it fails", LONG, async || {
        kept.verify().await.expect("two have it");
        PANICKED.load(Ordering::SeqCst) > 0
    })
    .await;
    drop(fuse);
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
