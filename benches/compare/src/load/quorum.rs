//! A quorum: one task takes a lock of one server, of a majority by raw commands, of a quorum, and of a quorum that lacks a minority, in turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;
use crate::stats::percentile;

/// The times of acquires.
#[expect(clippy::struct_field_names, reason = "the unit")]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Acquires {
    pub(crate) one_p50_us: f64,
    pub(crate) raw_p50_us: f64,
    pub(crate) all_p50_us: f64,
    pub(crate) some_p50_us: f64,
    pub(crate) all_p99_us: f64,
}

/// `None` when the entrant has no quorum.
pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    quorums: [Vec<String>; 2],
    window: Duration,
) -> Result<Option<Acquires>> {
    wait_for_go();
    let lock = lock.clone();
    // In a task, as pairs are measured.
    let took = tokio::spawn(async move { lock.majorities(quorums, window).await }).await??;
    Ok(took.map(|took| Acquires {
        one_p50_us: percentile(&took.one, 0.5).unwrap_or(0.0),
        raw_p50_us: percentile(&took.raw, 0.5).unwrap_or(0.0),
        all_p50_us: percentile(&took.all, 0.5).unwrap_or(0.0),
        some_p50_us: percentile(&took.some, 0.5).unwrap_or(0.0),
        all_p99_us: percentile(&took.all, 0.99).unwrap_or(0.0),
    }))
}
