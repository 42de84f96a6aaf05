//! Measures the client from inside: pairs of lock and unlock, and hand-overs between tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;
use watchlock::{Error, Lock};
use watchlock_support::now_ns;

use crate::failure::Failure;
use crate::kinds::{Called, Connected, Kind, Name};

/// Uncontended: each task locks and unlocks a name of its own.
pub(crate) struct Pairs {
    pub(crate) kind: &'static Kind,
    pub(crate) prefix: String,
    pub(crate) tasks: usize,
    pub(crate) span: Duration,
}

/// Contended: all tasks on one name.
pub(crate) struct Contended {
    pub(crate) kind: &'static Kind,
    pub(crate) name: Name,
    pub(crate) tasks: usize,
    pub(crate) span: Duration,
    pub(crate) hold: Duration,
    pub(crate) pause: Duration,
    /// The hold is spent computing, not asleep.
    pub(crate) busy: bool,
}

pub(crate) async fn pairs(client: Connected, plan: Pairs) -> Result<Value, Failure> {
    let end = now_ns().saturating_add(nanos(plan.span));
    let mut tasks = JoinSet::new();
    for task in 0..plan.tasks {
        let name = format!("{}{task}", plan.prefix);
        let name = match plan.kind.called {
            Called::Name => Name::One(name),
            Called::Names => Name::List(vec![format!("{name}:1"), format!("{name}:2")]),
            Called::ListOfOne => Name::List(vec![name]),
        };
        let lock = plan.kind.of_client(&client, &name)?;
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

async fn pairs_until(end: u64, lock: Arc<dyn Lock>) -> Result<Vec<u64>, Error> {
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

pub(crate) async fn contended(client: Connected, plan: Contended) -> Result<Value, Failure> {
    let end = now_ns().saturating_add(nanos(plan.span));
    let lock = plan.kind.of_client(&client, &plan.name)?;
    let course = Arc::new(Course::of(&plan));
    let mut tasks = JoinSet::new();
    for task in 0..plan.tasks {
        let (lock, course, pause) = (Arc::clone(&lock), Arc::clone(&course), plan.pause);
        tasks.spawn(async move {
            while now_ns() < end {
                course.section(&*lock, task).await?;
                if !pause.is_zero() {
                    // A sleep of no time takes a millisecond.
                    sleep(pause).await;
                }
            }
            Ok::<_, Error>(())
        });
    }
    for one in tasks.join_all().await {
        one?;
    }
    Ok(course.to_json())
}

/// What happened in the sections, in order.
struct Course {
    hold: Duration,
    busy: bool,
    shared: bool,
    inside: AtomicU32,
    overlaps: AtomicU32,
    tally: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    last: Option<usize>,
    /// Just before the last unlock was called.
    released: u64,
    handoffs: Vec<u64>,
    sections: u32,
    crossed: u32,
    worst_wait: u64,
}

impl Course {
    fn of(plan: &Contended) -> Self {
        Self {
            hold: plan.hold,
            busy: plan.busy,
            shared: plan.kind.shared,
            inside: AtomicU32::new(0),
            overlaps: AtomicU32::new(0),
            tally: Mutex::default(),
        }
    }

    async fn section(&self, lock: &dyn Lock, task: usize) -> Result<(), Error> {
        let asked = now_ns();
        let guard = lock.lock().await?;
        let entered = now_ns();
        if self.inside.fetch_add(1, Ordering::SeqCst) > 0 && !self.shared {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        self.tally.lock().note(task, asked, entered);
        self.stay().await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.tally.lock().released = now_ns();
        guard.unlock().await
    }

    async fn stay(&self) {
        if self.busy {
            let end = now_ns().saturating_add(nanos(self.hold));
            while now_ns() < end {
                std::hint::spin_loop();
            }
        } else if !self.hold.is_zero() {
            sleep(self.hold).await;
        }
    }

    fn to_json(&self) -> Value {
        let mut tally = self.tally.lock();
        tally.handoffs.sort_unstable();
        json!({
            "sections": tally.sections,
            "handoff_p50_us": quantile_us(&tally.handoffs, 50),
            "handoff_p99_us": quantile_us(&tally.handoffs, 99),
            "cross": f64::from(tally.crossed) / f64::from(tally.sections.max(1)),
            "worst_wait_ms": tally.worst_wait / 1_000_000,
            "overlaps": self.overlaps.load(Ordering::SeqCst),
        })
    }
}

impl Tally {
    /// A hand-over counts if the next holder was already waiting when the previous one left.
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
