//! A job under the lock of five servers, two of which may be down.
//!
//! ```text
//! $ scripts/quorum.sh        # starts five servers on loopback, kills two while the job runs, and stops the rest
//! ```
//!
//! The addresses are in `REDIS_URLS`, separated by commas. Servers do not vote until one lease after their start, since
//! they might have forgotten a lock; `NO_DELAY=1` is for servers that cannot have.

use std::time::Duration;

use watchlock::{Error, Quorum};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let urls = std::env::var("REDIS_URLS").unwrap_or_default();
    let mut builder = Quorum::builder(urls.split(',').filter(|url| !url.is_empty()))
        .watchdog_lease(Duration::from_secs(2));
    if std::env::var_os("NO_DELAY").is_some() {
        builder = builder.restart_delay(Duration::ZERO);
    }
    let quorum = builder.connect().await?;
    let lock = quorum.get_fenced_lock("quorum:nightly");
    let guard = lock.lock().await?;
    println!("the job begins, with the token {}", guard.token());
    tokio::select! {
        reason = guard.lost() => println!("stopped at once: {reason}"),
        () = job() => {
            guard.verify().await?; // asks the servers, before what cannot be undone
            println!("the job is done");
            guard.unlock().await?;
        }
    }
    quorum.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

/// Longer than two leases.
async fn job() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}
