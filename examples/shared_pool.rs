//! An application that already has a deadpool pool hands over its way of connecting.
//!
//! ```text
//! $ cargo run --example shared_pool
//! ```
//!
//! The pool knows how to reach Redis: host, password, TLS, time-outs. The client makes its connections with the pool's
//! manager and takes none out of the pool: a connection shared with the application would put our commands into its
//! transactions, and our subscription on it would end them. A pool cannot give subscriptions, so they come from the
//! address; the client checks when connecting that both lead to the same database.

use std::time::Duration;

use deadpool_redis::redis::AsyncCommands;
use deadpool_redis::{Config, Runtime};
use watchlock::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());

    // What the application has anyway.
    let pool = Config::from_url(&url).create_pool(Some(Runtime::Tokio1))?;

    let client = Client::builder(&url)
        .pool(pool.clone())
        // Several applications in one Redis: each with names of its own.
        .key_prefix("shop:")
        .connect()
        .await?;

    let guard = client.get_lock("shared_pool:stock").lock().await?;
    // The application goes on using its pool, under the lock.
    let mut connection = pool.get().await?;
    let key = "shop:{shared_pool:stock}:left";
    connection.set::<_, _, ()>(key, 10).await?;
    let left: i64 = connection.decr(key, 1).await?;
    connection.del::<_, ()>(key).await?;
    println!("one sold, {left} left");
    println!(
        "connections in the application's pool: {}",
        pool.status().size
    );
    guard.unlock().await?;

    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
