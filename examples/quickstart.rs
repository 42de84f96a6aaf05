//! The first lock: wait for it, work, give it back.
//!
//! ```text
//! $ cargo run --example quickstart
//! ```
//!
//! Run it in two terminals: the second one waits for the first.

use std::time::Duration;

use watchlock::{Client, Error, Lease};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());

    // One client per process is the rule. It is cheap to clone.
    let client = Client::connect(&url).await?;

    // A handle by name. Nothing is sent yet; clone it, keep it in your structs, share it between tasks.
    let lock = client.get_lock("quickstart:report");

    // Waits until nobody else holds the name, in any process, in Rust or Java. From then on a watchdog keeps the lock
    // alive for as long as the guard lives, even for hours; if this process dies, the lock is free within 30 s.
    let guard = lock.lock().await?;
    println!("in: nobody else is here");
    tokio::time::sleep(Duration::from_secs(1)).await;

    // Another acquire is kept out, even in this same process. It does not want to wait, so it returns at once. Busy is
    // not an error: it is `None`.
    let second = lock.try_lock(Duration::ZERO, Lease::Watchdog).await?;
    println!("a second try while it is held: {}", said(second.is_some()));

    // `unlock` reports whether the lock was held to the end; a dropped guard gives it back in the background.
    guard.unlock().await?;
    println!("out");

    // Wait for half a second at most, and hold for 10 s at most: no watchdog, the lock ends by itself.
    let ten_seconds = Duration::from_secs(10);
    // Bind the guard: behind `.is_some()` it is dropped at once, and the lock is free again.
    let third = lock.try_lock(Duration::from_millis(500), ten_seconds);
    let Some(guard) = third.await? else {
        println!("somebody else was faster");
        return Ok(());
    };
    println!("in again, for {:.0?} at most", guard.valid_for());
    guard.unlock().await?;

    // The end of a program: everything that is still held is given back, and nothing is left to a lease.
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

fn said(got_in: bool) -> &'static str {
    if got_in { "got in?!" } else { "busy" }
}
