//! Measures the client from inside: pairs of lock and unlock, and hand-overs between tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;
use watchlock::{Client, Error, ReentrantLock};
use watchlock_support::now_ns;

/// Uncontended: each task locks and unlocks a name of its own.
pub(crate) struct Pairs {
    pub(crate) prefix: String,
    pub(crate) tasks: usize,
    pub(crate) span: Duration,
}

/// Contended: all tasks on one name.
pub(crate) struct Contended {
    pub(crate) name: String,
    pub(crate) tasks: usize,
    pub(crate) span: Duration,
    pub(crate) hold: Duration,
    pub(crate) pause: Duration,
}

pub(crate) async fn pairs(client: Client, plan: Pairs) -> Result<Value, Error> {
    let end = now_ns().saturating_add(nanos(plan.span));
    let mut tasks = JoinSet::new();
    for task in 0..plan.tasks {
        let lock = client.get_lock(&format!("{}{task}", plan.prefix));
        tasks.spawn(pairs_until(end, lock));
    }
    let mut took = Vec::new();
    for one in tasks.join_all().await {
        took.append(&mut one?);
    }
    took.sort_unstable();
    Ok(json!({
        "pairs": took.len(),
        "p50_us": quantile_us(&took, 50),
        "p99_us": quantile_us(&took, 99),
    }))
}

async fn pairs_until(end: u64, lock: ReentrantLock) -> Result<Vec<u64>, Error> {
    let mut took = Vec::new();
    let mut start = now_ns();
    while start < end {
        lock.lock().await?.unlock().await?;
        let now = now_ns();
        took.push(now - start);
        start = now;
    }
    Ok(took)
}

pub(crate) async fn contended(client: Client, plan: Contended) -> Result<Value, Error> {
    let end = now_ns().saturating_add(nanos(plan.span));
    let lock = client.get_lock(&plan.name);
    let course = Arc::new(Course::default());
    let mut tasks = JoinSet::new();
    for task in 0..plan.tasks {
        let (lock, course) = (lock.clone(), Arc::clone(&course));
        let (hold, pause) = (plan.hold, plan.pause);
        tasks.spawn(async move {
            while now_ns() < end {
                course.section(&lock, task, hold).await?;
                sleep(pause).await;
            }
            Ok::<_, Error>(())
        });
    }
    for one in tasks.join_all().await {
        one?;
    }
    Ok(course.to_json())
}

/// What happened in the sections, in their order.
#[derive(Default)]
struct Course {
    inside: AtomicU32,
    overlaps: AtomicU32,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    last: Option<usize>,
    /// Just before the last unlock was called.
    released: u64,
    handoffs: Vec<u64>,
    sections: u32,
    crossed: u32,
    worst_wait: u64,
}

impl Course {
    async fn section(
        &self,
        lock: &ReentrantLock,
        task: usize,
        hold: Duration,
    ) -> Result<(), Error> {
        let asked = now_ns();
        let guard = lock.lock().await?;
        let entered = now_ns();
        if self.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        self.told.lock().note(task, asked, entered);
        sleep(hold).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.told.lock().released = now_ns();
        guard.unlock().await
    }

    fn to_json(&self) -> Value {
        let mut told = self.told.lock();
        told.handoffs.sort_unstable();
        json!({
            "sections": told.sections,
            "handoff_p50_us": quantile_us(&told.handoffs, 50),
            "handoff_p99_us": quantile_us(&told.handoffs, 99),
            "cross": f64::from(told.crossed) / f64::from(told.sections.max(1)),
            "worst_wait_ms": told.worst_wait / 1_000_000,
            "overlaps": self.overlaps.load(Ordering::SeqCst),
        })
    }
}

impl Told {
    /// A hand-over counts when who got in was already waiting as the one before went.
    fn note(&mut self, task: usize, asked: u64, entered: u64) {
        if self.last.is_some() && asked < self.released {
            self.handoffs.push(entered.saturating_sub(self.released));
        }
        self.crossed += u32::from(self.last.is_some_and(|last| last != task));
        self.sections += 1;
        self.worst_wait = self.worst_wait.max(entered - asked);
        self.last = Some(task);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Of sorted durations in nanoseconds.
fn quantile_us(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(rank).copied().unwrap_or(0) / 1_000
}
