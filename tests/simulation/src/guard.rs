//! A run in which time stops, because a task is always ready, would hang for ever. A thread watches for that.

use std::sync::Once;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a run may take by the wall clock.
const LIMIT: Duration = Duration::from_secs(300);

static RUNNING: Mutex<Option<(u64, Instant)>> = Mutex::new(None);

/// This seed begins now.
pub(crate) fn begins(seed: u64) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(std::thread::spawn(watch)));
    *RUNNING.lock() = Some((seed, Instant::now()));
}

/// It has ended.
pub(crate) fn ends() {
    *RUNNING.lock() = None;
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        if let Some((seed, since)) = *RUNNING.lock()
            && since.elapsed() > LIMIT
        {
            eprintln!("seed {seed} runs for more than {LIMIT:?}: a task is always ready");
            std::process::exit(3);
        }
    }
}
