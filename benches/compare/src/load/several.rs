//! Several locks as one: one task takes one lock, then several at once, and gives them back, in turn.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::wait_for_go;
use crate::Result;
use crate::locks::{LockUnderTest, Together};
use crate::stats::percentile;

/// The cost of one lock, and of several.
#[expect(clippy::struct_field_names, reason = "the unit")]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Several {
    pub(crate) one_p50_us: f64,
    pub(crate) all_p50_us: f64,
    pub(crate) all_p99_us: f64,
}

/// `None` when the entrant cannot take several at once.
pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    names: usize,
    window: Duration,
) -> Result<Option<Several>> {
    pairs(lock.clone(), names, window / 4).await?;
    wait_for_go();
    let took = pairs(lock.clone(), names, window).await?;
    Ok(took.map(|Together { one, all }| Several {
        one_p50_us: percentile(&one, 0.5).unwrap_or(0.0),
        all_p50_us: percentile(&all, 0.5).unwrap_or(0.0),
        all_p99_us: percentile(&all, 0.99).unwrap_or(0.0),
    }))
}

/// In a task, as pairs are measured.
async fn pairs<L: LockUnderTest>(
    lock: L,
    names: usize,
    window: Duration,
) -> Result<Option<Together>> {
    let end = Instant::now() + window;
    let names = (0..names)
        .map(|name| format!("bench:several:{name}"))
        .collect();
    tokio::spawn(async move { lock.together(names, end).await }).await?
}
