//! Waiting for a condition with a deadline, and the clock that processes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The longest pause between two looks. Looks every 3 ms took a quarter of the processor time of some suites.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The pause before the next look: short at first, and a sixteenth of what was waited so far.
fn pause(since: Instant) -> Duration {
    (since.elapsed() / 16).clamp(Duration::from_millis(2), LONGEST_PAUSE)
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which on Linux all processes share.
///
/// # Panics
/// If the clock is before its own start or beyond 292 years, which it never is.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("the monotonic clock is not negative");
    let nanos = u64::try_from(now.tv_nsec).expect("nanoseconds are not negative");
    seconds * 1_000_000_000 + nanos
}

/// Waits until `condition` holds, or panics with `what` when `deadline` has passed.
///
/// It checks the condition once more after the deadline, so a slow machine cannot fail a condition that holds.
///
/// # Panics
/// If the condition does not hold within `deadline`.
///
/// # Cancel safety
/// Dropping the future stops the waiting and nothing else.
pub async fn eventually(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    let end = since + deadline;
    loop {
        let late = Instant::now() >= end;
        if condition().await {
            return;
        }
        assert!(!late, "not within {deadline:?}: {what}");
        tokio::time::sleep(pause(since)).await;
    }
}

/// [`eventually`] for plain threads.
///
/// # Panics
/// If the condition does not hold within `deadline`.
pub fn wait_until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let since = Instant::now();
    let end = since + deadline;
    loop {
        let late = Instant::now() >= end;
        if condition() {
            return;
        }
        assert!(!late, "not within {deadline:?}: {what}");
        std::thread::sleep(pause(since));
    }
}

/// Watches whether the machine stands still: a thread of it wakes every few milliseconds.
#[derive(Debug)]
pub struct StallWatch {
    is_over: Arc<AtomicBool>,
    watch: JoinHandle<Duration>,
}

impl StallWatch {
    /// Watches from now on.
    #[must_use]
    pub fn start() -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&is_over);
        let watch = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !ends.load(Ordering::SeqCst) {
                let slept_at = Instant::now();
                std::thread::sleep(LONGEST_PAUSE);
                longest = longest.max(slept_at.elapsed().saturating_sub(LONGEST_PAUSE));
            }
            longest
        });
        Self { is_over, watch }
    }

    /// For how long at most the machine stood still, or was so busy that this thread got no CPU.
    ///
    /// # Panics
    /// If the watching thread panicked.
    #[must_use]
    pub fn longest(self) -> Duration {
        self.is_over.store(true, Ordering::SeqCst);
        self.watch.join().expect("it only sleeps")
    }
}
