//! What Redisson's users know of its lock, behaviour by behaviour, and what they find here.

mod holding;
mod keeping;
mod waiting;

use std::time::Duration;

use watchlock::{Client, ClientBuilder, Lease};
use watchlock_support::server::RedisServer;

/// What a machine with two cores and many tests may add to any time.
const LATE: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(20);
/// A watchdog lease that a test can wait for, and that a busy machine keeps.
const SHORT: Duration = Duration::from_millis(1_200);

async fn connect(server: &RedisServer) -> Client {
    patient(server).connect().await.expect("a client")
}

/// A client with a watchdog lease of [`SHORT`].
async fn connect_short(server: &RedisServer) -> Client {
    let builder = patient(server).watchdog_lease(SHORT);
    builder.connect().await.expect("a client")
}

/// What a busy machine does not answer for a while is no matter of these tests.
fn patient(server: &RedisServer) -> ClientBuilder {
    Client::builder(&server.url()).command_timeout(LONG)
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
