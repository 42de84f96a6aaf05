//! A client that ends while it holds very many locks.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::holding::take;
use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;

/// What the end of a client takes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ending {
    pub(crate) seconds: f64,
    /// Locks that were still held afterwards.
    pub(crate) left: u64,
}

/// `None` when the entrant does not release what it holds at its end.
pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    url: &str,
    holds: usize,
) -> Result<Option<Ending>> {
    let held = take(lock, holds).await?;
    wait_for_go();
    let start = Instant::now();
    let ended = lock.shut_down(Duration::ZERO).await?;
    let seconds = start.elapsed().as_secs_f64();
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let left = redis::cmd("DBSIZE").query(&mut connection)?;
    drop(held);
    Ok(ended.then_some(Ending { seconds, left }))
}
