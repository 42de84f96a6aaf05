//! Lock and unlock with and without a replica's acknowledgement, and how long another command of the client takes
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::pairs::{self, Pairs};
use crate::Result;
use crate::locks::LockUnderTest;
use crate::stats::percentile;

/// How often the other command is sent.
const PAUSE: Duration = Duration::from_millis(1);

/// The cost of the pairs, and of the other command beside them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Acknowledged {
    pub(crate) pairs: Pairs,
    pub(crate) other_p50_us: f64,
    pub(crate) other_p99_us: f64,
}

/// `None` when the crate does not wait for replicas.
pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    url: &str,
    tasks: usize,
    acks: bool,
    window: Duration,
) -> Result<Option<Acknowledged>> {
    let lock = if acks {
        lock.acknowledged(url).await?
    } else {
        Some(lock.clone())
    };
    let Some(lock) = lock else { return Ok(None) };
    let over = Arc::new(AtomicBool::new(false));
    let others = tokio::spawn(others(lock.clone(), Arc::clone(&over)));
    let measured = pairs::run(&lock, tasks, window).await;
    let begun = Instant::now().checked_sub(window);
    // Relaxed: it only ends a loop.
    over.store(true, Ordering::Relaxed);
    let others = others.await??;
    // Without those of the warm-up.
    let meanwhile = others.into_iter().filter(|(sent, _)| Some(*sent) >= begun);
    let took: Vec<f64> = meanwhile.map(|(_, took)| took).collect();
    Ok(Some(Acknowledged {
        pairs: measured?,
        other_p50_us: percentile(&took, 0.5).unwrap_or(0.0),
        other_p99_us: percentile(&took, 0.99).unwrap_or(0.0),
    }))
}

/// Asks now and then whether a free lock is held; returns when, and how long it took, in µs.
async fn others<L: LockUnderTest>(lock: L, over: Arc<AtomicBool>) -> Result<Vec<(Instant, f64)>> {
    let mut took = Vec::new();
    // Relaxed: as above.
    while !over.load(Ordering::Relaxed) {
        let before = Instant::now();
        lock.is_locked("bench:nobody's").await?;
        took.push((before, before.elapsed().as_secs_f64() * 1e6));
        tokio::time::sleep(PAUSE).await;
    }
    Ok(took)
}
