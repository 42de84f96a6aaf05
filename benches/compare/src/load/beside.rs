//! In a cluster: how long locks take while all masters answer, and while one of them does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;
use crate::stats::percentile;

/// The pause between two sections of a task: it measures the way there, not a queue for the processor.
const PAUSE: Duration = Duration::from_millis(1);
const WARM_UP: Duration = Duration::from_millis(300);

/// The length of a section at a master that answers.
#[expect(clippy::struct_field_names, reason = "the unit")]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Beside {
    pub(crate) before_p50_us: f64,
    pub(crate) before_p99_us: f64,
    pub(crate) meanwhile_p50_us: f64,
    pub(crate) meanwhile_p99_us: f64,
}

/// A task for each name of `well`; meanwhile one for each of `ill`, whose master, at `node`, falls silent in the middle.
pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    [well, ill]: [Vec<String>; 2],
    node: &str,
    window: Duration,
) -> Result<Beside> {
    let half = window / 2;
    let mut stuck = JoinSet::new();
    for name in ill {
        stuck.spawn(want(lock.clone(), name));
    }
    let mut silencer = redis::Client::open(node)?
        .get_multiplexed_async_connection()
        .await?;
    sections(lock, &well, WARM_UP).await?;
    wait_for_go();
    let before = sections(lock, &well, half).await?;
    let millis = u64::try_from(half.as_millis())?;
    let mut pause = redis::cmd("CLIENT");
    pause.arg("PAUSE").arg(millis).arg("ALL");
    pause.query_async::<()>(&mut silencer).await?;
    let meanwhile = sections(lock, &well, half).await?;
    let of = |took: &[f64], q| percentile(took, q).unwrap_or(0.0);
    Ok(Beside {
        before_p50_us: of(&before, 0.5),
        before_p99_us: of(&before, 0.99),
        meanwhile_p50_us: of(&meanwhile, 0.5),
        meanwhile_p99_us: of(&meanwhile, 0.99),
    })
}

/// Takes a lock again and again, whatever the result.
async fn want<L: LockUnderTest>(lock: L, name: String) {
    loop {
        // It is meant to fail once its master is silent.
        let _ = lock.section(&name, async {}).await;
        sleep(PAUSE).await;
    }
}

/// The time of each section, in µs.
async fn sections<L: LockUnderTest>(
    lock: &L,
    names: &[String],
    window: Duration,
) -> Result<Vec<f64>> {
    let end = Instant::now() + window;
    let mut tasks = JoinSet::new();
    for name in names {
        let (lock, name) = (lock.clone(), Arc::<str>::from(name.as_str()));
        tasks.spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < end {
                let before = Instant::now();
                lock.section(&name, async {}).await?;
                took.push(before.elapsed().as_secs_f64() * 1e6);
                sleep(PAUSE).await;
            }
            Result::Ok(took)
        });
    }
    let mut all = Vec::new();
    for took in tasks.join_all().await {
        all.append(&mut took?);
    }
    Ok(all)
}
