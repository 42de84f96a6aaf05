//! Contended: all tasks on one name. A hold is spent computing: runtimes round sleeps, each in its own way.
//!
//! The processes only report what happened when; [`Contended::of`] evaluates all of them together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use watchlock_support::now_ns;

use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;
use crate::stats::percentile;

/// The name that all of them use.
pub(crate) const NAME: &str = "bench:contended";
/// How long tasks may take to leave when the time is over.
const GRACE: Duration = Duration::from_millis(500);

/// What a task does with the lock, and between two sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    /// How long a section computes.
    pub(crate) hold_us: u64,
    /// How long a task sleeps after each section.
    pub(crate) pause_us: u64,
}

impl Work {
    pub(crate) fn hold(self) -> Duration {
        Duration::from_micros(self.hold_us)
    }

    pub(crate) fn pause(self) -> Duration {
        Duration::from_micros(self.pause_us)
    }
}

/// One critical section; times in ns of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Section {
    pub(crate) task: usize,
    pub(crate) asked: u64,
    /// `None`: never got in.
    pub(crate) entered: Option<u64>,
    /// Just before the unlock, or when it gave up.
    pub(crate) left: u64,
}

/// The result of all processes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contended {
    pub(crate) sections: usize,
    pub(crate) per_second: f64,
    pub(crate) handoff_p50_us: f64,
    pub(crate) handoff_p99_us: f64,
    /// Share of sections that went to another task than the one before.
    pub(crate) cross: f64,
    pub(crate) worst_wait_ms: f64,
    pub(crate) overlaps: usize,
    /// Waits that ended without the lock, including those at the end of the run.
    pub(crate) gave_up: usize,
}

type Log = Arc<Mutex<Vec<Section>>>;

pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    tasks: usize,
    process: usize,
    work: Work,
    window: Duration,
) -> Result<Vec<Section>> {
    let mut handles = Vec::new();
    for _ in 0..tasks {
        let handle = lock.for_task().await?;
        handle.section("bench:warm", async {}).await?;
        handles.push(handle);
    }
    wait_for_go();

    let end = now_ns() + u64::try_from(window.as_nanos())?;
    let log = Log::default();
    let mut running = JoinSet::new();
    for (number, handle) in handles.into_iter().enumerate() {
        running.spawn(one_task(
            handle,
            process * tasks + number,
            work,
            end,
            Arc::clone(&log),
        ));
    }
    let all_left = async { while running.join_next().await.is_some() {} };
    let _ = timeout(window + GRACE, all_left).await;
    running.shutdown().await;
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let sections = std::mem::take(&mut *log);
    Ok(sections)
}

async fn one_task<L: LockUnderTest>(lock: L, task: usize, work: Work, end: u64, log: Log) {
    let mut asked = now_ns();
    while asked < end {
        let times = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let seen = Arc::clone(&times);
        let body = async move { hold(&seen, work) };
        // A task that is still waiting when the time is over is cancelled, and its wait counts up to then.
        let left_ns = end.saturating_sub(asked);
        let section = lock.section(NAME, body);
        let _ = timeout(Duration::from_nanos(left_ns) + GRACE / 2, section).await;
        let [entered, left] = [0, 1].map(|i| Some(times[i].load(Ordering::Relaxed)));
        let section = Section {
            task,
            asked,
            entered: entered.filter(|ns| *ns != 0),
            left: left.filter(|ns| *ns != 0).unwrap_or_else(now_ns),
        };
        log.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(section);
        if work.pause_us > 0 {
            sleep(work.pause()).await;
        }
        asked = now_ns();
    }
}

fn hold(times: &[AtomicU64; 2], work: Work) {
    let entered = now_ns();
    times[0].store(entered, Ordering::Relaxed);
    while now_ns() < entered + work.hold_us * 1_000 {
        std::hint::spin_loop();
    }
    times[1].store(now_ns(), Ordering::Relaxed);
}

impl Contended {
    /// Evaluates the sections of all processes.
    pub(crate) fn of(mut sections: Vec<Section>, window: Duration) -> Self {
        let mut found = Self {
            gave_up: sections.iter().filter(|s| s.entered.is_none()).count(),
            worst_wait_ms: sections.iter().map(wait_ms).fold(0.0, f64::max),
            ..Self::default()
        };
        let begin = sections.iter().map(|section| section.asked).min();
        let end = begin.unwrap_or(0) + u64::try_from(window.as_nanos()).unwrap_or(u64::MAX / 2);
        sections.retain(|section| section.entered.is_some_and(|entered| entered < end));
        sections.sort_by_key(|section| section.entered);

        let mut handoffs = Vec::new();
        let mut others = 0;
        for (before, after) in sections.iter().zip(sections.iter().skip(1)) {
            let entered = after.entered.unwrap_or(0);
            found.overlaps += usize::from(entered < before.left);
            others += u32::from(after.task != before.task);
            if after.asked < before.left {
                handoffs.push(entered.saturating_sub(before.left) as f64 / 1e3);
            }
        }
        found.sections = sections.len();
        found.per_second = sections.len() as f64 / window.as_secs_f64();
        found.handoff_p50_us = percentile(&handoffs, 0.5).unwrap_or(0.0);
        found.handoff_p99_us = percentile(&handoffs, 0.99).unwrap_or(0.0);
        found.cross = f64::from(others) / sections.len().saturating_sub(1).max(1) as f64;
        found
    }
}

fn wait_ms(section: &Section) -> f64 {
    let until = section.entered.unwrap_or(section.left);
    until.saturating_sub(section.asked) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(task: usize, asked_ms: u64, entered_ms: u64, left_ms: u64) -> Section {
        let ns = 1_000_000;
        Section {
            task,
            asked: asked_ms * ns,
            entered: Some(entered_ms * ns),
            left: left_ms * ns,
        }
    }

    #[test]
    fn handoffs_overlaps_and_waits_are_read_off_the_sections() {
        let sections = vec![
            section(1, 2, 12, 20), // waited, two ms after the first left
            section(0, 1, 2, 10),
            section(0, 13, 18, 25), // overlaps
            section(1, 30, 31, 32), // came when nobody was in
        ];
        let found = Contended::of(sections, Duration::from_secs(1));
        assert_eq!(found.sections, 4);
        assert_eq!(found.overlaps, 1);
        assert!((found.handoff_p99_us - 2000.0).abs() < 1e-6);
        assert!((found.worst_wait_ms - 10.0).abs() < 1e-6);
        assert!((found.cross - 1.0).abs() < 1e-6);
    }
}
