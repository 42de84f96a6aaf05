//! Redis' own report of which lock ran out, and when: the evidence that a hold ended and was not taken away.

use std::sync::Arc;

use futures_util::StreamExt as _;
use parking_lot::Mutex;

use crate::history::Nanos;
use crate::now_ns;
use crate::server::RedisServer;

pub(super) struct Expiries {
    seen: Arc<Mutex<Vec<(Nanos, String)>>>,
}

impl Expiries {
    pub(super) async fn listen(server: &RedisServer) -> Self {
        server
            .cmd(&["CONFIG", "SET", "notify-keyspace-events", "Ex"])
            .await;
        // A busy server looks for expired keys ten times a second; this makes it report sooner.
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
        let seen = Arc::new(Mutex::new(Vec::new()));
        let seeing = Arc::clone(&seen);
        tokio::spawn(async move {
            let mut messages = pubsub.into_on_message();
            while let Some(message) = messages.next().await {
                let name = message.get_payload::<String>().unwrap_or_default();
                seeing.lock().push((now_ns(), name));
            }
        });
        Self { seen }
    }

    /// All reports until now.
    pub(super) fn seen(&self) -> Vec<(Nanos, String)> {
        self.seen.lock().clone()
    }
}
