//! A long job that stops when its lock is lost.
//!
//! ```text
//! $ cargo run --example long_job            # and meanwhile, to take the lock away from it:
//! $ redis-cli DEL long_job:nightly
//! ```
//!
//! A lock that can be held for hours can be lost in these hours: Redis is away for longer than the lease, the process
//! is frozen, an operator deletes the key. The holder is notified before its lease lets anybody else in, and must then
//! stop: from that moment somebody else may be doing the same job.

use std::time::Duration;

use watchlock::{Client, Error, HoldView};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let client = Client::builder(&url)
        // The default is 30 s. A shorter lease finds losses sooner and costs more renewals: one every third of it.
        .watchdog_lease(Duration::from_secs(3))
        .connect()
        .await?;
    let guard = client.get_lock("long_job:nightly").lock().await?;
    println!("the job begins");

    // Subtasks get a view of the hold. It keeps nothing alive; it only reports.
    let upload = tokio::spawn(upload(guard.hold()));

    tokio::select! {
        // The work is dropped at its next await when the lock is lost …
        reason = guard.lost() => println!("the job stops: the lock is lost, {reason}"),
        () = work() => {
            // … and `unlock` reports whether it was ours to the end.
            guard.unlock().await?;
            println!("the job is done");
        }
    }
    match upload.await.expect("the upload does not panic") {
        Ok(parts) => println!("the upload ended after {parts} parts"),
        Err(error) => println!("the upload stops: {error}"),
    }

    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// Longer than a lease: the watchdog renews it.
async fn work() {
    for step in 1..=5 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        println!("step {step} of 5");
    }
}

/// Checks before each step that must not be done without the lock. The check is local: it sends nothing.
async fn upload(hold: HoldView) -> Result<u32, Error> {
    for _ in 0..30 {
        hold.check()?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(30)
}
