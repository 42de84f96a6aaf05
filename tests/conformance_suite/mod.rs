//! What Redisson's users know of its lock, behaviour by behaviour, and what they find here.

mod holding;
mod keeping;
mod waiting;

use std::time::Duration;

use watchlock::{Client, Lease};
use watchlock_support::server::RedisServer;

/// What a machine with two cores and many tests may add to any time.
const LATE: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(20);
/// A watchdog lease that a test can wait for.
const SHORT: Duration = Duration::from_millis(600);

async fn connect(server: &RedisServer) -> Client {
    Client::connect(&server.url()).await.expect("a client")
}

/// A client with a watchdog lease of [`SHORT`].
async fn connect_short(server: &RedisServer) -> Client {
    Client::builder(&server.url())
        .watchdog_lease(SHORT)
        .connect()
        .await
        .expect("a client")
}

/// One try: whether the lock was free. It is again when this returns.
async fn is_free(client: &Client, name: &str) -> bool {
    let lock = client.get_lock(name);
    match lock.try_lock(Duration::ZERO, Lease::Watchdog).await {
        Ok(Some(guard)) => {
            guard.unlock().await.expect("our own lock");
            true
        }
        Ok(None) => false,
        Err(error) => panic!("{error}"),
    }
}
