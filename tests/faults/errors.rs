//! What a server refuses for long: how much a wait puts up with. What each refusal is told as is in `tests/kinds`.

use watchlock::Error;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, clean, soon};

fn is_refused(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused {
            transient: true,
            ..
        }
    )
}

/// `lock` puts up with refusals for so long and not longer.
#[tokio::test]
async fn a_lasting_refusal_ends_the_wait_with_what_the_server_said() {
    let server = RedisServer::start();
    let client = watchlock::Client::builder(&server.url()).unavailable_after(SHORT);
    let client = client.connect().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let began = std::time::Instant::now();
    let refused = soon(client.get_lock("full").lock()).await.unwrap_err();
    assert!(is_refused(&refused), "{refused:?}");
    assert!(began.elapsed() >= SHORT);
    let said = std::error::Error::source(&refused).unwrap().to_string();
    assert!(said.contains("OOM") || said.contains("maxmemory"), "{said}");
}

/// However long it waited for a stranger before: its patience begins with the trouble.
#[tokio::test]
async fn patience_with_a_server_begins_when_the_trouble_does() {
    let patience = SHORT * 3;
    let server = RedisServer::start();
    let client = crate::common::without_polls(&server).unavailable_after(patience);
    let client = client.connect().await.unwrap();
    let stranger = crate::common::connect(&server).await;
    let held = stranger.get_lock("long").lock().await.unwrap();
    let lock = client.get_lock("long");
    let waiter = tokio::spawn(async move { lock.lock().await });
    crate::common::subscribed(&server, "long").await;
    // A fixed lease tells when more than its patience has passed.
    let clock = stranger.get_lock("clock").lock_for(patience + SHORT).await;
    let clock = clock.unwrap();
    clock.lost().await;
    drop(clock);
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    held.unlock().await.unwrap();
    eventually("it was refused and tried again", LONG, async || {
        // Redis 6.2 counts what fails in a script as `ERR`.
        let mut refused = Vec::new();
        for code in ["errorstat_OOM", "errorstat_ERR"] {
            refused.extend(server.info("errorstats", code).await);
        }
        refused.iter().any(|refused| refused != "count=1")
    })
    .await;
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let guard = soon(waiter).await.unwrap();
    guard
        .expect("one refused try is no outage")
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}
