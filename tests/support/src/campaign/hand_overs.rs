//! How often a release handed a fair lock over to another client: by what it tells that client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::server::RedisServer;

/// The channels of waiters for fair locks, and others.
const CHANNELS: &str = "redisson_lock__channel:*";

/// Counts from the moment it is made until it is dropped; not while the server is down.
pub(super) struct HandOvers {
    seen: Arc<AtomicU64>,
    listening: JoinHandle<()>,
}

impl HandOvers {
    pub(super) fn listen(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).expect("the kit's own address");
        let seen = Arc::<AtomicU64>::default();
        let count = Arc::clone(&seen);
        let listening = tokio::spawn(async move {
            loop {
                // The server is killed now and then.
                let _ended = listen(&client, &count).await;
                sleep(Duration::from_millis(50)).await;
            }
        });
        Self { seen, listening }
    }

    /// All until now.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Drop for HandOvers {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(client: &redis::Client, count: &AtomicU64) -> redis::RedisResult<()> {
    let mut pubsub = client.get_async_pubsub().await?;
    pubsub.psubscribe(CHANNELS).await?;
    let mut messages = pubsub.into_on_message();
    while let Some(message) = messages.next().await {
        let payload = message.get_payload::<String>().unwrap_or_default();
        // The hold, its arrival, and whether the next is of the same client; a wake-up is one word.
        if payload.split(' ').count() == 3 {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}
