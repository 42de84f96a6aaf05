//! Several locks as one: a transfer between two accounts holds both, and nobody deadlocks, whatever the order.
//!
//! ```text
//! $ cargo run --example transfer
//! ```
//!
//! With two locks taken one after the other, a transfer from 1 to 2 and one from 2 to 1 can each have the first and wait
//! for the second. A multi-lock never waits while it holds.

use std::time::Duration;

use watchlock::{Client, Error, Lease, MultiLock};

const TRANSFERS: u64 = 10;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let client = Client::connect(&url).await?;

    // In opposite directions at the same time.
    let (there, back) = tokio::join!(
        transfers(&client, "account:1", "account:2"),
        transfers(&client, "account:2", "account:1"),
    );
    println!(
        "{} transfers, nobody waits for anybody for ever",
        there? + back?
    );

    // Somebody who has one of them keeps the pair busy, and the other one stays free for everybody else.
    let held = client.get_lock("account:2").lock().await?;
    let both = pair(&client, "account:1", "account:2")?;
    let got = both
        .try_lock(Duration::from_millis(100), Lease::Watchdog)
        .await?;
    println!(
        "while account:2 is held: {}",
        if got.is_some() { "in" } else { "busy" }
    );
    println!(
        "account:1 is held meanwhile: {}",
        client.get_lock("account:1").is_locked().await?
    );
    held.unlock().await?;

    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

fn pair(client: &Client, from: &str, to: &str) -> Result<MultiLock, Error> {
    MultiLock::new([client.get_lock(from), client.get_lock(to)])
}

async fn transfers(client: &Client, from: &str, to: &str) -> Result<u64, Error> {
    let both = pair(client, from, to)?;
    for _ in 0..TRANSFERS {
        // Cancelled if either lock is lost meanwhile.
        both.run(async |guard| {
            assert!(guard.is_valid(), "both are ours");
            tokio::time::sleep(Duration::from_millis(1)).await;
        })
        .await?;
    }
    Ok(TRANSFERS)
}
