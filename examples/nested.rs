//! Nested critical sections: code that holds a lock calls code that takes the same lock.
//!
//! ```text
//! $ cargo run --example nested
//! ```
//!
//! In Java a thread may enter its own lock again. A task is not a thread, so here you name the *owner*, in one of three
//! ways. Without an owner every acquire stands alone: two tasks that share a handle always exclude each other.

use std::time::Duration;

use watchlock::{Client, Error, Lease, LockGuard, Owner, ReentrantLock};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let client = Client::connect(&url).await?;
    let accounts = Accounts {
        lock: client.get_lock("nested:accounts"),
    };

    by_guard(&client).await?;
    by_owner(&client).await?;

    // 3. A scope: wrap a request or a job in it, once. Inside, handles act for the scope's owner, also those that are
    //    kept in structs, and nobody has to hand anything down. (`spawn` does not inherit it.)
    client.scope(accounts.transfer()).await?;

    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// 1. Through the guard: code that gets it may enter again.
async fn by_guard(client: &Client) -> Result<(), Error> {
    let outer = client.get_lock("nested:accounts").lock().await?;
    println!("by guard: {}", outer.hold_count());
    helper_with_guard(&outer).await?;
    println!("by guard: {}", outer.hold_count());
    outer.unlock().await
}

async fn helper_with_guard(held: &LockGuard) -> Result<(), Error> {
    let inner = held.reenter(Lease::Watchdog).await?;
    println!("by guard: {}", inner.hold_count());
    inner.unlock().await
}

/// 2. By an owner that is handed down: for code that may be called with or without the lock.
async fn by_owner(client: &Client) -> Result<(), Error> {
    let owner = client.new_owner();
    let outer = owner.get_lock("nested:accounts").lock().await?;
    println!("by owner: {}", outer.hold_count());
    helper_with_owner(&owner).await?;
    println!("by owner: {}", outer.hold_count());
    outer.unlock().await
}

async fn helper_with_owner(owner: &Owner) -> Result<(), Error> {
    let inner = owner.get_lock("nested:accounts").lock().await?;
    println!("by owner: {}", inner.hold_count());
    inner.unlock().await
}

/// As in a real service: a lock in a field, and methods that call each other.
struct Accounts {
    lock: ReentrantLock,
}

impl Accounts {
    async fn transfer(&self) -> Result<(), Error> {
        let guard = self.lock.lock().await?;
        println!("by scope: {}", self.lock.hold_count());
        self.book().await?;
        println!("by scope: {}", self.lock.hold_count());
        guard.unlock().await
    }

    async fn book(&self) -> Result<(), Error> {
        let guard = self.lock.lock().await?; // enters again
        println!("by scope: {}", self.lock.hold_count());
        guard.unlock().await
    }
}
