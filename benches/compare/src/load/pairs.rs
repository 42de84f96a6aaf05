//! Uncontended: each task locks and unlocks a name of its own, as fast as it can.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;
use crate::stats::percentile;
use crate::usage::process_cpu_ns;

/// Warm enough after so many pairs of each task, or so much time.
const WARM_UP_PAIRS: usize = 30;
const WARM_UP: Duration = Duration::from_millis(500);

/// What the pairs cost.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Pairs {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// CPU of the client process.
    pub(crate) cpu_us: f64,
    /// CPU of the server; whoever reads its counters fills it in.
    #[serde(default)]
    pub(crate) server_us: f64,
}

impl Pairs {
    /// With what the server took for all of them.
    pub(crate) fn with_server(mut self, cpu_seconds: f64, window: Duration) -> Self {
        let pairs = self.per_second * window.as_secs_f64();
        self.server_us = cpu_seconds * 1e6 / pairs.max(1.0);
        self
    }
}

pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    tasks: usize,
    window: Duration,
) -> Result<Pairs> {
    let mut handles = Vec::new();
    for _ in 0..tasks {
        handles.push(lock.for_task().await?);
    }
    let warm = Instant::now() + WARM_UP;
    round(&handles, move |done, now| {
        done < WARM_UP_PAIRS && now < warm
    })
    .await?;
    wait_for_go();

    let (start, cpu) = (Instant::now(), process_cpu_ns());
    let end = start + window;
    let took = round(&handles, move |_, now| now < end).await?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_us = (process_cpu_ns() - cpu) as f64 / 1e3;
    Ok(Pairs {
        per_second: took.len() as f64 / seconds,
        p50_us: percentile(&took, 0.5).unwrap_or(0.0),
        p99_us: percentile(&took, 0.99).unwrap_or(0.0),
        cpu_us: cpu_us / took.len().max(1) as f64,
        server_us: 0.0,
    })
}

/// All tasks at once, each until `more(pairs done, now)` says no; what each pair took, in µs.
async fn round<L, M>(handles: &[L], more: M) -> Result<Vec<f64>>
where
    L: LockUnderTest,
    M: Fn(usize, Instant) -> bool + Copy + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (number, handle) in handles.iter().enumerate() {
        tasks.spawn(one_task(handle.clone(), format!("bench:{number}"), more));
    }
    let mut all = Vec::new();
    for took in tasks.join_all().await {
        all.append(&mut took?);
    }
    Ok(all)
}

async fn one_task<L, M>(lock: L, name: String, more: M) -> Result<Vec<f64>>
where
    L: LockUnderTest,
    M: Fn(usize, Instant) -> bool,
{
    let mut took = Vec::with_capacity(4096);
    let mut failed = 0_u32;
    let mut before = Instant::now();
    while more(took.len(), before) {
        let outcome = lock.section(&name, async {}).await;
        let after = Instant::now();
        match outcome {
            Ok(()) => took.push((after - before).as_secs_f64() * 1e6),
            // A lock that gives up at its defaults does so here as well: not a pair, and said once.
            Err(failure) => {
                if failed == 0 {
                    eprintln!("\n{name}: {failure}");
                }
                failed += 1;
            }
        }
        before = after;
    }
    Ok(took)
}
