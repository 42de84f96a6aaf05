//! A run in which time stops, because a task is always ready, would hang for ever. A thread watches for that.

use std::sync::Once;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// How much time of the processor a run may take. It is idle only while the machine has others to run.
const LIMIT: Duration = Duration::from_secs(300);

static RUNNING: Mutex<Option<(u64, Duration)>> = Mutex::new(None);

/// The processor's time that this process took.
fn used() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// This seed begins now.
pub(crate) fn begins(seed: u64) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(std::thread::spawn(watch)));
    *RUNNING.lock() = Some((seed, used()));
}

/// It has ended.
pub(crate) fn ends() {
    *RUNNING.lock() = None;
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        if let Some((seed, since)) = *RUNNING.lock()
            && used().saturating_sub(since) > LIMIT
        {
            eprintln!("seed {seed} runs for more than {LIMIT:?}: a task is always ready");
            std::process::exit(3);
        }
    }
}
