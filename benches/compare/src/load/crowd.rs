//! A crowd: very many tasks wait for one name; then the holder leaves, and they pass one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;
use crate::usage::{process_cpu_ns, resident_bytes};

const NAME: &str = "bench:crowd";
/// How long the crowd may take to settle before its memory is read.
const SETTLE: Duration = Duration::from_secs(2);

/// The cost of waiting and passing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Crowd {
    /// Memory of the client per waiting task, the task itself included.
    pub(crate) bytes_per_waiter: f64,
    /// Tasks that got in.
    pub(crate) passed: usize,
    /// CPU of the client process per task that got in.
    pub(crate) cpu_us: f64,
    /// From when the holder left until the last got in, or until the time was over.
    pub(crate) seconds: f64,
}

pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    tasks: usize,
    window: Duration,
) -> Result<Crowd> {
    let leave = Arc::new(Notify::new());
    let holder = hold(lock.clone(), Arc::clone(&leave)).await;
    let passed = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(Notify::new());

    let before = resident_bytes();
    for _ in 0..tasks {
        let (lock, passed, done) = (lock.clone(), Arc::clone(&passed), Arc::clone(&done));
        tokio::spawn(async move {
            let counted = passed.clone();
            let body = async move {
                if counted.fetch_add(1, Ordering::Relaxed) + 1 == tasks {
                    done.notify_one();
                }
            };
            // If a crate gives up waiting, nobody asks it again: that is its answer.
            let _ = lock.section(NAME, body).await;
        });
    }
    sleep(SETTLE.min(window)).await;
    let bytes = resident_bytes().saturating_sub(before);
    wait_for_go();

    let (start, cpu) = (Instant::now(), process_cpu_ns());
    leave.notify_one();
    let _ = timeout(window, done.notified()).await;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_us = (process_cpu_ns() - cpu) as f64 / 1e3;
    let passed = passed.load(Ordering::Relaxed);
    holder.abort();
    Ok(Crowd {
        bytes_per_waiter: bytes as f64 / tasks.max(1) as f64,
        cpu_us: cpu_us / passed.max(1) as f64,
        passed,
        seconds,
    })
}

/// Takes the lock and holds it until `leave` is notified.
async fn hold<L: LockUnderTest>(lock: L, leave: Arc<Notify>) -> tokio::task::JoinHandle<()> {
    let inside = Arc::new(Notify::new());
    let entered = Arc::clone(&inside);
    let holder = tokio::spawn(async move {
        let body = async move {
            entered.notify_one();
            leave.notified().await;
        };
        let _ = lock.section(NAME, body).await;
    });
    inside.notified().await;
    holder
}
