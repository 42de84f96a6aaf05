//! The log never shows owner ids; for passwords see `tests/connect/secrets.rs`.

use std::time::Duration;

use watchlock_support::server::RedisServer;

use super::Log;
use crate::common::{LONG, connect_short, soon, subscribed};

#[tokio::test]
async fn owner_ids_show_in_no_event() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let (client, other) = (connect_short(&server).await, connect_short(&server).await);
    let ids = [client.id().to_string(), other.id().to_string()];
    let guard = client.get_lock("ids").lock().await.unwrap();
    let lock = other.get_lock("ids");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "ids").await;
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    server.cmd(&["DEL", "ids"]).await;
    soon(guard.lost()).await;
    drop(guard);
    let lock = client.get_lock("ids");
    let body = lock.try_run(Duration::ZERO, LONG, async |_| ());
    body.await.unwrap();
    // At its end a client has logged everything.
    soon(client.shutdown(LONG)).await;
    soon(other.shutdown(LONG)).await;
    let all = format!("{:?}", log.all());
    assert!(all.contains("hold lost"));
    assert!(ids.iter().all(|id| !all.contains(id)), "{all}");
}
