//! The read/write lock through the public API: many readers or one writer.

#[path = "../common/mod.rs"]
mod common;

mod cut_off;
mod grants;
mod levels;
mod losses;
mod readers;
mod seams;
mod writers;

use std::time::Duration;

use watchlock::{Client, Lease, LockGuard, WriteGuard};
use watchlock_support::server::RedisServer;

/// One try to read.
async fn try_read(client: &Client, name: &str) -> Option<LockGuard> {
    let lock = client.get_read_write_lock(name).read_lock();
    let got = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    got.expect("a clean answer")
}

/// One try to write.
async fn try_write(client: &Client, name: &str) -> Option<WriteGuard> {
    let lock = client.get_read_write_lock(name).write_lock();
    let got = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    got.expect("a clean answer")
}

/// How many read holds Redis has.
async fn reads(server: &RedisServer, name: &str) -> usize {
    let fields = server.hash(name).await;
    let reads = fields
        .keys()
        .filter(|field| *field != "mode" && !field.ends_with(":write"));
    reads.count()
}

async fn timeout_keys(server: &RedisServer) -> Vec<String> {
    let mut keys = server.keys().await;
    keys.retain(|key| key.contains("rwlock_timeout"));
    keys
}
