//! Readers of one name that overlap without pause, and a writer that wants to get in between.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;

const NAME: &str = "bench:readers";
/// How long a reader reads.
const READ: Duration = Duration::from_millis(2);
/// How long the writer stays away.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the test waits for it at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the writer waited each time, in ms; nothing in processes without one.
pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    readers: usize,
    writes: bool,
    window: Duration,
) -> Result<Vec<f64>> {
    lock.section(NAME, async {}).await?;
    wait_for_go();
    let end = Instant::now() + window;
    let mut reading = JoinSet::new();
    for _ in 0..readers {
        let lock = lock.for_task().await?;
        reading.spawn(async move {
            while Instant::now() < end {
                lock.section(NAME, sleep(READ)).await?;
            }
            Result::Ok(())
        });
    }
    let mut waits = Vec::new();
    while writes && Instant::now() + PAUSE < end {
        sleep(PAUSE).await;
        let asked = Instant::now();
        let write = lock.write(NAME, async {});
        timeout(PATIENCE, write)
            .await
            .map_err(|_| "the writer starves")??;
        waits.push(asked.elapsed().as_secs_f64() * 1e3);
    }
    while let Some(read) = reading.join_next().await {
        read??;
    }
    Ok(waits)
}
