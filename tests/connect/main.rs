//! Connecting: addresses, secrets, servers that are absent, silent or unfit, pools, runtimes, and how many
//! connections there are.
//!
//! Tests that count threads and files, or set the environment, run in a process of their own: see `alone`.

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod alone;
mod bounds;
mod chains;
mod demoted;
mod ending;
mod fake;
mod fuzz;
mod gaps;
#[cfg(not(feature = "tls"))]
mod given;
mod lanes;
mod lazy;
mod links;
mod listening;
mod many;
mod outside;
mod paused;
mod pools;
mod rotating;
mod runtimes;
mod secrets;
mod servers;
#[cfg(target_os = "linux")]
mod sockets;
#[cfg(feature = "tls")]
mod tls;
mod tls_server;
mod unfit;
mod verified;

use watchlock::{Client, Lease};

use crate::common::{LONG, ms, soon};

/// Uses everything that goes over a connection, including a wait that ends with a wake-up.
async fn works(client: &Client) {
    let lock = client.get_lock("works");
    let guard = soon(lock.lock()).await.expect("the lock is free");
    assert!(lock.is_locked().await.expect("a clean answer"));
    let inner = guard.reenter(Lease::Watchdog).await.expect("our own hold");
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.try_lock(LONG, ms(5_000)).await }
    });
    inner.unlock().await.expect("our own level");
    guard.unlock().await.expect("our own hold");
    let next = soon(waiting).await.expect("no panic");
    let next = next.expect("a clean answer").expect("the lock is free");
    next.unlock().await.expect("our own hold");
    assert!(!lock.is_locked().await.expect("a clean answer"));
}
