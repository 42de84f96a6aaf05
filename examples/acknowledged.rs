//! A lock that is granted only when the replica has it, too: whichever of the two servers is the master has the lock.
//!
//! ```text
//! $ scripts/sentinel.sh                   # a master, a replica and three sentinels on ports 7101 to 7105, until Ctrl-C
//! $ cargo run --example acknowledged      # in another terminal
//! ```
//!
//! Stop the replica (`redis-cli -p 7102 shutdown`), and nothing is granted any more: that is the price.

use std::time::Duration;

use watchlock::{ClientBuilder, Lease};

#[tokio::main]
async fn main() -> Result<(), watchlock::Error> {
    let sentinels = std::env::var("SENTINEL_URLS").unwrap_or_else(|_| {
        "redis://127.0.0.1:7103/ redis://127.0.0.1:7104/ redis://127.0.0.1:7105/".to_owned()
    });
    let client = ClientBuilder::sentinel(sentinels.split_whitespace(), "locks")
        // There is one replica and no other, so the promoted server has every lock that was granted.
        .acknowledged_by(1, Duration::from_millis(200))
        .connect()
        .await?;

    let lock = client.get_lock("acknowledged:payment:42");
    match lock.try_lock(Duration::from_secs(1), Lease::Watchdog).await {
        Ok(Some(guard)) => {
            println!("granted: the replica has it");
            guard.unlock().await?;
        }
        Ok(None) => println!("somebody else has it"),
        // The acquire was undone, so nothing is left of it.
        Err(error) => match error.not_replicated() {
            Some(few) => println!("refused: {few}"),
            None => return Err(error),
        },
    }
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
