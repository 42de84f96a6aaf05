//! Re-entry: one task holds a name, enters it again and gives the level back.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;
use crate::stats::percentile;

/// The cost of entering again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reentry {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

const NAME: &str = "bench:reentry";

/// `None` when the entrant is not reentrant.
pub(crate) async fn run<L: LockUnderTest>(lock: &L, window: Duration) -> Result<Option<Reentry>> {
    enter(lock.clone(), window / 4).await?;
    wait_for_go();
    let took = enter(lock.clone(), window).await?;
    Ok(took.map(|took| Reentry {
        p50_us: percentile(&took, 0.5).unwrap_or(0.0),
        p99_us: percentile(&took, 0.99).unwrap_or(0.0),
    }))
}

/// In a task, as pairs are measured: the main thread of a runtime pays for a hop that tasks do not.
async fn enter<L: LockUnderTest>(lock: L, window: Duration) -> Result<Option<Vec<f64>>> {
    let end = Instant::now() + window;
    tokio::spawn(async move { lock.reenter(NAME, end).await }).await?
}
