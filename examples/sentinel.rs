//! A job that outlives its master: sentinels say which server is the master, and the client asks for the lock at the
//! next one.
//!
//! ```text
//! $ scripts/sentinel.sh                   # a master, a replica and three sentinels on ports 7101 to 7105, until Ctrl-C
//! $ cargo run --example sentinel          # in another terminal
//! ```
//!
//! Kill the master while the job runs (`redis-cli -p 7101 shutdown`), and the job goes on. If the new master had not
//! received the lock in time, the lock would be lost, and the job would stop: `examples/acknowledged.rs` prevents that.

use std::time::Duration;

use watchlock::ClientBuilder;

#[tokio::main]
async fn main() -> Result<(), watchlock::Error> {
    let sentinels = std::env::var("SENTINEL_URLS").unwrap_or_else(|_| {
        "redis://127.0.0.1:7103/ redis://127.0.0.1:7104/ redis://127.0.0.1:7105/".to_owned()
    });
    let client = ClientBuilder::sentinel(sentinels.split_whitespace(), "locks")
        // Longer than a fail-over takes, so that waiters go on after it.
        .unavailable_after(Duration::from_secs(30))
        .connect()
        .await?;

    let guard = client.get_lock("sentinel:nightly").lock().await?;
    println!("the job begins");
    tokio::select! {
        reason = guard.lost() => println!("stopped at once: {reason}"),
        () = job() => {
            println!("the job is done");
            guard.unlock().await?;
        }
    }
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// Longer than most fail-overs.
async fn job() {
    tokio::time::sleep(Duration::from_secs(8)).await;
}
