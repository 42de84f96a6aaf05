//! Redis' own word on which lock ran out, and when: the evidence that a hold ended and was not taken away.

use std::sync::Arc;

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use watchlock_support::history::Nanos;
use watchlock_support::now_ns;
use watchlock_support::server::RedisServer;

pub(super) struct Expiries {
    /// The id of the listening connection.
    pub(super) listener: String,
    seen: Arc<Mutex<Vec<(Nanos, String)>>>,
}

impl Expiries {
    pub(super) async fn listen(server: &RedisServer) -> Self {
        server
            .cmd(&["CONFIG", "SET", "notify-keyspace-events", "Ex"])
            .await;
        // A busy server looks for expired keys ten times a second; this makes it tell sooner.
        server.cmd(&["CONFIG", "SET", "hz", "100"]).await;
        let url = server.url();
        let client = redis::Client::open(url).expect("the kit's own address");
        let mut pubsub = client
            .get_async_pubsub()
            .await
            .expect("the server is there");
        pubsub
            .subscribe("__keyevent@0__:expired")
            .await
            .expect("subscribed");
        let listener = the_only_subscriber(server).await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let seeing = Arc::clone(&seen);
        tokio::spawn(async move {
            let mut messages = pubsub.into_on_message();
            while let Some(message) = messages.next().await {
                let name = message.get_payload::<String>().unwrap_or_default();
                seeing.lock().push((now_ns(), name));
            }
        });
        Self { listener, seen }
    }

    pub(super) fn seen(&self) -> Vec<(Nanos, String)> {
        self.seen.lock().clone()
    }
}

/// Nobody else listens before the campaign begins.
async fn the_only_subscriber(server: &RedisServer) -> String {
    let mut clients = server.clients().await;
    clients.retain(|client| client.get("sub").is_some_and(|channels| channels != "0"));
    assert_eq!(clients.len(), 1, "{clients:?}");
    clients
        .remove(0)
        .remove("id")
        .expect("a connection has an id")
}
