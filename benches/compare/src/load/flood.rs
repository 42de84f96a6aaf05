//! A flood of messages on the channel of a name for which a task waits, while its client keeps locks alive.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::holding::{Watched, take, watch};
use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;
use crate::locks::script::channel;
use crate::usage::resident_bytes;

const NAME: &str = "bench:flood";
/// Locks that are renewed meanwhile.
const HOLDS: usize = 100;
/// Messages in one write, and how often one is due.
const TOGETHER: usize = 1_000;
const PACE: Duration = Duration::from_millis(10);
/// The memory is compared from here on: buffers have grown by then.
const SETTLE: Duration = Duration::from_secs(5);

/// What a flood does to a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Flood {
    pub(crate) messages_per_second: f64,
    /// The shortest TTL seen: a renewal on time keeps it above two thirds of the lease.
    pub(crate) min_ttl_ms: i64,
    /// Locks that were gone.
    pub(crate) gone: usize,
    /// By how much the client's memory grew.
    pub(crate) grown_bytes: u64,
}

pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    url: &str,
    window: Duration,
) -> Result<Option<Flood>> {
    let held = take(lock, HOLDS).await?;
    let mut connection = redis::Client::open(url)?.get_connection()?;
    // Somebody else has the lock, and never gives it back.
    redis::pipe()
        .cmd("HSET")
        .arg(&[NAME, "another client:1", "1"])
        .cmd("PEXPIRE")
        .arg(&[NAME, "3600000"])
        .exec(&mut connection)?;
    let waiter = lock.clone();
    let waits = tokio::spawn(async move { waiter.section(NAME, async {}).await });
    let listens = listens(&mut connection).await?;
    wait_for_go();
    if !listens || held.is_empty() {
        waits.abort();
        return Ok(None);
    }

    let flood = spawn_blocking(move || publish(&mut connection, SETTLE + window));
    tokio::time::sleep(SETTLE).await;
    let memory = resident_bytes();
    let watched = url.to_owned();
    let watching = spawn_blocking(move || watch(&watched, HOLDS, window));
    let Watched {
        min_ttl_ms, gone, ..
    } = watching.await??;
    let grown_bytes = resident_bytes().saturating_sub(memory);
    let messages_per_second = flood.await??;
    waits.abort();
    std::mem::forget(held); // the server goes away with the measurement
    Ok(Some(Flood {
        messages_per_second,
        min_ttl_ms,
        gone,
        grown_bytes,
    }))
}

/// Whether the waiter subscribes to its channel within a few seconds.
async fn listens(connection: &mut redis::Connection) -> Result<bool> {
    for _ in 0..50 {
        let mut subscribers = redis::cmd("PUBSUB");
        subscribers.arg("NUMSUB").arg(channel(NAME));
        let (_, count): (String, u64) = subscribers.query(connection)?;
        if count > 0 {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(false)
}

/// Says for `time` again and again that the lock is free. Returns how often a second.
fn publish(connection: &mut redis::Connection, time: Duration) -> Result<f64> {
    let mut pipe = redis::pipe();
    for _ in 0..TOGETHER {
        pipe.cmd("PUBLISH").arg(channel(NAME)).arg("0").ignore();
    }
    let (start, mut sent) = (Instant::now(), 0_u32);
    while start.elapsed() < time {
        pipe.exec(connection)?;
        sent += 1;
        std::thread::sleep((PACE * sent).saturating_sub(start.elapsed()));
    }
    Ok(f64::from(sent) * TOGETHER as f64 / start.elapsed().as_secs_f64())
}
