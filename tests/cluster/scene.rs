//! What the tests of this suite share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use watchlock::Lock;

/// Tasks that lock and unlock all the time, and stop when this is stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    inside: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Seen>>,
}

/// What the tasks saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) sections: u64,
    /// Two were inside one lock at the same time.
    pub(crate) overlaps: u64,
    /// The longest wait for it.
    pub(crate) longest: Duration,
    pub(crate) errors: Vec<String>,
}

impl Load {
    /// One task for each of `locks`, handles of one lock.
    pub(crate) fn start(locks: Vec<Box<dyn Lock>>) -> Self {
        let (stop, inside) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let tasks = locks.into_iter().map(|lock| {
            let (stop, inside) = (Arc::clone(&stop), Arc::clone(&inside));
            tokio::spawn(async move { sections(&*lock, &stop, &inside).await })
        });
        let tasks = tasks.collect();
        Self {
            stop,
            inside,
            tasks,
        }
    }

    pub(crate) async fn stop(self) -> Seen {
        self.stop_within(crate::common::LONG).await
    }

    /// Each of the tasks has so long for its last section.
    pub(crate) async fn stop_within(self, patience: Duration) -> Seen {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Seen::default();
        for task in self.tasks {
            let seen = tokio::time::timeout(patience, task).await;
            let seen = seen.expect("it ends").expect("no task panics");
            all.sections += seen.sections;
            all.overlaps += seen.overlaps;
            all.longest = all.longest.max(seen.longest);
            all.errors.extend(seen.errors);
        }
        assert_eq!(self.inside.load(Ordering::SeqCst), 0);
        all
    }
}

async fn sections(lock: &dyn Lock, stop: &AtomicBool, inside: &AtomicU64) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::SeqCst) {
        let asked = Instant::now();
        let guard = match lock.lock().await {
            Ok(guard) => guard,
            Err(error) => {
                seen.errors.push(format!("lock: {error:?}"));
                // A task that fails at once must not keep the others from going on.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        seen.longest = seen.longest.max(asked.elapsed());
        let before = inside.fetch_add(1, Ordering::SeqCst);
        if guard.is_valid() {
            seen.overlaps += u64::from(before > 0);
        }
        tokio::task::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
        if let Err(error) = guard.unlock().await {
            seen.errors.push(format!("unlock: {error:?}"));
        }
        seen.sections += 1;
    }
    seen
}
