//! Locks in a Redis Cluster: each lock is at the node that has its slot, and the locks of a set may be at several.
//!
//! ```text
//! $ scripts/cluster.sh                    # three masters on ports 7001 to 7003, until Ctrl-C
//! $ cargo run --example cluster           # in another terminal
//! ```
//!
//! Nothing else differs from a single server. Names with the same text between braces share a node: `{order:7}` is a
//! tag. Locks do not need that; the keys that a lock protects may.

use std::time::Duration;

use watchlock::{ClientBuilder, MultiLock};

#[tokio::main]
async fn main() -> Result<(), watchlock::Error> {
    let nodes = std::env::var("REDIS_URLS").unwrap_or_else(|_| {
        "redis://127.0.0.1:7001/ redis://127.0.0.1:7002/ redis://127.0.0.1:7003/".to_owned()
    });

    // One address is enough while its node is up; of several, the first that answers counts.
    let client = ClientBuilder::cluster(nodes.split_whitespace())
        .connect()
        .await?;

    // Ten locks, at whichever nodes have their slots. They are renewed by node: the trouble of one does not delay the
    // others.
    let mut guards = Vec::new();
    for order in 1..=10 {
        guards.push(client.get_lock(&format!("order:{order}")).lock().await?);
    }
    println!("{} orders are ours", guards.len());
    for guard in guards {
        guard.unlock().await?;
    }

    // Two at once, without a deadlock with a process that takes them in the other order.
    let stock = client.get_lock("stock");
    let both = MultiLock::new([stock.clone(), client.get_lock("till")])?;
    let guard = both.lock().await?;
    println!("stock and till are ours");
    println!("stock is locked: {}", stock.is_locked().await?);
    guard.unlock().await?;

    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
